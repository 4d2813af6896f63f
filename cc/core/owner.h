// Which rank stores a row: one statement, for the host and the device, of how tables are spread.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

enum class Spread : int32_t {
  kMod = 0,      // row r on rank r mod num_ranks, there as local row r / num_ranks
  kHash = 1,     // a key on the rank that its hash says; there it is the same key
  kOneRank = 2,  // the whole table on one rank; ids and keys are there what they are here
};

// How one table is spread over ranks.
struct Placement {
  Spread spread = Spread::kMod;
  int32_t rank = 0;  // of kOneRank
};

// The finalizer of SplitMix64, by its author's choice of constants (S. Vigna). It shares no bits
// with the hash by which tables find keys (table/initial_values.h): the keys of one rank are spread
// over its table as all keys would be.
GROUP_EMBEDDING_HOST_DEVICE uint64_t OwnerHash(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key) + 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

// The rank, 0 to num_ranks - 1, that stores a key: the hash's upper half, scaled.
GROUP_EMBEDDING_HOST_DEVICE int64_t OwnerOfKey(int64_t key, int64_t num_ranks) {
  return static_cast<int64_t>((OwnerHash(key) >> 32) * static_cast<uint64_t>(num_ranks) >> 32);
}

// Whether some key may be of rank `a` of `num_a` and, where there are `num_b`, of rank `b`: the
// hashes of one rank are an interval.
GROUP_EMBEDDING_HOST_DEVICE bool MayShareKeys(int64_t a, int64_t num_a, int64_t b, int64_t num_b) {
  return a * num_b < (b + 1) * num_a && b * num_a < (a + 1) * num_b;
}

// The rank that stores an id, or key, of a table.
GROUP_EMBEDDING_HOST_DEVICE int64_t OwnerOf(const Placement& placement, int64_t id,
                                            int64_t num_ranks) {
  if (placement.spread == Spread::kMod) return id % num_ranks;
  return placement.spread == Spread::kHash ? OwnerOfKey(id, num_ranks) : placement.rank;
}

// What its owner calls it.
GROUP_EMBEDDING_HOST_DEVICE int64_t LocalIdOf(const Placement& placement, int64_t id,
                                              int64_t num_ranks) {
  return placement.spread == Spread::kMod ? id / num_ranks : id;
}

}  // namespace group_embedding
