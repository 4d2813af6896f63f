// DeviceBudgetBytes: how many keys a table in GPU memory may have so that it never takes more bytes
// than its budget.
#pragma once

#include <algorithm>
#include <cstdint>

#include "table/table_options.h"

namespace group_embedding {

class DeviceBudgetBytes {
 public:
  static constexpr double kIndexGrowth = 1.5, kIndexLoad = 0.6;  // see device_hash_index.cu

  // bytes_per_row: with its slots and its RowInfo, in num_arrays arrays. moves: between two
  // memories.
  DeviceBudgetBytes(const TableOptions& options, int64_t bytes_per_row, int64_t num_arrays,
                    int64_t first_row, bool moves) {
    const Budget& budget = options.budget;
    const int64_t handed_out = HandedOutBytes(options);
    // Rows, those that wait for other batches, three bits each, and where they are in lists of free
    // rows and of rows that move; the index, and while it is made anew the former one; a quarter of
    // the keys that went.
    const double in_lists = sizeof(int64_t) * (moves ? 3 : 1) + (moves ? 0.5 : 0.375);
    per_key_ = RowsPerKey(budget) * (static_cast<double>(bytes_per_row) + in_lists) +
               2 * sizeof(uint64_t) * kIndexGrowth / kIndexLoad + handed_out / 4.0;
    // A piece of each array that is not full: of rows, bits, the index, lists, and keys that went.
    fixed_ = (num_arrays + 3 + 2 + (moves ? 4 : 1) + 4) * kPiece + first_row * bytes_per_row +
             kLeastHandedOut * handed_out + kState;
    if (options.admission.kind == Admission::Kind::kBloom) {
      fixed_ += options.admission.num_counters * options.admission.counter_bytes + kPiece;
    }
  }

  int64_t NumKeys(int64_t max_bytes) const {
    return static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, max_bytes - fixed_)) /
                                per_key_);
  }

  // Keys that went wait for other batches that may hold their rows, those of one eviction.
  static double RowsPerKey(const Budget& budget) { return 2 - budget.keep; }
  // What is kept of a key that went.
  static int64_t HandedOutBytes(const TableOptions& options) {
    const HandsOut hands_out = options.budget.hands_out;
    const int64_t row_bytes = options.dim * SizeOf(options.dtype);
    return static_cast<int64_t>(sizeof(int64_t)) * (hands_out == HandsOut::kNothing ? 1 : 3) +
           (hands_out == HandsOut::kRows ? row_bytes : 0);
  }

  static constexpr int64_t kLeastHandedOut = 1 << 14;

 private:
  static constexpr int64_t kPiece = int64_t{2} << 20;  // that the device's memory is taken in
  static constexpr int64_t kState = int64_t{1} << 20;  // of launches

  double per_key_;
  int64_t fixed_;
};

}  // namespace group_embedding
