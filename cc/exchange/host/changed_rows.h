// Rows that are sent ahead of the step that reads them, and again if they changed in between.
//
//   sent ahead   parts as PackRows writes them; the sender and the receiver keep them
//   message      of one rank: a bit per row of table 0, of table 1, ...: whether it changed, bit
//                i % 32 of word i / 32 | the changed rows of table 0, of table 1, ... in their wire
//                type, those of each table padded to 4 bytes
//
// A row has changed if it would be sent in other bits, whatever changed it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "exchange/host/pack_rows.h"

namespace group_embedding {

class ChangedRows {
 public:
  // Compares rows with what was sent ahead. slices: [num_tables] all rows. ahead: [num_ranks], null
  // for parts to skip. All must live as long as the object.
  ChangedRows(const RowParts& parts, const RowSlices* slices, const char* const* ahead,
              const ParallelFor& parallel_for);

  // The bytes of the message to a rank; 0 where its part is skipped.
  int64_t bytes(int64_t rank) const;

  // messages: [num_ranks], null for skipped parts.
  void Write(char* const* messages, const ParallelFor& parallel_for) const;

 private:
  const RowParts parts_;
  const RowSlices* const slices_;
  std::vector<std::vector<uint32_t>> bits_;  // [num_ranks * num_tables]
};

// Whether `bytes` bytes are a message of `rank`, whose rows `parts` says.
bool AreChangedRows(const RowParts& parts, int64_t rank, const char* message, int64_t bytes);

// Writes the rows of all parts but those that are null: changed ones from the messages, the others
// from parts received ahead. messages, ahead: [num_ranks]. slices: [num_tables] with space for all
// rows.
void UnpackChangedRows(const RowParts& parts, const char* const* messages, const char* const* ahead,
                       const RowSlices* slices, const ParallelFor& parallel_for);

}  // namespace group_embedding
