#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/wire_layout.h"

namespace group_embedding {

WireLayout::WireLayout(const Group& group, int rank, int num_ranks, DataType wire_type)
    : rank(rank), num_ranks(num_ranks), type(group.dtype), wire_type(wire_type) {
  for (int64_t t = 0; t < group.num_tables; ++t) {
    row_bytes_.push_back(group.tables[t].dim * SizeOf(type));
  }
}

std::vector<int64_t> WireLayout::PartOffsets(const std::vector<int64_t>& counts,
                                             int skipped) const {
  std::vector<int64_t> offsets = {0};
  for (size_t p = 0; p < counts.size(); ++p) {
    const bool takes_none = static_cast<int64_t>(p) / num_tables() == skipped;
    const int64_t bytes = takes_none ? 0 : PartBytes(counts[p], row_bytes(p % num_tables()));
    offsets.push_back(offsets.back() + bytes);
  }
  return offsets;
}

int64_t WireLayout::WireBytes(int64_t bytes) const {
  return bytes / SizeOf(type) * SizeOf(wire_type);
}

std::vector<int64_t> WireLayout::WireBytesOfRanks(const std::vector<int64_t>& offsets) const {
  std::vector<int64_t> bytes;
  for (int n = 0; n < num_ranks; ++n) {
    bytes.push_back(WireBytes(offsets[(n + 1) * num_tables()] - offsets[n * num_tables()]));
  }
  return bytes;
}

std::vector<int64_t> WireLayout::WordsOfRanks(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> bytes(num_ranks, 0);
  for (size_t p = 0; p < counts.size(); ++p) bytes[p / num_tables()] += 8 * counts[p];
  return bytes;
}

}  // namespace group_embedding
