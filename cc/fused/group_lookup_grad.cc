#include "fused/group_lookup_grad.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/rows.h"
#include "fused/feature_pieces.h"
#include "fused/row_gradients.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

// d(output)/d(w_i) . g of every id of one sample, with d_i = g . row_i:
//   sum    d_i
//   mean   (d_i - sum_j w_j d_j / W) / W            W = sum_j w_j
//   sqrtn  d_i / sqrt(Q) - w_i sum_j w_j d_j / Q^1.5    Q = sum_j w_j^2
template <typename T>
void WeightGradOfSample(const Group& group, const Feature& feature, int64_t sample,
                        float* weight_grad) {
  const Table& table = group.tables[feature.table];
  const Batch& batch = group.batch;
  const int64_t begin = batch.Begin(sample), end = batch.Begin(sample + 1);
  if (feature.output == nullptr) {
    std::fill(weight_grad + begin, weight_grad + end, 0.0f);
    return;
  }
  const T* gradient = static_cast<const T*>(feature.output) +
                      (sample - feature.first_sample) * feature.output_stride;
  float sum_weights = 0, sum_squares = 0, sum_dots = 0;
  auto weight_of = [&](int64_t i) { return batch.weights == nullptr ? 1.0f : batch.weights[i]; };
  auto use_of = [&](int64_t i) {
    return UseOfId(batch.ids[i], weight_of(i), table.num_rows, feature.combiner,
                   group.invalid_ids.prune_negative);
  };
  for (int64_t i = begin; i < end; ++i) {
    weight_grad[i] = 0;
    const IdUse use = use_of(i);
    if (use == IdUse::kNone) continue;
    const float weight = weight_of(i);
    sum_weights += weight;
    sum_squares += weight * weight;
    if (use == IdUse::kZeros) continue;
    const T* row = static_cast<const T*>(table.rows) + batch.ids[i] * table.dim;
    const float clip = table.max_norm > 0 ? ClipScale(row, table.dim, table.max_norm) : 1.0f;
    weight_grad[i] = clip * Dot(gradient, row, table.dim);
    sum_dots += weight * weight_grad[i];
  }
  if (feature.combiner == Combiner::kSum) return;
  const float scale = CombinerScale(feature.combiner, sum_weights, sum_squares);
  for (int64_t i = begin; i < end; ++i) {
    if (use_of(i) == IdUse::kNone) continue;
    weight_grad[i] =
        WeightGradient(feature.combiner, weight_of(i), scale, weight_grad[i], sum_dots);
  }
}

int64_t NumRuns(const RowSorter& sorter) { return static_cast<int64_t>(sorter.runs().size()); }

}  // namespace

void SortRowsCpu(RowSorter* sorter, const ParallelFor& parallel_for) {
  std::vector<RowRun>& runs = sorter->runs();
  parallel_for(NumRuns(*sorter), sorter->CostOfRun(/*passes=*/0), [&](int64_t begin, int64_t end) {
    std::vector<RowEntry> scratch;
    for (int64_t r = begin; r < end; ++r) {
      sorter->SortToKeep(&runs[r], &scratch);
      sorter->CountRows(&runs[r]);
    }
  });
}

void ReduceRowsCpu(const RowSorter& sorter, const TableGrad* grads,
                   const ParallelFor& parallel_for) {
  const Group& group = sorter.group();
  ForDataType(group.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(NumRuns(sorter), sorter.CostOfRun(/*passes=*/1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const RowRun& run = sorter.runs()[r];
        const int64_t dim = group.tables[run.table].dim;
        const TableGrad& grad = grads[run.table];
        T* values = static_cast<T*>(grad.values) + run.first_unique * dim;
        int64_t* indices = grad.indices + run.first_unique;
        RowGradients<T> rows(sorter, run);
        if constexpr (std::is_same_v<T, float>) {
          for (; rows.Next(values); values += dim) *indices++ = rows.row();
        } else {
          std::vector<float> gradient(dim);
          for (; rows.Next(gradient.data()); values += dim) {
            *indices++ = rows.row();
            StoreScaled(1.0f, gradient.data(), dim, values);
          }
        }
      }
    });
  });
}

void WeightGradCpu(const Group& group, float* weight_grad, const ParallelFor& parallel_for) {
  const FeaturePieces cut = CutFeatures(group);
  const std::vector<FeaturePiece>& pieces = cut.pieces;
  parallel_for(static_cast<int64_t>(pieces.size()), cut.nanoseconds,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   const Feature& feature = group.features[pieces[p].feature];
                   for (int64_t s = pieces[p].begin; s < pieces[p].end; ++s) {
                     ForDataType(group.dtype, [&](auto* type) {
                       using T = std::remove_pointer_t<decltype(type)>;
                       WeightGradOfSample<T>(group, feature, feature.first_sample + s, weight_grad);
                     });
                   }
                 }
               });
}

}  // namespace group_embedding
