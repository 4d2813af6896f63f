// DeviceBudgetBytes: how many keys a table in GPU memory may have so that it never takes more bytes
// than its budget.
#pragma once

#include <algorithm>
#include <cstdint>

#include "table/lowest_keys.h"
#include "table/table_options.h"

namespace group_embedding {

class DeviceBudgetBytes {
 public:
  static constexpr double kIndexGrowth = 1.5, kIndexLoad = 0.6;  // see device_hash_index.cu

  // bytes_per_row: with its slots and its RowInfo, in num_arrays arrays. moves: between two
  // memories.
  DeviceBudgetBytes(const TableOptions& options, int64_t bytes_per_row, int64_t num_arrays,
                    int64_t first_row, bool moves)
      : rows_per_key_(RowsPerKey(options.budget)) {
    const int64_t handed_out = HandedOutBytes(options);
    // Rows have three bits each, and places in lists of free rows and of rows that move. A key has
    // its part of the index, and of the former one while that is made anew, and a quarter of a key
    // that went.
    per_row_ = static_cast<double>(bytes_per_row) + sizeof(int64_t) * (moves ? 3 : 1) +
               (moves ? 0.5 : 0.375);
    const double in_index = 2 * sizeof(uint64_t) * kIndexGrowth / kIndexLoad;
    per_key_ = in_index + handed_out / 4.0;
    const bool has_counts = options.admission.kind == Admission::Kind::kCounter;
    if (has_counts) per_key_ += (1 + kCountsOfCall) * (in_index + kCountBytes);
    on_disk_ = bytes_per_row + sizeof(int64_t) + kStoreKeyBytes;
    // A piece of each array that is not full: of rows, bits, the index, lists, and keys that went.
    fixed_ = (num_arrays + 3 + 2 + (moves ? 4 : 1) + 4 + (has_counts ? 2 : 0)) * kPiece +
             first_row * bytes_per_row + kLeastHandedOut * handed_out + kState;
    if (options.admission.kind == Admission::Kind::kBloom) {
      fixed_ += options.admission.num_counters * options.admission.counter_bytes + kPiece;
    }
  }

  int64_t NumKeys(int64_t max_bytes) const {
    return Quotient(max_bytes - fixed_, rows_per_key_ * per_row_ + per_key_);
  }
  // As NumKeys, where rows on disk are below memory for `max_rows`: these are there and each key
  // has a record. While keys are chosen to go, the host has some rows of the table, and two
  // candidates for each key that goes.
  int64_t NumKeysAboveDisk(int64_t max_bytes, int64_t max_rows) const {
    const double chosen = 2 * (rows_per_key_ - 1) * sizeof(EvictionCandidate);
    const double per_key = per_key_ + on_disk_ + chosen;
    const int64_t left = max_bytes - fixed_ - kChoosing - StoreBytes(max_bytes);
    const int64_t all = Quotient(left, rows_per_key_ * per_row_ + per_key);
    if (rows_per_key_ * static_cast<double>(all) <= static_cast<double>(max_rows)) return all;
    return Quotient(left - static_cast<int64_t>(per_row_ * static_cast<double>(max_rows)), per_key);
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
  // A filter counts as many keys as the table has, and those of a call, which take more than the
  // budget if they are more than so large a part of its keys.
  static constexpr double kCountsOfCall = 0.125;
  // A count, and its place in a list of free ones, in memory that grows by a quarter.
  static constexpr double kCountBytes = 1.25 * (2 * sizeof(int64_t) + sizeof(int64_t));

  static constexpr int64_t kChoosing = int64_t{8} << 20;  // rows that are looked at together
  static constexpr int64_t kStoreKeyBytes = 32;           // of a store's filter and index

  static int64_t Quotient(int64_t bytes, double per_key) {
    return static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, bytes)) / per_key);
  }

  const double rows_per_key_;
  double per_row_, per_key_, on_disk_;
  int64_t fixed_;
};

}  // namespace group_embedding
