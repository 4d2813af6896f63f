// BudgetBytes: how many keys a table in host memory, or in host memory and on disk, may have so
// that it never takes more bytes than its budget, whatever happens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "table/host/bloom_counters.h"
#include "table/host/wide_counts.h"
#include "table/large_pages.h"
#include "table/lowest_keys.h"
#include "table/table_options.h"

namespace group_embedding {

class BudgetBytes {
 public:
  // bytes_per_row: with its slots and its RowInfo.
  BudgetBytes(const TableOptions& options, int64_t bytes_per_row, size_t num_slots, bool has_disk)
      : has_disk_(has_disk) {
    const bool has_counts = options.admission.kind == Admission::Kind::kCounter;
    // Rows that no key has yet, or any more: an eighth. Counts that do not fit into a row's info.
    // The index: 4 bytes a slot, in parts that double when 94% are taken; 7 bytes a key on average
    // over the shards. A filter's index: entries of 16 bytes, in parts that double when 0.4 to 0.7
    // of them are taken. A row that is free has its number in a list. While keys are chosen to go,
    // two candidates for each. Rows to hand out, with 8 bytes more than in the table: an eighth,
    // and those of an eviction; while the list grows, its former part.
    const int64_t handed_out_bytes = bytes_per_row + 8;
    per_key_ = (bytes_per_row + WideCounts::kMostBytesPerRow) * 9 / 8 + kIndexBytes +
               (has_counts ? kCountBytes : 0) + 2 * static_cast<int64_t>(sizeof(int64_t)) +
               kLogBytes +
               (options.budget.hands_out == HandsOut::kNothing
                    ? 0
                    : static_cast<int64_t>((0.25 + 1 - options.budget.keep) * handed_out_bytes)) +
               static_cast<int64_t>(2 * (1 - options.budget.keep) * sizeof(EvictionCandidate));
    // For each array a page that is not full, and one that is touched ahead; of growing parts of
    // indexes the former ones; the parts of lists that threads make.
    fixed_ = static_cast<int64_t>(2 + num_slots) * 2 * kLargePage + 6 * kLargePage +
             options.initial.matrix_rows * bytes_per_row;
    if (options.admission.kind == Admission::Kind::kBloom) {
      fixed_ += options.admission.num_counters * options.admission.counter_bytes;
    }
  }

  int64_t NumKeys(int64_t max_bytes) const {
    return std::max<int64_t>(0, max_bytes - fixed_ - (has_disk_ ? StoreBytes(max_bytes) : 0)) /
           per_key_;
  }
  // The fewest bytes that have so many keys; with a disk one more at most.
  int64_t BytesFor(int64_t num_keys) const {
    const int64_t bytes = fixed_ + num_keys * per_key_;
    // A quarter of all: see StoreBytes.
    return has_disk_ ? bytes + StoreBytes(bytes + bytes / 3 + 2) : bytes;
  }
  // The rows beside those of keys.
  static int64_t MoreRows(int64_t num_keys) { return num_keys / 8; }

 private:
  static constexpr int64_t kIndexBytes = 10, kCountBytes = 64;
  static constexpr int64_t kLogBytes = 12;  // of half a key that was erased, in a list that doubles

  int64_t per_key_, fixed_;
  const bool has_disk_;
};

}  // namespace group_embedding
