// The placement of tables on ranks: which rank owns a row or a key, for the host and the device.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

enum class PlacementKind : int32_t {
  kMod = 0,      // row r on rank r mod num_ranks, there as local row r / num_ranks
  kHash = 1,     // a key on the rank that its hash says; there it is the same key
  kOneRank = 2,  // the whole table on one rank; ids and keys are there what they are here
  kColumns = 3,  // some columns of all rows on each rank, as many on each: a row has no one owner
};

// How one table is spread over ranks.
struct Placement {
  PlacementKind kind = PlacementKind::kMod;
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

// Who stores an id, or key, of a table, and what that rank calls it.
struct Owner {
  int64_t rank, local_id;
};

// Finds owners of many ids. A division takes longer than all else that is done with an id, so it is
// a multiplication by the reciprocal, rounded up: right as long as id * num_ranks < 2^64. Not for
// kColumns.
class Owners {
 public:
  Owners(const Placement& placement, int64_t num_ranks)
      : placement_(placement), num_ranks_(num_ranks), reciprocal_(~uint64_t{0} / num_ranks + 1) {}

  Owner Of(int64_t id) const {
    if (placement_.kind == PlacementKind::kHash) return {OwnerOfKey(id, num_ranks_), id};
    if (placement_.kind == PlacementKind::kOneRank) return {placement_.rank, id};
    const int64_t local_id = num_ranks_ == 1 ? id : TimesReciprocal(id);
    return {id - local_id * num_ranks_, local_id};
  }

 private:
  int64_t TimesReciprocal(int64_t id) const {
    return static_cast<int64_t>(static_cast<unsigned __int128>(id) * reciprocal_ >> 64);
  }

  const Placement placement_;
  const int64_t num_ranks_;
  const uint64_t reciprocal_;  // 2^64 / num_ranks; 0 of one rank
};

}  // namespace group_embedding
