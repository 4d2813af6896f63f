// The layout of the parts that one rank sends and receives: rows in one direction, gradients in the
// other. Part rank * num_tables + table is the rows of one table that go to, or come from, one rank
// (part_bytes.h). A rank's own rows are not sent.
//
// Offsets are bytes in the element type of the tables. WireBytes converts them to the type that is
// sent.
#pragma once

#include <cstdint>
#include <vector>

#include "fused/group_lookup.h"

namespace group_embedding {

struct TableRange {
  int64_t begin, end;
  bool Has(int64_t table) const { return begin <= table && table < end; }
};

class WireLayout {
 public:
  // wire_type: the element type in which rows and gradients are sent.
  WireLayout(const Group& group, int rank, int num_ranks, DataType wire_type);

  const int rank, num_ranks;
  const DataType type, wire_type;

  int64_t num_tables() const { return static_cast<int64_t>(row_bytes_.size()); }
  int64_t num_parts() const { return num_ranks * num_tables(); }
  TableRange all_tables() const { return {0, num_tables()}; }
  int64_t row_bytes(int64_t table) const { return row_bytes_[table]; }
  const std::vector<int64_t>& bytes_of_rows() const { return row_bytes_; }
  bool converts() const { return wire_type != type; }

  // [num_parts + 1] where each part begins in a buffer. counts: [num_parts] numbers of rows. Parts
  // of rank `skipped` have no bytes.
  std::vector<int64_t> PartOffsets(const std::vector<int64_t>& counts, int skipped) const;
  // The size of `bytes` bytes of the tables' type once converted to the wire type.
  int64_t WireBytes(int64_t bytes) const;
  // [num_ranks] the bytes in the wire type of each rank's parts, which begin at `offsets`.
  std::vector<int64_t> WireBytesOfRanks(const std::vector<int64_t>& offsets) const;
  // [num_ranks] the bytes of one int64 per row. counts: [num_parts] numbers of rows.
  std::vector<int64_t> WordsOfRanks(const std::vector<int64_t>& counts) const;

 private:
  std::vector<int64_t> row_bytes_;  // [num_tables] in the tables' type
};

}  // namespace group_embedding
