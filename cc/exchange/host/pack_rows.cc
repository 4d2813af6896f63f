#include "exchange/host/pack_rows.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "exchange/host/row_blocks.h"

namespace group_embedding {
namespace {

void SetAllPresent(uint32_t* bits, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) {
    bits[i / 32] = count - i < 32 ? (uint32_t{1} << (count - i)) - 1 : ~uint32_t{0};
  }
}

// The slices [begin, end) that are rows of a block.
struct Range {
  int64_t begin, end;
};

Range SlicesIn(const RowSlices& slices, const Block& block) {
  const int64_t end = block.first + block.count;
  if (slices.all) return {block.first, end};
  const int64_t *indices = slices.indices, *last = indices + slices.num_rows;
  return {std::lower_bound(indices, last, block.first) - indices,
          std::lower_bound(indices, last, end) - indices};
}

// Calls `body(slice, row, count)` for each run of slices with consecutive rows of a block. row:
// relative to the block's first row.
template <typename Body>
void ForRuns(const RowSlices& slices, const Block& block, Body&& body) {
  const Range range = SlicesIn(slices, block);
  for (int64_t begin = range.begin, end; begin < range.end; begin = end) {
    end = slices.all ? range.end : begin + 1;
    while (end < range.end && slices.indices[end] == slices.indices[end - 1] + 1) ++end;
    const int64_t row = slices.all ? begin : slices.indices[begin];
    body(begin, row - block.first, end - begin);
  }
}

// The first slice of each block's present rows.
std::vector<int64_t> FirstPresent(const RowParts& parts, const int64_t* present) {
  std::vector<int64_t> first(parts.num_ranks * parts.num_tables, 0);
  for (size_t b = parts.num_tables; b < first.size(); ++b) {
    first[b] = first[b - parts.num_tables] + present[b - parts.num_tables];
  }
  return first;
}

char* RowOf(const RowSlices& slices, int64_t slice, int64_t dim) {
  return static_cast<char*>(slices.rows) + slice * dim * SizeOf(slices.dtype);
}

void SetIndices(const RowSlices& slices, int64_t slice, int64_t row, int64_t count) {
  if (slices.indices == nullptr) return;
  std::iota(slices.indices + slice, slices.indices + slice + count, row);
}

}  // namespace

void PackedSplits(const RowParts& parts, int64_t* splits) {
  const std::vector<Block> blocks = FindBlocks(parts);
  for (int64_t n = 0; n < parts.num_ranks; ++n)
    splits[n] = blocks[(n + 1) * parts.num_tables - 1].end;
}

std::vector<char*> PartsIn(const RowParts& parts, void* packed) {
  return PartsWithout(parts, /*rank=*/-1, packed);
}

int64_t WordsWithout(const RowParts& parts, int64_t rank) {
  std::vector<int64_t> splits(parts.num_ranks);
  PackedSplits(parts, splits.data());
  if (rank >= 0) splits[rank] = 0;
  return std::accumulate(splits.begin(), splits.end(), int64_t{0});
}

std::vector<char*> PartsWithout(const RowParts& parts, int64_t rank, void* packed) {
  std::vector<int64_t> splits(parts.num_ranks);
  PackedSplits(parts, splits.data());
  std::vector<char*> begins;
  char* at = static_cast<char*>(packed);
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    begins.push_back(n == rank ? nullptr : at);
    if (n != rank) at += splits[n] * kWordBytes;
  }
  return begins;
}

void PackRows(const RowParts& parts, const RowSlices* slices, float scale, char* const* packed,
              const ParallelFor& parallel_for) {
  ForBlocks(FindBlocks(parts), parallel_for, [&](const Block& block, int64_t) {
    if (packed[block.rank] == nullptr) return;
    const RowSlices& from = slices[block.table];
    const DataType wire = parts.wire[block.table];
    const int64_t dim = parts.dims[block.table];
    uint32_t* words = reinterpret_cast<uint32_t*>(packed[block.rank]);
    char* rows = reinterpret_cast<char*>(words + block.rows_at);
    uint32_t* bits = words + block.bits_at;
    const int64_t row_words = (block.count * dim * SizeOf(wire) + kWordBytes - 1) / kWordBytes;
    if (row_words > 0)
      words[block.rows_at + row_words - 1] = 0;  // a row's 16-bit element may fill half of it
    std::fill(words + block.rows_at + row_words, words + block.end, 0);
    if (from.all) SetAllPresent(bits, block.count);
    ForRuns(from, block, [&](int64_t slice, int64_t row, int64_t count) {
      for (int64_t i = 0; i < (from.all ? 0 : count); ++i) {
        bits[(row + i) / 32] |= uint32_t{1} << ((row + i) % 32);
      }
      ConvertRows(from, slice, count, dim, scale, rows + row * dim * SizeOf(wire), wire);
    });
  });
}

void CountPresentRows(const RowParts& parts, const char* const* packed, int64_t* present) {
  const std::vector<Block> blocks = FindBlocks(parts);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto* words = reinterpret_cast<const uint32_t*>(packed[blocks[b].rank]);
    if (words != nullptr) present[b] = NumPresent(words + blocks[b].bits_at, blocks[b].count);
  }
}

void UnpackRows(const RowParts& parts, const char* const* packed, const int64_t* present,
                const RowSlices* slices, const ParallelFor& parallel_for) {
  const std::vector<int64_t> first = FirstPresent(parts, present);
  ForBlocks(FindBlocks(parts), parallel_for, [&](const Block& block, int64_t b) {
    if (packed[block.rank] == nullptr) return;
    const RowSlices& to = slices[block.table];
    const DataType wire = parts.wire[block.table];
    const int64_t dim = parts.dims[block.table];
    const auto* words = reinterpret_cast<const uint32_t*>(packed[block.rank]);
    const char* rows = reinterpret_cast<const char*>(words + block.rows_at);
    const uint32_t* bits = words + block.bits_at;
    int64_t slice = first[b];
    for (int64_t begin = 0, end; begin < block.count; begin = end) {
      end = begin + 1;
      if (!IsPresent(bits, begin)) continue;
      while (end < block.count && IsPresent(bits, end)) ++end;
      Convert(rows + begin * dim * SizeOf(wire), wire, (end - begin) * dim, 1.0f,
              RowOf(to, slice, dim), to.dtype);
      SetIndices(to, slice, block.first + begin, end - begin);
      slice += end - begin;
    }
  });
}

void CountOwnRows(const OwnRows& own, int64_t* present) {
  const std::vector<Block> blocks = FindBlocks(own.sent);
  for (int64_t t = 0; t < own.sent.num_tables; ++t) {
    const Range range = SlicesIn(own.from[t], blocks[own.rank * own.sent.num_tables + t]);
    present[t] = range.end - range.begin;
  }
}

void CopyOwnRows(const OwnRows& own, const int64_t* present, const RowSlices* to,
                 const ParallelFor& parallel_for) {
  const int64_t num_tables = own.sent.num_tables, first_block = own.rank * num_tables;
  const std::vector<int64_t> first = FirstPresent(own.received, present);
  const std::vector<Block> received = FindBlocks(own.received), sent = FindBlocks(own.sent);
  const auto own_sent = sent.begin() + first_block;
  ForBlocks({own_sent, own_sent + num_tables}, parallel_for, [&](const Block& block, int64_t t) {
    const int64_t dim = own.sent.dims[t];
    int64_t slice = first[first_block + t];
    ForRuns(own.from[t], block, [&](int64_t begin, int64_t row, int64_t count) {
      ConvertRowsBy(own.sent.wire[t], own.from[t], begin, count, dim, own.scale,
                    RowOf(to[t], slice, dim), to[t].dtype);
      SetIndices(to[t], slice, received[first_block + t].first + row, count);
      slice += count;
    });
  });
}

}  // namespace group_embedding
