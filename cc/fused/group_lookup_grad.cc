#include "fused/group_lookup_grad.h"

#include <algorithm>
#include <vector>

#include "core/rows.h"
#include "fused/feature_pieces.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int64_t kPrefetchGradients = 16;
constexpr int64_t kBatchOfRows = 256;  // gradients gathered before they are added

// Finds the output gradient of a sample of the batch.
class GradientOfSample {
 public:
  // `features`: those of one table, ascending.
  GradientOfSample(const Group& group, const std::vector<int64_t>& features)
      : group_(group), features_(features) {}

  template <typename T>
  const T* Find(int64_t sample) {
    const Feature& feature = group_.features[FeatureOf(sample)];
    return static_cast<const T*>(feature.output) +
           (sample - feature.first_sample) * feature.output_stride;
  }

 private:
  int64_t FeatureOf(int64_t sample) const {
    if (features_.size() == 1) return features_[0];
    const auto after = std::upper_bound(
        features_.begin(), features_.end(), sample,
        [&](int64_t s, int64_t f) { return s < group_.features[f].first_sample; });
    int64_t f = *(after - 1);
    return f;
  }

  const Group& group_;
  const std::vector<int64_t>& features_;
};

// The gradient of unique rows [begin, end) of one table.
template <typename T>
void ReduceTable(const Group& group, const SortedRows& sorted, const std::vector<int64_t>& features,
                 int64_t table_index, int64_t begin, int64_t end, const TableGrad& grad) {
  const Table& table = group.tables[table_index];
  const float* weights = group.batch.weights;
  GradientOfSample gradients(group, features);
  std::vector<const T*> rows(kBatchOfRows);
  std::vector<float> scales(kBatchOfRows), sum(table.dim);
  const int64_t last = sorted.segments[end];
  for (int64_t u = begin; u < end; ++u) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t at = sorted.segments[u]; at < sorted.segments[u + 1]; at += kBatchOfRows) {
      const int64_t count = std::min(kBatchOfRows, sorted.segments[u + 1] - at);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t position = sorted.positions[at + i];
        const uint32_t sample = sorted.samples[position];
        rows[i] = gradients.Find<T>(sample);
        scales[i] = sorted.scales[sample] * (weights == nullptr ? 1.0f : weights[position]);
        const int64_t ahead = at + i + kPrefetchGradients;
        if (ahead < last) {
          PrefetchRow(gradients.Find<T>(sorted.samples[sorted.positions[ahead]]), table.dim);
        }
      }
      AddRows(rows.data(), scales.data(), count, table.dim, sum.data());
    }
    if (table.max_norm > 0) {
      const T* row = static_cast<const T*>(table.rows) + sorted.rows[u] * table.dim;
      ClipGradient(row, table.dim, table.max_norm, sum.data());
    }
    const int64_t to = u - sorted.num_unique[table_index];
    grad.indices[to] = sorted.rows[u];
    T* values = static_cast<T*>(grad.values) + to * table.dim;
    for (int32_t j = 0; j < table.dim; ++j) values[j] = FromFloat<T>(sum[j]);
  }
}

// d(output)/d(w_i) . g of every id of one sample, with d_i = g . row_i:
//   sum    d_i
//   mean   (d_i - sum_j w_j d_j / W) / W            W = sum_j w_j
//   sqrtn  d_i / sqrt(Q) - w_i sum_j w_j d_j / Q^1.5    Q = sum_j w_j^2
template <typename T>
void WeightGradOfSample(const Group& group, const Feature& feature, int64_t sample,
                        float* weight_grad) {
  const Table& table = group.tables[feature.table];
  const Batch& batch = group.batch;
  const T* gradient = static_cast<const T*>(feature.output) +
                      (sample - feature.first_sample) * feature.output_stride;
  const int64_t begin = batch.row_splits[sample], end = batch.row_splits[sample + 1];
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
    const float along = feature.combiner == Combiner::kMean ? 1.0f : weight_of(i) * scale;
    weight_grad[i] = scale * (weight_grad[i] - along * scale * sum_dots);
  }
}

}  // namespace

void ReduceRowsCpu(const Group& group, const SortedRows& sorted, const TableGrad* grads,
                   const ParallelFor& parallel_for) {
  std::vector<std::vector<int64_t>> features_of(group.num_tables);
  for (int64_t f = 0; f < group.num_features; ++f) {
    // A feature without samples has no gradient, and would stand in the way of the search.
    if (group.features[f].num_samples > 0) features_of[group.features[f].table].push_back(f);
  }
  const int64_t* first = sorted.num_unique;
  const int64_t num_unique = first[group.num_tables];
  int64_t elements = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    elements += (first[t + 1] - first[t]) * group.tables[t].dim;
  }
  const int64_t ids_per_row = num_unique == 0 ? 0 : sorted.segments[num_unique] / num_unique + 1;
  const int64_t cost = 20 + ids_per_row * (10 + elements / std::max<int64_t>(num_unique, 1) / 2);
  parallel_for(num_unique, cost, [&](int64_t begin, int64_t end) {
    int64_t t = std::upper_bound(first, first + group.num_tables + 1, begin) - first - 1;
    for (; begin < end; ++t) {
      const int64_t stop = std::min(end, first[t + 1]);
      if (stop == begin) continue;
      ForDataType(group.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        ReduceTable<T>(group, sorted, features_of[t], t, begin, stop, grads[t]);
      });
      begin = stop;
    }
  });
}

void WeightGradCpu(const Group& group, float* weight_grad, const ParallelFor& parallel_for) {
  const std::vector<FeaturePiece> pieces = CutFeatures(group);
  parallel_for(static_cast<int64_t>(pieces.size()), kPieceNanoseconds,
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
