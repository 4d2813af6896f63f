// DeviceBudgetBytes: how many keys a table in GPU memory may have so that it never takes more bytes
// than its budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "table/lowest_keys.h"
#include "table/table_options.h"

namespace group_embedding {

class DeviceBudgetBytes {
 public:
  static constexpr double kIndexGrowth = 1.5, kIndexLoad = 0.6;  // see device_hash_index.cu

  // bytes_per_row: with its slots and its RowInfo, in num_arrays arrays. moves: between two
  // memories. rows_above_disk: the most rows in these, if others are on disk.
  DeviceBudgetBytes(const TableOptions& options, int64_t bytes_per_row, int64_t num_arrays,
                    int64_t first_row, bool moves, std::optional<int64_t> rows_above_disk)
      : rows_per_key_(RowsPerKey(options.budget)), rows_above_disk_(rows_above_disk) {
    const int64_t in_list = EvictedBytes(options.budget, RowBytes(options));
    const bool waits = options.budget.hands_out != HandsOut::kNothing;
    const int64_t evicted = in_list + kLogBytes + (waits ? 2 * in_list : 0);
    const double evicted_per_key = std::max(kLeastEvicted, 0.125 + 1 - options.budget.keep);
    // Rows have three bits each, and places in lists of free rows and of rows that move. A key has
    // its part of the index, and of the former one while that is made anew, and of the keys that
    // went: of their list, and on the host of the log of changes, and of keys that wait to be
    // handed out, whose list has a former part while it grows.
    per_row_ = static_cast<double>(bytes_per_row) + sizeof(int64_t) * (moves ? 3 : 1) +
               (moves ? 0.5 : 0.375);
    const double in_index = 2 * sizeof(uint64_t) * kIndexGrowth / kIndexLoad;
    per_key_ = in_index + evicted_per_key * static_cast<double>(evicted);
    const bool has_counts = options.admission.kind == Admission::Kind::kCounter;
    if (has_counts) per_key_ += (1 + kCountsOfCall) * (in_index + kCountBytes);
    on_disk_ = bytes_per_row + sizeof(int64_t) + kStoreKeyBytes;
    // A piece of each array that is not full: of rows, bits, the index, lists, and keys that went.
    fixed_ = (num_arrays + 3 + 2 + (moves ? 4 : 1) + 4 + (has_counts ? 2 : 0)) * kPiece +
             first_row * bytes_per_row + kLeastListed * evicted + kState;
    if (options.admission.kind == Admission::Kind::kBloom) {
      fixed_ += options.admission.num_counters * options.admission.counter_bytes + kPiece;
    }
  }

  // With a disk each key has a record there. While keys are chosen to go, the host has some rows of
  // the table, and two candidates for each key that goes.
  int64_t NumKeys(int64_t max_bytes) const {
    const int64_t left = max_bytes - Fixed(max_bytes);
    if (!rows_above_disk_.has_value()) return Quotient(left, rows_per_key_ * per_row_ + per_key_);
    const double chosen = 2 * (rows_per_key_ - 1) * sizeof(EvictionCandidate);
    const double per_key = per_key_ + on_disk_ + chosen;
    const auto most_rows = static_cast<double>(*rows_above_disk_);
    const int64_t all = Quotient(left, rows_per_key_ * per_row_ + per_key);
    if (rows_per_key_ * static_cast<double>(all) <= most_rows) return all;
    return Quotient(left - static_cast<int64_t>(per_row_ * most_rows), per_key);
  }
  // The fewest bytes that have so many keys.
  int64_t BytesFor(int64_t num_keys) const {
    int64_t too_few = 0, enough = 1;
    while (NumKeys(enough) < num_keys && enough < kMostBytes) enough *= 2;
    while (enough - too_few > 1) {
      const int64_t between = too_few + (enough - too_few) / 2;
      (NumKeys(between) < num_keys ? too_few : enough) = between;
    }
    return enough;
  }
  // What a table takes that has such a budget, and no keys.
  int64_t Fixed(int64_t max_bytes) const {
    return fixed_ + (rows_above_disk_.has_value() ? kChoosing + StoreBytes(max_bytes) : 0);
  }

  // Keys that went wait for other batches that may hold their rows, those of one eviction.
  static double RowsPerKey(const Budget& budget) { return 2 - budget.keep; }
  // How many keys that went are listed: a quarter of all, or those of an eviction and an eighth.
  static int64_t EvictedSize(const Budget& budget, int64_t max_keys) {
    const auto least = static_cast<int64_t>(kLeastEvicted * static_cast<double>(max_keys));
    return std::max({kLeastListed, least, budget.MostHandedOut(max_keys)});
  }

 private:
  // What a key that went takes in its list.
  static int64_t EvictedBytes(const Budget& budget, int64_t row_bytes) {
    return static_cast<int64_t>(sizeof(int64_t)) *
               (budget.hands_out == HandsOut::kNothing ? 1 : 3) +
           (budget.hands_out == HandsOut::kRows ? row_bytes : 0);
  }
  static int64_t RowBytes(const TableOptions& options) {
    return options.dim * SizeOf(options.dtype);
  }

  static constexpr int64_t kMostBytes = int64_t{1} << 60;
  static constexpr int64_t kLeastListed = 1 << 14;     // keys that went
  static constexpr double kLeastEvicted = 0.25;        // of all keys
  static constexpr int64_t kLogBytes = 24;             // of a key in a list that doubles
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
  const std::optional<int64_t> rows_above_disk_;
  double per_row_, per_key_, on_disk_;
  int64_t fixed_;
};

}  // namespace group_embedding
