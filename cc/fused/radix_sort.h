// Radix sorts of 64-bit entries on the host, by some of their bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace group_embedding {

constexpr int kMaxDigitBits = 11;  // 2,048 counters: half of a first-level cache
// Up to here std::sort is faster than clearing the counters.
constexpr int64_t kFewEntries = 64;
// From here on entries are split by their upper bits first: parts fit a second-level cache.
constexpr int64_t kManyEntries = 1 << 15;
constexpr int kSplitBits = 8;
constexpr int64_t kBuckets = int64_t{1} << kSplitBits;

// A radix sort's digits, all of as many bits.
struct Digits {
  explicit Digits(int bits)
      : count((bits + kMaxDigitBits - 1) / kMaxDigitBits),
        bits(count == 0 ? 0 : (bits + count - 1) / count) {}
  const int count, bits;
};

// Writes entries in the order of one digit, stable. `count` and `move` each hand all of them, in
// the same order, to the function that they are given; what lies below `shift` may differ.
template <typename Count, typename Move>
void Distribute(int shift, int bits, uint64_t* to, const Count& count, const Move& move) {
  uint32_t offsets[1 << kMaxDigitBits];
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  std::fill(offsets, offsets + mask + 1, 0);
  count([&](uint64_t entry) { ++offsets[entry >> shift & mask]; });
  uint32_t total = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    const uint32_t here = offsets[digit];
    offsets[digit] = total;
    total += here;
  }
  move([&](uint64_t entry) { to[offsets[entry >> shift & mask]++] = entry; });
}

// Distributes by each of `num_digits` digits from `shift` on, the lowest first, from one array to
// the other and back; returns the one that has the result.
inline uint64_t* DistributeByDigits(uint64_t* from, uint64_t* to, int64_t count, int shift,
                                    int digit_bits, int num_digits) {
  for (; num_digits > 0; --num_digits, shift += digit_bits, std::swap(from, to)) {
    const auto for_each = [=](const auto& use) {
      for (int64_t i = 0; i < count; ++i) use(from[i]);
    };
    Distribute(shift, digit_bits, to, for_each, for_each);
  }
  return from;
}

inline uint64_t* Resized(std::vector<uint64_t>* spare, int64_t count) {
  if (static_cast<int64_t>(spare->size()) < count) spare->resize(count);
  return spare->data();
}

// A radix sort by `bits` bits from `shift` on, stable where the rest is ascending already.
inline void SortByDigits(uint64_t* from, int64_t count, int shift, int bits,
                         std::vector<uint64_t>* spare) {
  if (count <= kFewEntries) return std::sort(from, from + count);
  const Digits digits(bits);
  uint64_t* sorted =
      DistributeByDigits(from, Resized(spare, count), count, shift, digits.bits, digits.count);
  if (sorted != from) std::memcpy(from, sorted, count * sizeof(uint64_t));
}

// Sorts by the lowest `bits` bits, the upper eight of them first, in place: an entry goes where it
// belongs, and the one that was there next (American flag sort; McIlroy, Bostic, McIlroy 1993).
inline void SortInPlace(uint64_t* from, int64_t count, int bits, std::vector<uint64_t>* spare) {
  if (count < kManyEntries) return SortByDigits(from, count, 0, bits, spare);
  if (bits == 0) return;
  const int shift = std::max(bits - kSplitBits, 0);
  int64_t counts[kBuckets] = {}, next[kBuckets], ends[kBuckets];
  auto bucket_of = [=](uint64_t entry) { return entry >> shift & (kBuckets - 1); };
  for (int64_t i = 0; i < count; ++i) ++counts[bucket_of(from[i])];
  int64_t total = 0;
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    next[bucket] = total;
    ends[bucket] = total += counts[bucket];
  }
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    while (next[bucket] < ends[bucket]) {
      uint64_t& entry = from[next[bucket]];
      std::swap(entry, from[next[bucket_of(entry)]++]);
    }
  }
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    SortInPlace(from + ends[bucket] - counts[bucket], counts[bucket], shift, spare);
  }
}

}  // namespace group_embedding
