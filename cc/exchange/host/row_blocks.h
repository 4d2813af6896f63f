// The blocks of packed rows (pack_rows.h), and the conversion of rows from type to type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/rows.h"
#include "exchange/host/pack_rows.h"

namespace group_embedding {

inline constexpr int64_t kWordBytes = 4;

// The number of words for `bytes` bytes, padded to 16 bytes.
inline int64_t WordsOf(int64_t bytes) { return (bytes + 15) / 16 * 16 / kWordBytes; }

// The rows of one table for one rank.
struct Block {
  int64_t rank;
  int64_t table;
  int64_t first;    // its first row in the table's matrix
  int64_t count;    // the number of rows
  int64_t rows_at;  // in the rank's part, in words
  int64_t bits_at;
  int64_t end;
};

// [num_ranks * num_tables]
inline std::vector<Block> FindBlocks(const RowParts& parts) {
  std::vector<Block> blocks;
  std::vector<int64_t> first(parts.num_tables, 0);
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    int64_t at = 0;
    for (int64_t t = 0; t < parts.num_tables; ++t) {
      const int64_t count = parts.counts[n * parts.num_tables + t];
      const int64_t bits_at = at + WordsOf(count * parts.dims[t] * SizeOf(parts.wire[t]));
      const int64_t end = bits_at + WordsOf((count + 31) / 32 * kWordBytes);
      blocks.push_back({n, t, first[t], count, at, bits_at, end});
      first[t] += count;
      at = end;
    }
  }
  return blocks;
}

template <typename Body>
void ForBlocks(const std::vector<Block>& blocks, const ParallelFor& parallel_for, Body&& body) {
  if (blocks.empty()) return;
  const int64_t num_blocks = static_cast<int64_t>(blocks.size());
  int64_t words = 0;
  for (const Block& block : blocks) words += block.end - block.rows_at;
  parallel_for(num_blocks, 10 + words / num_blocks, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(blocks[b], b);
  });
}

template <typename From, typename To>
void Convert(const From* from, int64_t count, float scale, To* to) {
  if (std::is_same_v<From, To> && scale == 1.0f) {
    std::memcpy(to, from, count * sizeof(To));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = FromFloat<To>(scale * ToFloat(from[i]));
}

// Calls `body` with null pointers to two types.
template <typename Body>
void ForDataTypes(DataType from, DataType to, const Body& body) {
  ForDataType(from, [&](auto* from_null) {
    ForDataType(to, [&](auto* to_null) { body(from_null, to_null); });
  });
}

inline void Convert(const void* from, DataType from_type, int64_t count, float scale, void* to,
                    DataType to_type) {
  ForDataTypes(from_type, to_type, [&](auto* from_null, auto* to_null) {
    using From = const std::remove_pointer_t<decltype(from_null)>;
    Convert(static_cast<From*>(from), count, scale, static_cast<decltype(to_null)>(to));
  });
}

// Slices [slice, slice + count) to [count, dim] from `to` on.
template <typename From, typename To>
void ConvertRows(const RowSlices& from, int64_t slice, int64_t count, int64_t dim, float scale,
                 To* to) {
  constexpr int64_t kPrefetchRows = 32;
  const From* rows = static_cast<const From*>(from.rows);
  if (from.ids == nullptr) return Convert(rows + slice * dim, count * dim, scale, to);
  const int64_t* ids = from.ids + slice;
  for (int64_t i = 0; i < count; ++i) {
    // Prefetches beyond `count` too, since the next call converts those rows.
    const int64_t ahead = std::min(i + kPrefetchRows, from.num_rows - slice - 1);
    PrefetchRow(rows + ids[ahead] * dim, dim);
    Convert(rows + ids[i] * dim, dim, scale, to + i * dim);
  }
}

inline void ConvertRows(const RowSlices& from, int64_t slice, int64_t count, int64_t dim,
                        float scale, void* to, DataType to_type) {
  ForDataTypes(from.dtype, to_type, [&](auto* from_null, auto* to_null) {
    using From = std::remove_pointer_t<decltype(from_null)>;
    ConvertRows<From>(from, slice, count, dim, scale, static_cast<decltype(to_null)>(to));
  });
}

// As ConvertRows, rounding each element to `wire` first.
inline void ConvertRowsBy(DataType wire, const RowSlices& from, int64_t slice, int64_t count,
                          int64_t dim, float scale, char* to, DataType to_type) {
  if (wire == from.dtype && wire == to_type) {
    ConvertRows(from, slice, count, dim, scale, to, to_type);
    return;
  }
  const int64_t rows_at_once = std::max<int64_t>(1, 1024 / dim);
  std::vector<float> floats(rows_at_once * dim);
  RowSlices rounded = {floats.data(), wire, /*all=*/true, nullptr, rows_at_once};
  for (int64_t i = 0; i < count; i += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, count - i);
    ConvertRows(from, slice + i, rows, dim, scale, rounded.rows, wire);
    ConvertRows(rounded, 0, rows, dim, 1.0f, to + i * dim * SizeOf(to_type), to_type);
  }
}

inline bool IsPresent(const uint32_t* bits, int64_t row) {
  return bits[row / 32] >> (row % 32) & 1;
}

inline int64_t NumPresent(const uint32_t* bits, int64_t count) {
  int64_t present = 0;
  for (int64_t w = 0; w < count / 32; ++w) present += __builtin_popcount(bits[w]);
  for (int64_t i = count / 32 * 32; i < count; ++i) present += IsPresent(bits, i);
  return present;
}

}  // namespace group_embedding
