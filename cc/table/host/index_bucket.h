// IndexBucket: a cache line of an index: 15 slots of 32 bits, compared together.
//
// A slot has a row's number in its low bits and, above, as many low bits of the hash of the row's
// key as fit; the key itself is read from the row. A free slot is 0: row 0 is no key's.
#pragma once

#include <emmintrin.h>

#include <cstdint>

namespace group_embedding {

// How a part's slots are divided.
class SlotLayout {
 public:
  explicit SlotLayout(int row_bits) : row_bits_(row_bits) {}

  int row_bits() const { return row_bits_; }
  bool Fits(int64_t row) const { return row >> row_bits_ == 0; }
  uint32_t row_mask() const { return static_cast<uint32_t>((uint64_t{1} << row_bits_) - 1); }
  uint32_t TagOf(uint64_t hash) const { return static_cast<uint32_t>(hash << row_bits_); }
  uint32_t SlotOf(int64_t row, uint64_t hash) const {
    return TagOf(hash) | static_cast<uint32_t>(row);
  }
  int64_t RowOf(uint32_t slot) const { return slot & row_mask(); }

 private:
  int row_bits_;
};

struct alignas(64) IndexBucket {
  static constexpr int kSlots = 15;

  uint32_t slots[kSlots];
  // How many keys whose search begins here, or before, are in a later bucket. 0: a search ends.
  uint32_t num_passed;

  // A bit for each slot that is not free and has this tag.
  uint32_t Find(SlotLayout layout, uint64_t hash) const {
    const __m128i tag = _mm_set1_epi32(static_cast<int>(layout.TagOf(hash)));
    const __m128i mask = _mm_set1_epi32(static_cast<int>(~layout.row_mask()));
    const __m128i zero = _mm_setzero_si128();
    return Compare([&](__m128i slots) {
      const __m128i same = _mm_cmpeq_epi32(_mm_and_si128(slots, mask), tag);
      return _mm_andnot_si128(_mm_cmpeq_epi32(slots, zero), same);
    });
  }
  // A bit for each slot that is equal to `slot`.
  uint32_t FindSlot(uint32_t slot) const {
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(slot));
    return Compare([&](__m128i slots) { return _mm_cmpeq_epi32(slots, wanted); });
  }

 private:
  template <typename Test>
  uint32_t Compare(const Test& test) const {
    const auto* four = reinterpret_cast<const __m128i*>(slots);
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
      const __m128i passed = test(_mm_loadu_si128(four + i));
      bits |= static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(passed))) << (4 * i);
    }
    return bits & ((1 << kSlots) - 1);  // the last of the 16 words is no slot
  }
};
static_assert(sizeof(IndexBucket) == 64);

}  // namespace group_embedding
