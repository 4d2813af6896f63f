// Lookups of a model that answers requests: keys to rows of the session's version, and their sums,
// in one op.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "fused/sample_ids.h"
#include "fused/stored_lookup.h"
#include "serving/device/request_buffers.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/plain_table.h"
#include "tf/support/resource_locks.h"
#include "tf/support/served_request.h"
#include "tf/support/served_tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Nanoseconds to find a key.
constexpr int64_t kLocateCost = 30;

bool IsServedTable(OpKernelContext* context, int input) {
  if (context->input_dtype(input) != tensorflow::DT_RESOURCE) return false;
  return tensorflow::HandleFromInput(context, input).hash_code() ==
         tensorflow::TypeIndex::Make<ServedTableResource>().hash_code();
}

// Brings rows that are not in memory, until the deadline of the request.
absl::Status FetchRows(ServedTable* table, const int64_t* keys, std::vector<int64_t> positions,
                       int64_t* rows) {
  ServedRequest* const request = ServedRequest::Current();
  bool is_late = false;
  const Status status =
      table->Fetch(keys, std::move(positions),
                   request == nullptr ? Deadline::Never() : request->deadline, rows, &is_late);
  if (status.ok()) return absl::OkStatus();
  const absl::Status failure = is_late ? absl::DeadlineExceededError(status.message())
                                       : absl::UnavailableError(status.message());
  if (request != nullptr) request->failure.Fail(failure);
  return failure;
}

// What table t of the group is read from.
struct Source {
  ServedTablePtr served;
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
};

// Rows in the place of a batch's ids, in host memory.
struct LocatedRows {
  int64_t* rows = nullptr;  // [num_ids]
  Tensor memory;            // of the host, or else
#if GOOGLE_CUDA
  std::unique_ptr<RequestBuffers::Buffer> buffer;  // page-locked, from which all of the batch goes
#endif
};

class ServedLookupOp : public OpKernel {
 public:
  explicit ServedLookupOp(OpKernelConstruction* context) : OpKernel(context), attrs_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
    OP_REQUIRES(
        context, num_outputs() == attrs_.NumOutputs(),
        absl::InvalidArgumentError("num_outputs: expected " + std::to_string(attrs_.NumOutputs())));
    for (const int32_t t : keyed_) {
      OP_REQUIRES(context, t >= 0 && t < static_cast<int32_t>(attrs_.dims.size()),
                  absl::InvalidArgumentError("keyed: expected indices into the tables"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("served lookup");
    std::vector<Source> sources;  // outlive the locks and the readers
    const auto readers = std::make_shared<Readers>();
    SharedLocks locks;
    std::vector<Table> tables;
    std::vector<RowFormat> formats;
    std::vector<Feature> features;
    BatchInput batch;
    OP_REQUIRES_OK(context, FindSources(context, &sources));
    OP_REQUIRES_OK(context, ReadTables(context, sources, &locks, &tables, &formats));
    OP_REQUIRES_OK(context, attrs_.MakeFeatures(context, batch_check(), &batch, &features));
    LocatedRows located;
    for (const Source& source : sources) {
      if (source.served) readers->emplace_back(source.served->view().table);
    }
    OP_REQUIRES_OK(context, MakeRows(context, batch.view, &located));
    OP_REQUIRES_OK(context, Locate(context, sources, batch, located.rows));
    OP_REQUIRES_OK(context, attrs_.AllocateOutputs(context, &features));
    Group group;
    group.batch = batch.view;
    group.batch.ids = located.rows;
    group.tables = tables.data();
    group.num_tables = static_cast<int64_t>(tables.size());
    group.features = features.data();
    group.num_features = static_cast<int64_t>(features.size());
    group.dtype = attrs_.core_dtype;
    group.invalid_ids = attrs_.invalid_ids;
    Fault fault;
    OP_REQUIRES_OK(context, Run(context, sources, group, formats, readers, &located, &fault));
    if (fault.kind != FaultKind::kNone) {
      context->CtxFailure(Explain(fault, sources, batch, std::move(tables)));
    }
  }

 protected:
  using Readers = std::deque<ServedTable::Reader>;

  virtual BatchCheck batch_check() const { return BatchCheck::kFeatureSplits; }
  // Allocates the rows of a batch's ids.
  virtual absl::Status MakeRows(OpKernelContext* context, const Batch& batch,
                                LocatedRows* located) {
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_INT64, tensorflow::TensorShape({batch.num_ids}), &located->memory));
    located->rows = located->memory.flat<int64_t>().data();
    return absl::OkStatus();
  }

  // Writes the outputs. group: its batch is in host memory, with `located` in the place of ids.
  // readers: are to live as long as rows are read.
  virtual absl::Status Run(OpKernelContext* context, const std::vector<Source>& /*sources*/,
                           const Group& group, const std::vector<RowFormat>& formats,
                           const std::shared_ptr<Readers>& /*readers*/, LocatedRows* /*located*/,
                           Fault* fault) {
    *fault = StoredLookupCpu(group, formats.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  // More than any table has, and less than the number that stands for an id outside of its table.
  static constexpr int64_t kMostRows = int64_t{1} << 48;

  const GroupAttrs attrs_;

 private:
  absl::Status FindSources(OpKernelContext* context, std::vector<Source>* sources) const {
    sources->resize(attrs_.dims.size());
    int first, end;
    TF_RETURN_IF_ERROR(context->op_kernel().InputRange("tables", &first, &end));
    if (end - first != static_cast<int>(sources->size())) {
      return absl::InvalidArgumentError("tables: expected one for each of dims");
    }
    std::vector<int> input_of(sources->size());
    for (size_t t = 0; t < sources->size(); ++t) input_of[t] = first + static_cast<int>(t);
    if (!keyed_.empty()) {
      TF_RETURN_IF_ERROR(context->op_kernel().InputRange("keyed_tables", &first, &end));
      if (end - first != static_cast<int>(keyed_.size())) {
        return absl::InvalidArgumentError("keyed: expected one for each of keyed_tables");
      }
      for (size_t k = 0; k < keyed_.size(); ++k) input_of[keyed_[k]] = first + static_cast<int>(k);
    }
    for (size_t t = 0; t < sources->size(); ++t) {
      if (context->input_dtype(input_of[t]) != tensorflow::DT_RESOURCE) continue;
      Source& source = (*sources)[t];
      TF_RETURN_IF_ERROR(IsServedTable(context, input_of[t])
                             ? FindResource(context, input_of[t], &source.served)
                             : FindResource(context, input_of[t], &source.variable));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTables(OpKernelContext* context, const std::vector<Source>& sources,
                          SharedLocks* locks, std::vector<Table>* tables,
                          std::vector<RowFormat>* formats) const {
    std::vector<tensorflow::mutex*> mutexes;
    for (const Source& source : sources) {
      if (source.variable) mutexes.push_back(source.variable->mu());
    }
    locks->Lock(std::move(mutexes));
    tables->resize(sources.size());
    formats->resize(sources.size(), FormatOf(attrs_.core_dtype));
    for (size_t t = 0; t < sources.size(); ++t) {
      const Source& source = sources[t];
      Table& table = (*tables)[t];
      if (source.served) {
        TF_RETURN_IF_ERROR(CheckServed(*source.served, t));
        const ServedTable& served = *source.served->view().table;
        table = {served.rows(), kMostRows, attrs_.dims[t], 0};
        (*formats)[t] = served.options().format;
      } else {
        const Tensor& tensor =
            source.variable ? *source.variable->tensor() : context->input(static_cast<int>(t));
        TF_RETURN_IF_ERROR(TableOfTensor(tensor, attrs_, t, &table));
      }
      table.max_norm = attrs_.max_norms[t];
    }
    return absl::OkStatus();
  }

  absl::Status CheckServed(const ServedTableResource& table, size_t t) const {
    TF_RETURN_IF_ERROR(table.CheckInitialized());
    const ServedTableOptions& options = table.view().table->options();
    if (options.dim == attrs_.dims[t] && options.dtype == attrs_.core_dtype) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("table '" + attrs_.table_names[t] + "': expected dim " +
                                      std::to_string(attrs_.dims[t]) + " of " +
                                      tensorflow::DataTypeString(attrs_.dtype) + ", got dim " +
                                      std::to_string(options.dim));
  }

  // rows: [ids] written, in the place of keys.
  absl::Status Locate(OpKernelContext* context, const std::vector<Source>& sources,
                      const BatchInput& batch, int64_t* rows) const {
    const BatchExtents& extents = batch.extents;
    std::atomic<int64_t> num_missing{0};
    ThreadsOf(context)(extents.num_ids(), kLocateCost, [&](int64_t begin, int64_t end) {
      // The feature of the first id; others may have none.
      const auto after =
          std::upper_bound(extents.first_ids.begin(), extents.first_ids.end(), begin);
      for (int64_t f = after - extents.first_ids.begin() - 1, first = begin; first < end; ++f) {
        const int64_t count = std::min(end, extents.first_ids[f + 1]) - first;
        const Source& source = sources[attrs_.table_of_feature[f]];
        if (source.served) {
          const TableView view = source.served->view();
          const int64_t missing =
              view.table->Locate(view.overlay, batch.view.ids + first, count, rows + first);
          if (missing > 0) num_missing.fetch_add(missing, std::memory_order_relaxed);
        } else {
          std::copy_n(batch.view.ids + first, count, rows + first);
        }
        first += count;
      }
    });
    return num_missing.load() > 0 ? Fetch(sources, batch, rows) : absl::OkStatus();
  }

  // Brings rows that are not in memory: one read of each table for all its features.
  absl::Status Fetch(const std::vector<Source>& sources, const BatchInput& batch,
                     int64_t* rows) const {
    std::vector<std::vector<int64_t>> positions(sources.size());
    for (int64_t f = 0; f < batch.extents.num_features(); ++f) {
      const int64_t first = batch.extents.first_ids[f];
      for (int64_t i = first; i < first + batch.extents.num_ids(f); ++i) {
        if (rows[i] == ServedTable::kNotInMemory) {
          positions[attrs_.table_of_feature[f]].push_back(i);
        }
      }
    }
    for (size_t t = 0; t < sources.size(); ++t) {
      if (positions[t].empty()) continue;
      ServedTable* table = sources[t].served->entry()->table.get();
      TF_RETURN_IF_ERROR(FetchRows(table, batch.view.ids, std::move(positions[t]), rows));
    }
    return absl::OkStatus();
  }

  // In the caller's ids: those of a table by row number were replaced.
  absl::Status Explain(Fault fault, const std::vector<Source>& sources, const BatchInput& batch,
                       std::vector<Table> tables) const {
    const int32_t t = attrs_.table_of_feature[fault.feature];
    if (fault.kind == FaultKind::kIdOutOfRange && sources[t].served) {
      tables[t].num_rows = sources[t].served->view().table->options().max_rows;
      const int64_t sample = batch.extents.first_samples[fault.feature] + fault.sample;
      for (int64_t i = batch.view.Begin(sample); i < batch.view.Begin(sample + 1); ++i) {
        const int64_t id = batch.view.ids[i];
        if (id >= tables[t].num_rows || (id < 0 && !attrs_.invalid_ids.prune_negative)) {
          fault.value = id;
          break;
        }
      }
    }
    return attrs_.ToStatus(fault, tables, &batch.extents);
  }

  std::vector<int32_t> keyed_;
};

#if GOOGLE_CUDA
// On a GPU: keys are found on the host, where requests come from; rows are read in the GPU's
// memory, which has all rows of a table or copies of some, or over the bus.
class ServedLookupGpuOp : public ServedLookupOp {
  using ServedLookupOp::ServedLookupOp;

  // Where the arrays of a batch are in memory that holds them one after the other.
  struct Layout {
    int64_t splits_at, weights_at, bytes;

    explicit Layout(const Batch& batch) {
      splits_at = batch.num_ids * static_cast<int64_t>(sizeof(int64_t));
      weights_at = splits_at + NumSplits(batch) * static_cast<int64_t>(sizeof(int64_t));
      bytes = weights_at + NumWeights(batch) * static_cast<int64_t>(sizeof(float));
    }
    static int64_t NumSplits(const Batch& batch) {
      return batch.row_splits == nullptr ? 0 : batch.num_samples + 1;
    }
    static int64_t NumWeights(const Batch& batch) {
      return batch.weights == nullptr ? 0 : batch.num_ids;
    }
  };

  // The batch is in host memory.
  BatchCheck batch_check() const override { return BatchCheck::kRowSplitsOnHost; }

  absl::Status MakeRows(OpKernelContext*, const Batch& batch, LocatedRows* located) override {
    located->buffer = buffers_.Take(Layout(batch).bytes);
    located->rows = reinterpret_cast<int64_t*>(located->buffer->data());
    return absl::OkStatus();
  }

  absl::Status Run(OpKernelContext* context, const std::vector<Source>& sources, const Group& group,
                   const std::vector<RowFormat>& formats, const std::shared_ptr<Readers>& readers,
                   LocatedRows* located, Fault* fault) override {
    std::vector<Table> tables(group.tables, group.tables + group.num_tables);
    std::vector<CachedRows> requests;
    CacheTurns* turns = nullptr;
    for (int64_t f = 0; f < group.num_features && fault->kind == FaultKind::kNone; ++f) {
      const Feature& feature = group.features[f];
      const ServedTablePtr& served = sources[feature.table].served;
      const bool keyed = served && served->view().table->options().keyed;
      if (!keyed && !attrs_.invalid_ids.read_zeros) *fault = FindBadId(group, f);
      const int64_t first = group.batch.Begin(feature.first_sample);
      const int64_t end = group.batch.Begin(feature.first_sample + feature.num_samples);
      if (served) {
        const ServedTables::Entry& entry = *served->entry();
        if (entry.resident != nullptr) {
          tables[feature.table].rows = entry.resident->rows();
          continue;
        }
        turns = &served->tables()->device()->turns;
        requests.push_back({entry.cache->ref(), feature.table, first, end - first});
        tables[feature.table].rows = nullptr;  // by address
        tables[feature.table].num_rows = kMostAddresses;
      } else {
        // Every negative number means the same here; less than -1 are not row numbers there.
        std::transform(located->rows + first, located->rows + end, located->rows + first,
                       [](int64_t id) { return std::max<int64_t>(id, -1); });
      }
    }
    if (fault->kind != FaultKind::kNone) return absl::OkStatus();
    Group by_address = group;
    by_address.tables = tables.data();
    return Enqueue(context, by_address, formats, std::move(requests), turns, readers, located);
  }

  // As a lookup on the host finds it: nobody waits for the GPU to say so.
  Fault FindBadId(const Group& group, int64_t f) const {
    const Batch& batch = group.batch;
    const Feature& feature = group.features[f];
    const int64_t num_rows = group.tables[feature.table].num_rows;
    for (int64_t s = 0; s < feature.num_samples; ++s) {
      const int64_t in_batch = feature.first_sample + s;
      for (int64_t i = batch.Begin(in_batch); i < batch.Begin(in_batch + 1); ++i) {
        const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
        if (UseOfId(batch.ids[i], weight, num_rows, feature.combiner,
                    attrs_.invalid_ids.prune_negative) == IdUse::kZeros) {
          return {FaultKind::kIdOutOfRange, static_cast<int32_t>(f), s, batch.ids[i]};
        }
      }
    }
    return {};
  }

  // turns: of the served tables; null: there are none.
  absl::Status Enqueue(OpKernelContext* context, Group group, const std::vector<RowFormat>& formats,
                       std::vector<CachedRows> requests, CacheTurns* turns,
                       const std::shared_ptr<Readers>& readers, LocatedRows* located) {
    const Batch host = group.batch;
    const Layout layout(host);
    char* const sent = located->buffer->data();
    std::copy_n(host.row_splits, Layout::NumSplits(host),
                reinterpret_cast<int64_t*>(sent + layout.splits_at));
    std::copy_n(host.weights, Layout::NumWeights(host),
                reinterpret_cast<float*>(sent + layout.weights_at));

    Tensor batch, fetched, scratch;
    TF_RETURN_IF_ERROR(AllocateScratch(context, layout.bytes, &batch));
    TF_RETURN_IF_ERROR(
        AllocateScratch(context, FetchedRows::Bytes(requests, host.num_ids), &fetched));
    TF_RETURN_IF_ERROR(AllocateScratch(context, StoredLookupScratchBytes(group), &scratch));
    char* const begin = static_cast<char*>(batch.data());
    int64_t* const rows = reinterpret_cast<int64_t*>(begin);
    group.batch.ids = rows;
    if (host.row_splits != nullptr) {
      group.batch.row_splits = reinterpret_cast<int64_t*>(begin + layout.splits_at);
    }
    if (host.weights != nullptr) {
      group.batch.weights = reinterpret_cast<float*>(begin + layout.weights_at);
    }

    const cudaStream_t stream = StreamOf(context);
    cudaError_t error = cudaMemcpyAsync(begin, sent, layout.bytes, cudaMemcpyHostToDevice, stream);
    {
      std::optional<CacheTurns::Turn> turn;
      if (error == cudaSuccess && turns != nullptr) turn.emplace(turns, stream, &error);
      FetchedRows fetch(std::move(requests), host.num_ids, turn ? turn->call() : 0, fetched.data());
      if (error == cudaSuccess) error = fetch.FindRows(rows, stream);
      if (error == cudaSuccess) {
        error = StoredLookupCuda(group, formats.data(), scratch.data(), stream);
      }
      if (error == cudaSuccess) error = fetch.KeepRows(stream);
    }
    buffers_.Give(std::move(located->buffer), stream, readers);
    return ToStatus(error, "ServedLookup");
  }

  // Greater than any address, and less than the number of an id outside of its table.
  static constexpr int64_t kMostAddresses = int64_t{1} << 60;

  RequestBuffers buffers_;
};
#endif  // GOOGLE_CUDA

class ServedBatchOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override { context->set_output(0, context->input(0)); }
};

class ServedReadRowsOp : public OpKernel {
 public:
  explicit ServedReadRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    ServedTablePtr resource;
    OP_REQUIRES_OK(context, FindResource(context, 0, &resource));
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    const TableView view = resource->view();
    const ServedTableOptions& options = view.table->options();
    OP_REQUIRES(
        context, options.dtype == ToCore(dtype_) && options.dim == dim_,
        absl::InvalidArgumentError("table '" + options.name + "': expected its dtype and dim"));
    const Tensor& keys = context->input(1);
    tensorflow::TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t count = keys.NumElements();
    std::vector<int64_t> rows(count);
    const ServedTable::Reader reader(view.table);
    if (view.table->Locate(view.overlay, keys.flat<int64_t>().data(), count, rows.data()) > 0) {
      std::vector<int64_t> positions(count);
      std::iota(positions.begin(), positions.end(), 0);
      OP_REQUIRES_OK(context, FetchRows(resource->entry()->table.get(), keys.flat<int64_t>().data(),
                                        std::move(positions), rows.data()));
    }
    const int64_t bytes = dim_ * SizeOf(options.dtype);
    std::vector<float> values(dim_);
    for (int64_t i = 0; i < count; ++i) {
      const char* row = view.table->rows() + rows[i] * view.table->row_bytes();
      DecodeRow(options.format, row, dim_, values.data());
      EncodeRow(DataType::kFloat32, values.data(), dim_, FormatOf(options.dtype),
                static_cast<char*>(output->data()) + i * bytes);
    }
  }

 private:
  tensorflow::DataType dtype_;
  int32_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedBatch").Device(tensorflow::DEVICE_CPU),
                        ServedBatchOp);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedLookup").Device(tensorflow::DEVICE_CPU),
                        Guarded<ServedLookupOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedReadRows").Device(tensorflow::DEVICE_CPU),
                        Guarded<ServedReadRowsOp>);
#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedLookup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("batch")
                            .HostMemory("sizes"),
                        Guarded<ServedLookupGpuOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedReadRows")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("rows"),
                        Guarded<ServedReadRowsOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
