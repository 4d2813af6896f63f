// RowsOfNoKey: what keys read and train that found no place in a table's budget.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <unordered_map>

#include "table/free_rows.h"
#include "table/host/host_shards.h"

namespace group_embedding {

// The rows are free again once the batches in flight have ended.
class RowsOfNoKey {
 public:
  // num_left: how many rows may be lent, of all who lend them at the time.
  RowsOfNoKey(HostShards* table, std::atomic<int64_t>* num_left)
      : table_(*table), num_left_(num_left) {}
  ~RowsOfNoKey() {
    for (const auto& [key, row] : rows_) {
      try {
        table_.store().Retire(row);
      } catch (
          const std::bad_alloc&) {  // nobody will use the row again, which is better than to end
      }
    }
  }
  RowsOfNoKey(const RowsOfNoKey&) = delete;
  RowsOfNoKey& operator=(const RowsOfNoKey&) = delete;

  // A row with the initial values of the key. If they are a row of a matrix, that row: it is never
  // updated.
  int64_t RowFor(int64_t key) {
    RowStore& store = table_.store();
    if (table_.options().initial.matrix_rows > 0) return store.DefaultRow(key);
    if (const auto found = rows_.find(key); found != rows_.end()) return found->second;
    if (num_left_ == nullptr || num_left_->fetch_sub(1) <= 0) return store.DefaultRow(key);
    FreeRows free(store, 1);
    const int64_t row = free.Next();
    if (row == kNoRow) return store.DefaultRow(key);
    FreeRows::Unused unused(&free, row);
    store.StartWithoutKey(row, key);
    rows_.emplace(key, row);
    unused.Keep();
    return row;
  }

 private:
  HostShards& table_;
  std::atomic<int64_t>* const num_left_;
  std::unordered_map<int64_t, int64_t> rows_;
};

}  // namespace group_embedding
