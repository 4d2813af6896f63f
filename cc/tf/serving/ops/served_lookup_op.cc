#include "tf/serving/ops/served_lookup_op.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/trace.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/plain_table.h"

namespace group_embedding {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

// Nanoseconds to find a key.
constexpr int64_t kLocateCost = 30;

bool IsServedTable(OpKernelContext* context, int input) {
  if (context->input_dtype(input) != tensorflow::DT_RESOURCE) return false;
  return tensorflow::HandleFromInput(context, input).hash_code() ==
         tensorflow::TypeIndex::Make<ServedTableResource>().hash_code();
}

}  // namespace

ServedLookupOp::ServedLookupOp(OpKernelConstruction* context) : OpKernel(context), attrs_(context) {
  OP_REQUIRES_OK(context, context->GetAttr("keyed", &keyed_));
  OP_REQUIRES(
      context, num_outputs() == attrs_.NumOutputs(),
      absl::InvalidArgumentError("num_outputs: expected " + std::to_string(attrs_.NumOutputs())));
  for (const int32_t t : keyed_) {
    OP_REQUIRES(context, t >= 0 && t < static_cast<int32_t>(attrs_.dims.size()),
                absl::InvalidArgumentError("keyed: expected indices into the tables"));
  }
}

void ServedLookupOp::Compute(OpKernelContext* context) {
  const Stage stage("served lookup");
  std::vector<ServedSource> sources;  // outlive the locks and the readers
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
  for (const ServedSource& source : sources) {
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
  OP_REQUIRES_OK(context, CheckRequest());
  if (fault.kind != FaultKind::kNone) {
    context->CtxFailure(Explain(fault, sources, batch, std::move(tables)));
  }
}

absl::Status ServedLookupOp::MakeRows(OpKernelContext* context, const Batch& batch,
                                      LocatedRows* located) {
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_INT64, tensorflow::TensorShape({batch.num_ids}), &located->memory));
  located->rows = located->memory.flat<int64_t>().data();
  return absl::OkStatus();
}

absl::Status ServedLookupOp::FindSources(OpKernelContext* context,
                                         std::vector<ServedSource>* sources) const {
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
    ServedSource& source = (*sources)[t];
    TF_RETURN_IF_ERROR(IsServedTable(context, input_of[t])
                           ? FindResource(context, input_of[t], &source.served)
                           : FindResource(context, input_of[t], &source.variable));
  }
  return absl::OkStatus();
}

absl::Status ServedLookupOp::ReadTables(OpKernelContext* context,
                                        const std::vector<ServedSource>& sources,
                                        SharedLocks* locks, std::vector<Table>* tables,
                                        std::vector<RowFormat>* formats) const {
  std::vector<tensorflow::mutex*> mutexes;
  for (const ServedSource& source : sources) {
    if (source.variable) mutexes.push_back(source.variable->mu());
  }
  locks->Lock(std::move(mutexes));
  tables->resize(sources.size());
  formats->resize(sources.size(), FormatOf(attrs_.core_dtype));
  for (size_t t = 0; t < sources.size(); ++t) {
    const ServedSource& source = sources[t];
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

absl::Status ServedLookupOp::CheckServed(const ServedTableResource& table, size_t t) const {
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

absl::Status ServedLookupOp::Locate(OpKernelContext* context,
                                    const std::vector<ServedSource>& sources,
                                    const BatchInput& batch, int64_t* rows) const {
  const BatchExtents& extents = batch.extents;
  std::atomic<int64_t> num_missing{0};
  RequestThreadsOf(context)(extents.num_ids(), kLocateCost, [&](int64_t begin, int64_t end) {
    // The feature of the first id; others may have none.
    const auto after = std::upper_bound(extents.first_ids.begin(), extents.first_ids.end(), begin);
    for (int64_t f = after - extents.first_ids.begin() - 1, first = begin; first < end; ++f) {
      const int64_t count = std::min(end, extents.first_ids[f + 1]) - first;
      const ServedSource& source = sources[attrs_.table_of_feature[f]];
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
  TF_RETURN_IF_ERROR(CheckRequest());
  return num_missing.load() > 0 ? Fetch(sources, batch, rows) : absl::OkStatus();
}

absl::Status ServedLookupOp::Fetch(const std::vector<ServedSource>& sources,
                                   const BatchInput& batch, int64_t* rows) const {
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

absl::Status ServedLookupOp::Explain(Fault fault, const std::vector<ServedSource>& sources,
                                     const BatchInput& batch, std::vector<Table> tables) const {
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

}  // namespace group_embedding
