// WideCounts: counts of rows that do not fit into 16 bits. Few rows have such a count, and these
// are in a map. Where they are many, an array of all rows takes less memory.
//
// Thread safety: different rows may be read and written at a time, and Grow beside that.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/status.h"
#include "table/memory.h"

namespace group_embedding {

class WideCounts {
 public:
  // The most that a row takes: in the array, and in the map that it replaces.
  static constexpr int64_t kMostBytesPerRow = 12;

  explicit WideCounts(int64_t max_rows) : max_rows_(max_rows) {}

  // Before rows until `num_rows` are used.
  Status Grow(int64_t num_rows);

  // For a row that has one.
  int64_t Of(int64_t row) const;
  void Set(int64_t row, int64_t count);
  void Erase(int64_t row);

  int64_t bytes() const;

 private:
  struct Stripe {
    mutable std::mutex mutex;
    std::unordered_map<int64_t, int64_t> counts;  // by row
  };

  Stripe& StripeOf(int64_t row) const { return (*stripes_)[row / 4 % stripes_->size()]; }
  void MoveToArray();

  const int64_t max_rows_;
  const std::unique_ptr<std::array<Stripe, 32>> stripes_{new std::array<Stripe, 32>};
  int64_t* array_ = nullptr;  // [usable_rows_]; null: the stripes have the counts. It changes under
                              // the locks of all stripes
  std::atomic<int64_t> num_in_map_{0}, usable_rows_{0};
  std::mutex growing_;  // of the array's memory; taken before those of stripes
  std::unique_ptr<Memory> memory_;
};

}  // namespace group_embedding
