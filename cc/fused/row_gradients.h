// The second step of a backward pass on the host: one run of sorted entries, row by row, each with
// its gradient, which is never more than one row in memory.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/rows.h"
#include "fused/sort_rows.h"

namespace group_embedding {

// Walks the rows of a run:
//   RowGradients<T> rows(sorter, run);
//   while (rows.Next()) use(rows.row(), rows.gradient());
template <typename T>
class RowGradients {
 public:
  RowGradients(const RowSorter& sorter, const RowRun& run)
      : sorter_(sorter),
        group_(sorter.group()),
        table_(group_.tables[run.table]),
        features_(sorter.features_of(run.table)),
        only_(group_.features[features_[0]]),
        weights_(group_.batch.weights),
        next_(sorter.entries() + run.begin),
        end_(sorter.entries() + run.end),
        gradients_are_cached_(features_.size() == 1 && only_.num_samples * only_.output_stride *
                                                               static_cast<int64_t>(sizeof(T)) <=
                                                           kCachedBytes),
        gradient_(table_.dim) {}

  // Moves to the next row; false if there is none.
  bool Next() {
    if (next_ == end_) return false;
    row_ = sorter_.RowOf(*next_);
    const RowEntry* stop = next_ + 1;
    while (stop != end_ && sorter_.RowOf(*stop) == row_) ++stop;
    if (stop - next_ == 1) {  // most rows of most batches
      Prefetch(next_ + kPrefetchEntries);
      const Contribution only = ContributionOf(*next_++);
      for (int64_t j = 0; j < table_.dim; ++j)
        gradient_[j] = only.scale * ToFloat(only.gradient[j]);
    } else {
      AddUntil(stop);
    }
    if (table_.max_norm > 0) {
      const T* row = static_cast<const T*>(table_.rows) + row_ * table_.dim;
      ClipGradient(row, table_.dim, table_.max_norm, gradient_.data());
    }
    return true;
  }

  int64_t row() const { return row_; }
  const float* gradient() const { return gradient_.data(); }  // [dim]

  // A row that comes soon: that of the entry which is `entries` behind the next.
  int64_t RowAhead(int64_t entries) const {
    return next_ == end_ ? row_ : sorter_.RowOf(*std::min(next_ + entries, end_ - 1));
  }

 private:
  static constexpr int64_t kPrefetchEntries = 16;
  static constexpr int64_t kEntriesAtOnce = 256;      // gathered before they are added
  static constexpr int64_t kCachedBytes = 256 << 10;  // gradients that need no prefetching

  // What one looked-up id adds to the gradient of its row.
  struct Contribution {
    const T* gradient;
    float scale;
  };

  Contribution ContributionOf(RowEntry entry) const {
    const int64_t place = sorter_.PlaceOf(entry);
    if (weights_ == nullptr) return {GradientOf(place), sorter_.ScaleOf(place)};
    const int64_t sample = sorter_.SampleOf(place);
    return {GradientOf(sample), sorter_.ScaleOf(sample) * weights_[place]};
  }

  void Prefetch(const RowEntry* entry) const {
    if (gradients_are_cached_ || entry >= end_) return;
    const int64_t place = sorter_.PlaceOf(*entry);
    PrefetchRow(GradientOf(weights_ == nullptr ? place : sorter_.SampleOf(place)), table_.dim);
  }

  const T* GradientOf(int64_t sample) const {
    const Feature& feature = features_.size() == 1 ? only_ : FeatureOf(sample);
    return static_cast<const T*>(feature.output) +
           (sample - feature.first_sample) * feature.output_stride;
  }

  const Feature& FeatureOf(int64_t sample) const {
    const auto after =
        std::upper_bound(features_.begin(), features_.end(), sample,
                         [&](int64_t s, int64_t f) { return s < group_.features[f].first_sample; });
    return group_.features[*(after - 1)];
  }

  // gradient_ = the contributions of the entries from next_ to `stop`, added in their order.
  void AddUntil(const RowEntry* stop) {
    bool first = true;
    for (; next_ != stop; first = false) {
      const T* rows[kEntriesAtOnce];
      float scales[kEntriesAtOnce];
      int64_t count = 0;
      for (; next_ != stop && count < kEntriesAtOnce; ++next_, ++count) {
        Prefetch(next_ + kPrefetchEntries);
        const Contribution one = ContributionOf(*next_);
        rows[count] = one.gradient;
        scales[count] = one.scale;
      }
      SumRows(rows, scales, count, table_.dim, [&](int64_t column, auto part) {
        if constexpr (std::is_same_v<decltype(part), float>) {
          gradient_[column] = first ? part : gradient_[column] + part;
        } else {
          Store8(first ? part : Load8(&gradient_[column]) + part, &gradient_[column]);
        }
      });
    }
  }

  const RowSorter& sorter_;
  const Group& group_;
  const Table& table_;
  const std::vector<int64_t>& features_;
  const Feature only_;
  const float* weights_;
  const RowEntry *next_, *end_;
  const bool gradients_are_cached_;
  int64_t row_ = 0;
  std::vector<float> gradient_;
};

}  // namespace group_embedding
