// The insertion of given rows into a table that has rows in a memory and, below it, on disk. Once
// the memory is full, new keys get their rows on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/status.h"
#include "table/disk/rows_on_disk.h"
#include "table/embedding_table.h"

namespace group_embedding {

// The memory above the disk. The functions are called in this order, and `find` again
// if `insert` fails.
struct UpperTier {
  struct Space {
    int64_t num_free;  // rows
    int64_t clock;     // the batch as of which rows are written to disk
  };

  // Writes [num_keys] the row of each key, or kNoRow.
  std::function<void(const std::vector<int64_t>& keys, int64_t* rows)> find;
  std::function<Space()> space;
  // Inserts rows.keys[i] for each i of `chosen`.
  std::function<Status(const KeyedRows& rows, const std::vector<size_t>& chosen)> insert;
  // Drops the counts of keys whose rows were written to disk: they are admitted.
  std::function<void(const std::vector<int64_t>& keys)> drop_counts;
};

// As EmbeddingTable::Insert of `table`, `at_once` rows at a time. No tier has an eviction to
// complete. Exclusive.
Status InsertInTiers(const EmbeddingTable& table, const KeyedRowsView& given, int64_t at_once,
                     const UpperTier& memory, RowsOnDisk* disk);

}  // namespace group_embedding
