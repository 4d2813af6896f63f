// Budget: how many keys a keyed table may have, and which of them go when it would have more.
//
// A table with a budget counts the new keys of a call before any of them gets a row. If they would
// exceed the budget, the table first evicts down to its low mark. What goes is exactly the lowest
// in the order below; a key's place in it depends on the key's own row alone, so the same keys go
// for any number of threads, and on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"
#include "core/owner.h"
#include "table/initial_values.h"
#include "table/keyed_rows.h"

namespace group_embedding {

// What is compared first. Among equals the one trained in the earlier step goes first; then hashes
// of the keys decide.
enum class EvictFirst : int32_t {
  kLeastRecent = 0,       // the step in which the key was trained last
  kLeastFrequent = 1,     // how often it was trained
  kDecayedFrequency = 2,  // as kLeastFrequent, of counts that are halved every decay_steps
  kSmallestNorm = 3,      // the L2 norm of its row
  kLowestScore = 4,       // what the user says, in the slot kScoreSlot; 0 for a new key
  kEarliest = 5,          // the minute in which the key was trained last, in kTimeSlot
};

// What is kept of evicted keys until TakeEvicted.
enum class HandsOut : int32_t { kNothing = 0, kKeys = 1, kRows = 2 };

struct Budget {
  int64_t max_keys = 0;   // of all ranks if num_shares > 0, else of this table; 0: no limit
  int64_t max_bytes = 0;  // of this table, from which max_keys follows; 0: no limit
  double keep = 0.9;      // the low mark, as a share of the budget
  EvictFirst first = EvictFirst::kLeastRecent;
  int64_t decay_steps = 0;  // of kDecayedFrequency
  int64_t safe_steps = 0;   // a key that got its row in one of so many last steps does not go
  HandsOut hands_out = HandsOut::kNothing;
  // 0: the table has one budget. Else the keys of all ranks are divided by their owner hash into so
  // many shares, a multiple of num_ranks, each with a budget of its own: with max_keys the same
  // keys go on any number of ranks that divides num_shares.
  int64_t num_shares = 0;
  int64_t rank = 0, num_ranks = 1;

  bool is_given() const { return max_keys > 0 || max_bytes > 0; }
  int64_t shares_of_rank() const { return num_shares == 0 ? 1 : num_shares / num_ranks; }
  // The share of a key of this rank, from 0 to shares_of_rank() - 1.
  int64_t ShareOf(int64_t key) const {
    return num_shares == 0 ? 0 : OwnerOfKey(key, num_shares) - rank * shares_of_rank();
  }
  // How many keys a share may have, if the table may have `table_keys`.
  int64_t MaxKeysOfShare(int64_t share, int64_t table_keys) const {
    if (num_shares == 0) return table_keys;
    if (max_bytes > 0) return Part(table_keys, share, shares_of_rank());
    return Part(max_keys, share + rank * shares_of_rank(), num_shares);
  }
  // How many keys are left of a share that is full, once so many new ones are given rows.
  int64_t NumKept(int64_t max_keys_of_share, int64_t num_new) const {
    const auto low = static_cast<int64_t>(keep * static_cast<double>(max_keys_of_share));
    const int64_t beside_new = max_keys_of_share > num_new ? max_keys_of_share - num_new : 0;
    return low < beside_new ? low : beside_new;
  }
  // How many keys go of a share that would have `num_keys`: down to the low mark if it is full.
  int64_t NumToGo(int64_t num_keys, int64_t max_keys_of_share) const {
    return num_keys <= max_keys_of_share ? 0 : num_keys - NumKept(max_keys_of_share, 0);
  }
  // How many evicted keys may wait to be taken where the memory for them is limited: an eighth of
  // all, and those of an eviction.
  int64_t MostHandedOut(int64_t table_keys) const {
    return table_keys / 8 + table_keys - NumKept(table_keys, 0);
  }

 private:
  static int64_t Part(int64_t total, int64_t i, int64_t num_parts) {
    return total / num_parts + (i < total % num_parts ? 1 : 0);
  }
};

// The part of a budget of bytes that is for the memory of a store of rows on disk.
inline int64_t StoreBytes(int64_t max_bytes) {
  return std::min(int64_t{128} << 20, std::max(int64_t{2} << 20, max_bytes / 4));
}
// The memory that such a store is given; it takes up to twice that for a while.
inline int64_t MemoryOfStore(const Budget& budget) {
  return budget.max_bytes == 0 ? int64_t{64} << 20 : StoreBytes(budget.max_bytes) / 2;
}

// What a table has done to keep its budget.
struct BudgetCounts {
  int64_t max_keys = 0;           // that the table may have now; 0: it has no budget
  int64_t num_evicted = 0;        // keys, in the table's life
  int64_t num_without_place = 0;  // occasions on which a new key found no place
  int64_t num_missed = 0;         // evicted keys that nobody took in time
};

// Slots that a table has for its budget: of one float per row.
inline constexpr char kScoreSlot[] = "budget/score";  // kLowestScore
inline constexpr char kBornSlot[] = "budget/born";    // safe_steps: the bits of BornMark()

// The step in which a key got its row, as a slot has it; 0: not known.
GROUP_EMBEDDING_HOST_DEVICE uint32_t BornMark(int64_t step) {
  const int64_t most = 0xffffffff;
  return step < 0 ? 0 : static_cast<uint32_t>(step < most ? step + 1 : most);
}
GROUP_EMBEDDING_HOST_DEVICE bool IsSafe(uint32_t born, int64_t step, int64_t safe_steps) {
  return born != 0 && step - (static_cast<int64_t>(born) - 1) < safe_steps;
}

// A count as of `step`, of a key trained last in step `version`: halved once per decay_steps.
GROUP_EMBEDDING_HOST_DEVICE int64_t DecayedCount(int64_t count, int64_t version, int64_t step,
                                                 int64_t decay_steps) {
  if (decay_steps <= 0 || version < 0 || step <= version) return count;
  const int64_t halvings = step / decay_steps - version / decay_steps;
  return halvings > 62 ? 0 : count >> halvings;
}

// Where a key is in the order of eviction: the lowest goes first.
struct EvictionOrder {
  uint64_t score, version, hash;
};

GROUP_EMBEDDING_HOST_DEVICE bool operator<(const EvictionOrder& a, const EvictionOrder& b) {
  if (a.score != b.score) return a.score < b.score;
  return a.version != b.version ? a.version < b.version : a.hash < b.hash;
}

namespace eviction_order {

// Numbers as unsigned ones of the same order.
GROUP_EMBEDDING_HOST_DEVICE uint64_t OfInteger(int64_t x) {
  return static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;
}
// NaN is above all numbers, and -0 is 0.
GROUP_EMBEDDING_HOST_DEVICE uint64_t OfFloat(float x) {
  if (x != x) return ~uint64_t{0};
  x += 0.0f;
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = uint32_t{1} << 31;
  return (bits & sign) != 0 ? ~bits : bits | sign;
}

// The square of a row's norm as an unsigned number of the same order. NaN is above all numbers.
GROUP_EMBEDDING_HOST_DEVICE uint64_t OfSquares(double sum) {
  uint64_t bits;
  memcpy(&bits, &sum, sizeof(bits));
  return sum != sum ? ~uint64_t{0} : bits;
}

}  // namespace eviction_order
}  // namespace group_embedding
