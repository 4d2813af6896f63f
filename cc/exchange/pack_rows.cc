#include "exchange/pack_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/rows.h"

namespace group_embedding {
namespace {

constexpr int64_t kWordBytes = 4;

// The words that `bytes` take, filled up to 16 bytes.
int64_t WordsOf(int64_t bytes) { return (bytes + 15) / 16 * 16 / kWordBytes; }

// The rows of one table for one rank.
struct Block {
  int64_t table;
  int64_t first;    // its first row in the table's matrix
  int64_t count;    // of rows
  int64_t rows_at;  // in the packed buffer, in words
  int64_t bits_at;
  int64_t end;
};

std::vector<Block> FindBlocks(const RowParts& parts) {
  std::vector<Block> blocks;
  std::vector<int64_t> first(parts.num_tables, 0);
  int64_t at = 0;
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    for (int64_t t = 0; t < parts.num_tables; ++t) {
      const int64_t count = parts.counts[n * parts.num_tables + t];
      const int64_t bits_at = at + WordsOf(count * parts.dims[t] * SizeOf(parts.wire[t]));
      const int64_t end = bits_at + WordsOf((count + 31) / 32 * kWordBytes);
      blocks.push_back({t, first[t], count, at, bits_at, end});
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
  const int64_t cost = 10 + blocks.back().end / num_blocks;
  parallel_for(num_blocks, cost, [&](int64_t begin, int64_t end) {
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

void Convert(const void* from, DataType from_type, int64_t count, float scale, void* to,
             DataType to_type) {
  ForDataType(from_type, [&](auto* from_null) {
    ForDataType(to_type, [&](auto* to_null) {
      using From = const std::remove_pointer_t<decltype(from_null)>;
      Convert(static_cast<From*>(from), count, scale, static_cast<decltype(to_null)>(to));
    });
  });
}

bool IsPresent(const uint32_t* bits, int64_t row) { return bits[row / 32] >> (row % 32) & 1; }

int64_t NumPresent(const uint32_t* bits, int64_t count) {
  int64_t present = 0;
  for (int64_t w = 0; w < (count + 31) / 32; ++w) present += __builtin_popcount(bits[w]);
  return present;
}

void SetAllPresent(uint32_t* bits, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) {
    bits[i / 32] = count - i < 32 ? (uint32_t{1} << (count - i)) - 1 : ~uint32_t{0};
  }
}

}  // namespace

void PackedSplits(const RowParts& parts, int64_t* splits) {
  const std::vector<Block> blocks = FindBlocks(parts);
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    const Block* of_rank = blocks.data() + n * parts.num_tables;
    splits[n] = of_rank[parts.num_tables - 1].end - of_rank[0].rows_at;
  }
}

void PackRows(const RowParts& parts, const RowSlices* slices, float scale, void* packed,
              const ParallelFor& parallel_for) {
  uint32_t* words = static_cast<uint32_t*>(packed);
  ForBlocks(FindBlocks(parts), parallel_for, [&](const Block& block, int64_t) {
    const RowSlices& from = slices[block.table];
    const DataType wire = parts.wire[block.table];
    const int64_t dim = parts.dims[block.table];
    const char* source = static_cast<const char*>(from.rows);
    char* rows = reinterpret_cast<char*>(words + block.rows_at);
    uint32_t* bits = words + block.bits_at;
    std::fill(words + block.rows_at, words + block.end, 0);
    if (from.all) {
      SetAllPresent(bits, block.count);
      Convert(source + block.first * dim * SizeOf(from.dtype), from.dtype, block.count * dim, scale,
              rows, wire);
      return;
    }
    const int64_t* end = from.indices + from.num_rows;
    const int64_t* at =
        std::lower_bound(const_cast<const int64_t*>(from.indices), end, block.first);
    for (; at < end && *at < block.first + block.count; ++at) {
      const int64_t row = *at - block.first;
      bits[row / 32] |= uint32_t{1} << (row % 32);
      Convert(source + (at - from.indices) * dim * SizeOf(from.dtype), from.dtype, dim, scale,
              rows + row * dim * SizeOf(wire), wire);
    }
  });
}

void CountPresentRows(const RowParts& parts, const void* packed, int64_t* num_rows) {
  const uint32_t* words = static_cast<const uint32_t*>(packed);
  std::fill_n(num_rows, parts.num_tables, 0);
  for (const Block& block : FindBlocks(parts)) {
    num_rows[block.table] += NumPresent(words + block.bits_at, block.count);
  }
}

void UnpackRows(const RowParts& parts, const void* packed, const RowSlices* slices,
                const ParallelFor& parallel_for) {
  const uint32_t* words = static_cast<const uint32_t*>(packed);
  const std::vector<Block> blocks = FindBlocks(parts);
  std::vector<int64_t> first(blocks.size());  // among the rows of its table that are present
  std::vector<int64_t> next(parts.num_tables, 0);
  for (size_t b = 0; b < blocks.size(); ++b) {
    first[b] = next[blocks[b].table];
    next[blocks[b].table] += NumPresent(words + blocks[b].bits_at, blocks[b].count);
  }
  ForBlocks(blocks, parallel_for, [&](const Block& block, int64_t b) {
    const RowSlices& to = slices[block.table];
    const DataType wire = parts.wire[block.table];
    const int64_t dim = parts.dims[block.table];
    const char* rows = reinterpret_cast<const char*>(words + block.rows_at);
    const uint32_t* bits = words + block.bits_at;
    int64_t place = first[b];
    for (int64_t begin = 0; begin < block.count;) {
      if (!IsPresent(bits, begin)) {
        ++begin;
        continue;
      }
      int64_t end = begin;
      while (end < block.count && IsPresent(bits, end)) ++end;
      Convert(rows + begin * dim * SizeOf(wire), wire, (end - begin) * dim, 1.0f,
              static_cast<char*>(to.rows) + place * dim * SizeOf(to.dtype), to.dtype);
      for (; begin < end; ++begin, ++place) {
        if (to.indices != nullptr) to.indices[place] = block.first + begin;
      }
    }
  });
}

}  // namespace group_embedding
