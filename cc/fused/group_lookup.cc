#include "fused/group_lookup.h"

#include <algorithm>
#include <vector>

#include "core/rows.h"
#include "fused/feature_pieces.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

// Rows are fetched this many ids before they are added: 24 rows of one or two cache lines are about
// what a core can have in flight.
constexpr int64_t kPrefetchIds = 24;

// The rows of one sample, gathered before they are added, so that the adding has no branches.
template <typename T>
struct SampleRows {
  std::vector<const T*> rows;
  std::vector<float> weights;
  float scale;

  // Returns the position of an id that is a fault, or -1.
  int64_t Gather(const Table& table, const Feature& feature, const Batch& batch, int64_t sample,
                 const InvalidIds& invalid_ids) {
    rows.clear();
    weights.clear();
    float sum_weights = 0, sum_squares = 0;
    for (int64_t i = batch.row_splits[sample]; i < batch.row_splits[sample + 1]; ++i) {
      float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
      const IdUse use = UseOfId(batch.ids[i], weight, table.num_rows, feature.combiner,
                                invalid_ids.prune_negative);
      if (use == IdUse::kNone) continue;
      sum_weights += weight;
      sum_squares += weight * weight;
      if (use == IdUse::kZeros) {
        if (invalid_ids.read_zeros) continue;
        return i;
      }
      const T* row = static_cast<const T*>(table.rows) + batch.ids[i] * table.dim;
      if (table.max_norm > 0) weight *= ClipScale(row, table.dim, table.max_norm);
      rows.push_back(row);
      weights.push_back(weight);
    }
    scale = CombinerScale(feature.combiner, sum_weights, sum_squares);
    return -1;
  }
};

template <typename T>
class RowPrefetcher {
 public:
  RowPrefetcher(const Table& table, const Batch& batch, int64_t end)
      : table_(table), batch_(batch), end_(end) {}

  // Asks for the rows of ids up to kPrefetchIds after `position`.
  void Advance(int64_t position) {
    const int64_t until = std::min(end_, position + kPrefetchIds);
    for (next_ = std::max(next_, position); next_ < until; ++next_) {
      const uint64_t id = static_cast<uint64_t>(batch_.ids[next_]);
      if (id < static_cast<uint64_t>(table_.num_rows)) {
        PrefetchRow(static_cast<const T*>(table_.rows) + id * table_.dim, table_.dim);
      }
    }
  }

 private:
  const Table& table_;
  const Batch& batch_;
  const int64_t end_;
  int64_t next_ = 0;
};

template <typename T>
Fault LookUpPiece(const Group& group, const FeaturePiece& piece) {
  const Feature& feature = group.features[piece.feature];
  const Table& table = group.tables[feature.table];
  const Batch& batch = group.batch;
  const int64_t begin = feature.first_sample + piece.begin;
  const int64_t end = feature.first_sample + piece.end;
  T* output = static_cast<T*>(feature.output) + piece.begin * feature.output_stride;

  RowPrefetcher<T> prefetcher(table, batch, batch.row_splits[end]);
  SampleRows<T> sample_rows;
  std::vector<float> sum(table.dim);
  for (int64_t sample = begin; sample < end; ++sample, output += feature.output_stride) {
    prefetcher.Advance(batch.row_splits[sample + 1]);
    const int64_t bad =
        sample_rows.Gather(table, feature, batch, sample, group.invalid_ids);
    if (bad >= 0) {
      return {FaultKind::kIdOutOfRange, static_cast<int32_t>(piece.feature),
              sample - feature.first_sample, batch.ids[bad]};
    }
    std::fill(sum.begin(), sum.end(), 0.0f);
    AddRows(sample_rows.rows.data(), sample_rows.weights.data(),
            static_cast<int64_t>(sample_rows.rows.size()), table.dim, sum.data());
    for (int32_t j = 0; j < table.dim; ++j) output[j] = FromFloat<T>(sum[j] * sample_rows.scale);
  }
  return {};
}

}  // namespace

Fault GroupLookupCpu(const Group& group, const ParallelFor& parallel_for) {
  const std::vector<FeaturePiece> pieces = CutFeatures(group);
  // One fault per piece, so that the one reported does not depend on the order of threads.
  std::vector<Fault> faults(pieces.size());
  parallel_for(static_cast<int64_t>(pieces.size()), kPieceNanoseconds,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   ForDataType(group.dtype, [&](auto* type) {
                     using T = std::remove_pointer_t<decltype(type)>;
                     faults[p] = LookUpPiece<T>(group, pieces[p]);
                   });
                 }
               });
  for (const Fault& fault : faults) {
    if (fault.kind != FaultKind::kNone) return fault;
  }
  return {};
}

}  // namespace group_embedding
