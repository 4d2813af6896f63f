#include "fused/group_lookup_grad.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/rows.h"
#include "fused/feature_pieces.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int64_t kPrefetchGradients = 16;
constexpr int64_t kBatchOfRows = 256;        // gradients gathered before they are added
constexpr int64_t kCachedBytes = 256 << 10;  // gradients that need no prefetching

// Finds the output gradient of a sample of the batch, among the features of one table.
template <typename T>
class GradientOfSample {
 public:
  // `features`: ascending, each with samples.
  GradientOfSample(const Group& group, const std::vector<int64_t>& features)
      : group_(group), features_(features), only_(group.features[features[0]]) {
    const int64_t bytes = only_.num_samples * only_.output_stride * sizeof(T);
    cached = features.size() == 1 && bytes <= kCachedBytes;
  }

  const T* operator()(int64_t sample) const {
    const Feature& feature = features_.size() == 1 ? only_ : FeatureOf(sample);
    return static_cast<const T*>(feature.output) +
           (sample - feature.first_sample) * feature.output_stride;
  }

  bool cached;  // all of them fit the core's own cache

 private:
  const Feature& FeatureOf(int64_t sample) const {
    const auto after =
        std::upper_bound(features_.begin(), features_.end(), sample,
                         [&](int64_t s, int64_t f) { return s < group_.features[f].first_sample; });
    return group_.features[*(after - 1)];
  }

  const Group& group_;
  const std::vector<int64_t>& features_;
  const Feature only_;
};

// The gradient of unique rows [begin, end) of one table.
template <typename T>
class TableReducer {
 public:
  TableReducer(const Group& group, const SortedRowsCpu& sorted, const std::vector<int64_t>& features,
               int64_t table)
      : table_(group.tables[table]),
        weights_(group.batch.weights),
        sorted_(sorted),
        first_(sorted.num_unique[table]),
        last_(sorted.segments[sorted.num_unique[table + 1]]),
        gradient_of_(group, features),
        rows_(kBatchOfRows),
        scales_(kBatchOfRows),
        sum_(table_.dim) {}

  void Reduce(int64_t begin, int64_t end, const TableGrad& grad) {
    const int64_t dim = table_.dim;
    T* values = static_cast<T*>(grad.values) + (begin - first_) * dim;
    for (int64_t u = begin; u < end; ++u, values += dim) {
      grad.indices[u - first_] = sorted_.rows[u];
      const int64_t at = sorted_.segments[u], count = sorted_.segments[u + 1] - at;
      if (count == 1 && table_.max_norm <= 0) {  // most rows of most batches
        const Contribution only = ContributionAt(at);
        for (int64_t j = 0; j < dim; ++j) {
          values[j] = FromFloat<T>(only.scale * ToFloat(only.gradient[j]));
        }
      } else {
        Sum(at, count);
        if (table_.max_norm > 0) {
          const T* row = static_cast<const T*>(table_.rows) + sorted_.rows[u] * dim;
          ClipGradient(row, dim, table_.max_norm, sum_.data());
        }
        for (int64_t j = 0; j < dim; ++j) values[j] = FromFloat<T>(sum_[j]);
      }
    }
  }

 private:
  // What one looked-up id adds to the gradient of its row.
  struct Contribution {
    const T* gradient;
    float scale;
  };

  Contribution ContributionAt(int64_t at) const {
    if (!gradient_of_.cached && at + kPrefetchGradients < last_) {
      PrefetchRow(gradient_of_(SampleAt(at + kPrefetchGradients)), table_.dim);
    }
    const uint32_t sample = SampleAt(at);
    const float weight = weights_ == nullptr ? 1.0f : weights_[sorted_.positions[at]];
    return {gradient_of_(sample), sorted_.scales[sample] * weight};
  }

  uint32_t SampleAt(int64_t at) const { return sorted_.samples[sorted_.positions[at]]; }

  // sum_ = the contributions of `count` ids, added in their order.
  void Sum(int64_t at, int64_t count) {
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    for (int64_t done = 0; done < count; done += kBatchOfRows) {
      const int64_t batch = std::min(kBatchOfRows, count - done);
      for (int64_t i = 0; i < batch; ++i) {
        const Contribution next = ContributionAt(at + done + i);
        rows_[i] = next.gradient;
        scales_[i] = next.scale;
      }
      SumRows(rows_.data(), scales_.data(), batch, table_.dim, [this](int64_t column, auto part) {
        if constexpr (std::is_same_v<decltype(part), float>) {
          sum_[column] += part;
        } else {
          Store8(Load8(&sum_[column]) + part, &sum_[column]);
        }
      });
    }
  }

  const Table& table_;
  const float* weights_;
  const SortedRowsCpu& sorted_;
  const int64_t first_, last_;
  const GradientOfSample<T> gradient_of_;
  std::vector<const T*> rows_;
  std::vector<float> scales_, sum_;
};

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

void ReduceRowsCpu(const Group& group, const SortedRowsCpu& sorted, const TableGrad* grads,
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
        TableReducer<T>(group, sorted, features_of[t], t).Reduce(begin, stop, grads[t]);
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
