#if GOOGLE_CUDA

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fused/sample_ids.h"
#include "serving/device/fetched_rows.h"
#include "serving/device/request_buffers.h"
#include "serving/device/stored_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/serving/ops/served_lookup_op.h"
#include "tf/support/device.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

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

  absl::Status Run(OpKernelContext* context, const std::vector<ServedSource>& sources,
                   const Group& group, const std::vector<RowFormat>& formats,
                   const std::shared_ptr<Readers>& readers, LocatedRows* located,
                   Fault* fault) override {
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
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>ServedLookup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("batch")
                            .HostMemory("sizes"),
                        Guarded<ServedLookupGpuOp>);

}  // namespace
}  // namespace group_embedding

#endif  // GOOGLE_CUDA
