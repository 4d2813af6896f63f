#include "exchange/host/changed_rows.h"

#include <cstring>

#include "exchange/host/row_blocks.h"

namespace group_embedding {
namespace {

int64_t NumBitWords(int64_t count) { return (count + 31) / 32; }

int64_t PaddedBytes(const RowParts& parts, int64_t table, int64_t rows) {
  const int64_t bytes = rows * parts.dims[table] * SizeOf(parts.wire[table]);
  return (bytes + kWordBytes - 1) / kWordBytes * kWordBytes;
}

int64_t AllBitBytes(const RowParts& parts, int64_t rank) {
  int64_t words = 0;
  for (int64_t t = 0; t < parts.num_tables; ++t) {
    words += NumBitWords(parts.counts[rank * parts.num_tables + t]);
  }
  return words * kWordBytes;
}

// Where a table's part of a message begins, in bytes.
struct TablePart {
  int64_t bits_at, rows_at;
};

// [num_ranks * num_tables]. num_changed: takes a block's number, and is called for table after
// table of a rank; ranks for which `has` is false are left out.
template <typename Has, typename NumChanged>
std::vector<TablePart> FindTableParts(const RowParts& parts, const Has& has,
                                      const NumChanged& num_changed) {
  std::vector<TablePart> found(parts.num_ranks * parts.num_tables);
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    if (!has(n)) continue;
    int64_t bits_at = 0, rows_at = AllBitBytes(parts, n);
    for (int64_t t = 0; t < parts.num_tables; ++t) {
      const int64_t b = n * parts.num_tables + t;
      found[b] = {bits_at, rows_at};
      rows_at += PaddedBytes(parts, t, num_changed(b, bits_at));
      bits_at += NumBitWords(parts.counts[b]) * kWordBytes;
    }
  }
  return found;
}

const uint32_t* BitsAt(const char* message, int64_t at) {
  return reinterpret_cast<const uint32_t*>(message + at);
}

// The bits of the rows of a block that differ from `ahead`, the rank's part.
std::vector<uint32_t> Compare(const RowParts& parts, const Block& block, const RowSlices& rows,
                              const char* ahead) {
  constexpr int64_t kRowsAtOnce = 32;
  const DataType wire = parts.wire[block.table];
  const int64_t dim = parts.dims[block.table], row_bytes = dim * SizeOf(wire);
  const char* sent = ahead + block.rows_at * kWordBytes;
  std::vector<uint32_t> bits(NumBitWords(block.count), 0);
  std::vector<char> now(kRowsAtOnce * row_bytes);
  for (int64_t i = 0; i < block.count; i += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, block.count - i);
    ConvertRows(rows, block.first + i, count, dim, 1.0f, now.data(), wire);
    if (std::memcmp(now.data(), sent + i * row_bytes, count * row_bytes) == 0) continue;
    for (int64_t j = 0; j < count; ++j) {
      const char* row = now.data() + j * row_bytes;
      if (std::memcmp(row, sent + (i + j) * row_bytes, row_bytes) != 0) {
        bits[i / 32] |= uint32_t{1} << j;
      }
    }
  }
  return bits;
}

// Calls `body(begin, end, is_set)` for each run of equal bits.
template <typename Body>
void ForRunsOfBits(const uint32_t* bits, int64_t count, const Body& body) {
  for (int64_t begin = 0, end; begin < count; begin = end) {
    const bool is_set = IsPresent(bits, begin);
    end = begin + 1;
    while (end < count && IsPresent(bits, end) == is_set) ++end;
    body(begin, end, is_set);
  }
}

}  // namespace

ChangedRows::ChangedRows(const RowParts& parts, const RowSlices* slices, const char* const* ahead,
                         const ParallelFor& parallel_for)
    : parts_(parts), slices_(slices), bits_(parts.num_ranks * parts.num_tables) {
  ForBlocks(FindBlocks(parts), parallel_for, [&](const Block& block, int64_t b) {
    if (ahead[block.rank] == nullptr) return;
    bits_[b] = Compare(parts, block, slices[block.table], ahead[block.rank]);
  });
}

int64_t ChangedRows::bytes(int64_t rank) const {
  int64_t bytes = 0;
  for (int64_t t = 0; t < parts_.num_tables; ++t) {
    const int64_t b = rank * parts_.num_tables + t;
    const int64_t count = static_cast<int64_t>(bits_[b].size()) * 32;
    bytes += static_cast<int64_t>(bits_[b].size()) * kWordBytes +
             PaddedBytes(parts_, t, NumPresent(bits_[b].data(), count));
  }
  return bytes;
}

void ChangedRows::Write(char* const* messages, const ParallelFor& parallel_for) const {
  const std::vector<Block> blocks = FindBlocks(parts_);
  const std::vector<TablePart> places = FindTableParts(
      parts_, [&](int64_t n) { return messages[n] != nullptr; },
      [&](int64_t b, int64_t) { return NumPresent(bits_[b].data(), blocks[b].count); });
  ForBlocks(blocks, parallel_for, [&](const Block& block, int64_t b) {
    char* message = messages[block.rank];
    if (message == nullptr || block.count == 0) return;
    const DataType wire = parts_.wire[block.table];
    const int64_t dim = parts_.dims[block.table], row_bytes = dim * SizeOf(wire);
    std::memcpy(message + places[b].bits_at, bits_[b].data(), bits_[b].size() * kWordBytes);
    char* to = message + places[b].rows_at;
    ForRunsOfBits(bits_[b].data(), block.count, [&](int64_t begin, int64_t end, bool has_changed) {
      if (!has_changed) return;
      ConvertRows(slices_[block.table], block.first + begin, end - begin, dim, 1.0f, to, wire);
      to += (end - begin) * row_bytes;
    });
    const int64_t padding = (to - message) % kWordBytes;
    if (padding != 0) std::memset(to, 0, kWordBytes - padding);
  });
}

bool AreChangedRows(const RowParts& parts, int64_t rank, const char* message, int64_t bytes) {
  int64_t expected = AllBitBytes(parts, rank);
  if (bytes < expected) return false;
  const uint32_t* bits = BitsAt(message, 0);
  for (int64_t t = 0; t < parts.num_tables; ++t) {
    const int64_t count = parts.counts[rank * parts.num_tables + t];
    expected += PaddedBytes(parts, t, NumPresent(bits, count));
    bits += NumBitWords(count);
  }
  return bytes == expected;
}

void UnpackChangedRows(const RowParts& parts, const char* const* messages, const char* const* ahead,
                       const RowSlices* slices, const ParallelFor& parallel_for) {
  const std::vector<Block> blocks = FindBlocks(parts);
  const std::vector<TablePart> places = FindTableParts(
      parts, [&](int64_t n) { return messages[n] != nullptr; },
      [&](int64_t b, int64_t bits_at) {
        return NumPresent(BitsAt(messages[blocks[b].rank], bits_at), blocks[b].count);
      });
  ForBlocks(blocks, parallel_for, [&](const Block& block, int64_t b) {
    const char* message = messages[block.rank];
    if (message == nullptr) return;
    const RowSlices& to = slices[block.table];
    const DataType wire = parts.wire[block.table];
    const int64_t dim = parts.dims[block.table], row_bytes = dim * SizeOf(wire);
    const char* unchanged = ahead[block.rank] + block.rows_at * kWordBytes;
    const char* changed = message + places[b].rows_at;
    const uint32_t* bits = BitsAt(message, places[b].bits_at);
    ForRunsOfBits(bits, block.count, [&](int64_t begin, int64_t end, bool has_changed) {
      const char* from = has_changed ? changed : unchanged + begin * row_bytes;
      if (has_changed) changed += (end - begin) * row_bytes;
      char* row = static_cast<char*>(to.rows) + (block.first + begin) * dim * SizeOf(to.dtype);
      Convert(from, wire, (end - begin) * dim, 1.0f, row, to.dtype);
    });
  });
}

}  // namespace group_embedding
