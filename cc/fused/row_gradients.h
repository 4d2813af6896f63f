// The second step of a backward pass on the host: goes through one run of sorted entries, and gives
// each row with its gradient.
#pragma once

#include <algorithm>
#include <vector>

#include "core/rows.h"
#include "fused/sort_rows.h"

namespace group_embedding {

// Walks the rows of a run:
//   RowGradients<T> rows(sorter, run);
//   while (rows.Next(gradient)) use(rows.row(), gradient);
// Contributions to a row are added in the order of its entries.
template <typename T>
class RowGradients {
 public:
  RowGradients(const RowSorter& sorter, const RowRun& run)
      : group_(sorter.group()),
        table_(group_.tables[run.table]),
        features_(sorter.features_of(run.table)),
        feature_(group_.features[features_[0]]),
        has_one_feature_(features_.size() == 1),
        weights_(group_.batch.weights),
        sorted_(sorter.entries()),
        next_(run.entries),
        end_(run.entries + (run.end - run.begin)),
        prefetches_(!has_one_feature_ || feature_.num_samples * feature_.output_stride *
                                                 static_cast<int64_t>(sizeof(T)) >
                                             kCachedBytes) {
    if (!prefetches_) PrefetchAll();
  }

  // Moves to the next row and writes its gradient, [dim]; false if there is none.
  bool Next(float* gradient) {
    if (next_ == end_) return false;
    row_ = sorted_.RowOf(*next_);
    const int64_t first_sample = SampleOf(*next_);
    const Contribution first = Take();
    StoreScaled(first.scale, first.gradient, table_.dim, gradient);
    while (next_ != end_ && sorted_.RowOf(*next_) == row_) {
      const Contribution more = Take();
      AddScaled(more.scale, more.gradient, table_.dim, gradient);
    }
    if (table_.max_norm > 0) {
      const T* row = static_cast<const T*>(table_.rows) + ReadBy(first_sample) * table_.dim;
      ClipGradient(row, table_.dim, table_.max_norm, gradient);
    }
    return true;
  }

  int64_t row() const { return row_; }

 private:
  static constexpr int64_t kPrefetchEntries = 16;
  static constexpr int64_t kCachedBytes = 256 << 10;  // gradients that need no prefetching

  // What one looked-up id adds to the gradient of its row.
  struct Contribution {
    const T* gradient;
    float scale;
  };

  // Returns the contribution of the next entry, and moves to the one after it.
  Contribution Take() {
    if (prefetches_ && next_ + kPrefetchEntries < end_) {
      PrefetchRow(GradientOf(SampleOf(next_[kPrefetchEntries])), table_.dim);
    }
    const int64_t sample = SampleOf(*next_);
    float scale = sorted_.scales == nullptr ? 1.0f : sorted_.scales[sample];
    if (weights_ != nullptr) scale *= weights_[sorted_.SourceOf(*next_)];
    ++next_;
    return {GradientOf(sample), scale};
  }

  // Gradients that fit the cache are prefetched together, which is faster than one by one.
  void PrefetchAll() const {
    const T* gradient = static_cast<const T*>(feature_.output);
    for (int64_t s = 0; s < feature_.num_samples; ++s, gradient += feature_.output_stride) {
      PrefetchRow(gradient, table_.dim);
    }
  }

  int64_t SampleOf(RowEntry entry) const {
    const int64_t source = sorted_.SourceOf(entry);
    return sorted_.samples == nullptr ? source : sorted_.samples[source];
  }

  // The row that a sample read instead of the present row, which is the same for all samples.
  int64_t ReadBy(int64_t sample) const {
    const Batch& batch = group_.batch;
    if (batch.reads == nullptr) return row_;
    int64_t i = batch.Begin(sample);
    while (batch.ids[i] != row_) ++i;
    return batch.reads[i];
  }

  const T* GradientOf(int64_t sample) const {
    const Feature& feature = has_one_feature_ ? feature_ : FeatureOf(sample);
    return static_cast<const T*>(feature.output) +
           (sample - feature.first_sample) * feature.output_stride;
  }

  const Feature& FeatureOf(int64_t sample) const {
    const auto after =
        std::upper_bound(features_.begin(), features_.end(), sample,
                         [&](int64_t s, int64_t f) { return s < group_.features[f].first_sample; });
    return group_.features[*(after - 1)];
  }

  const Group& group_;
  const Table table_;
  const std::vector<int64_t>& features_;
  const Feature feature_;  // the first
  const bool has_one_feature_;
  const float* const weights_;
  const RowEntries sorted_;
  const RowEntry *next_, *const end_;
  const bool prefetches_;
  int64_t row_ = 0;
};

}  // namespace group_embedding
