// TableFileHeader: the first section of a table's file, and the limits that it keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "table/embedding_table.h"

namespace group_embedding {

// The most that is read, and written: of a row with its slots, of slots, of a header.
constexpr int64_t kMaxSavedRowBytes = 1 << 26;
constexpr size_t kMaxSavedSlots = 256;
constexpr uint64_t kMaxHeaderBytes = 1 << 20;

// What a file says of itself before the first row.
struct TableFileHeader {
  std::string table;     // its name
  uint64_t save_id = 0;  // the same in all parts of one save, and in no others
  uint64_t file_id = 0;  // no other file has it; drawn by TableFileWriter
  int32_t part = 0, num_parts = 1;
  bool changes_only = false;  // rows changed and keys erased since a full save
  int64_t step = -1;          // of the save
  TableTime time;  // before format version 4 no minute, and the step before that of the save
  int32_t dim = 0;
  DataType dtype = DataType::kFloat32;
  KeyType key_type = KeyType::kUnknown;  // unknown before format version 3
  InitialValues initial;
  float no_row_value = 0;
  Admission admission;
  std::vector<SlotOptions> slots;
};

// What a file of `table`, as it is now, says. The table's lock is held.
TableFileHeader HeaderOf(const EmbeddingTable& table);

// The section's bytes.
std::string HeaderPayload(const TableFileHeader& header);
// Reads the section of a file of a format version. False: it holds something else.
bool ParseHeader(const std::string& payload, uint32_t version, TableFileHeader* header);

// Slots are of the row or of its columns, and have a name each; a row is not too large with them.
bool HasGoodSlots(const TableFileHeader& header);
// What is wrong with the header of a file of so many bytes, in words; null: nothing.
const char* FindFault(const TableFileHeader& header, int64_t file_bytes);

inline int64_t RowBytes(const TableFileHeader& header) { return header.dim * SizeOf(header.dtype); }
inline int64_t SlotBytes(const SlotOptions& slot) { return slot.width * SizeOf(slot.dtype); }
// With its key, count, version and slots.
int64_t BytesPerRow(const TableFileHeader& header);
// The size of a Bloom filter's counters in memory; 0: there is no such filter.
int64_t MaxCounterBytes(const Admission& admission);

}  // namespace group_embedding
