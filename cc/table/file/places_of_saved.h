// PlacesOfSaved: which of the keys that were saved have a place in the budget of the table that is
// restored: those that one insertion of all would keep.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "table/embedding_table.h"
#include "table/lowest_keys.h"

namespace group_embedding {

// Rows are added in passes, the same ones in each. The first counts the keys of each share; where
// all have a place, it is the only one. The second finds those that go, in the memory of these.
class PlacesOfSaved {
 public:
  // `table`: with a budget; it has the slots that rows have, and the time to go on at.
  explicit PlacesOfSaved(EmbeddingTable* table);

  // Whether rows have to be added once more.
  bool NextPass();
  // Rows of the table's keys, with slots in its order; each key once.
  void Add(const KeyedRows& rows);
  // After the last pass.
  std::unordered_set<int64_t> TakeWithoutPlace();

 private:
  struct Share {
    int64_t num_keys = 0, max_keys = 0;
    std::unique_ptr<LowestKeys> lowest;   // null: all have a place
    std::vector<EvictionCandidate> safe;  // new keys, which go after all others
  };

  bool IsSafe(const KeyedRows& rows, size_t i) const;

  EmbeddingTable* const table_;
  const Budget& budget_;
  int score_slot_ = -1, born_slot_ = -1;  // -1: the table has none
  std::vector<Share> shares_;
  int num_passes_ = 0;
};

}  // namespace group_embedding
