// The file of a keyed table, or of one part of it. group_embedding/checkpoint/README.md describes
// the format byte by byte. Files are written and read block by block, never as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"
#include "table/file/section_file.h"
#include "table/file/table_file_header.h"

namespace group_embedding {

struct TableFileTotals {
  int64_t num_rows = 0, num_erased = 0, num_counted = 0, counter_bytes = 0;

  bool operator==(const TableFileTotals& other) const {
    return num_rows == other.num_rows && num_erased == other.num_erased &&
           num_counted == other.num_counted && counter_bytes == other.counter_bytes;
  }
};

// Rows as a served table stores them.
struct EncodedRows {
  RowFormat format = RowFormat::kFloat32;
  std::vector<int64_t> keys;
  std::vector<char> rows;  // [keys] of RowBytes(format, dim)
};

class TableFileWriter {
 public:
  TableFileWriter(const std::string& path, const FileSystem& files) : file_(path, files) {}

  Status Open(const TableFileHeader& header);
  // What keys start as: the first matrix_rows rows of the table.
  Status AddInitialRows(const void* rows);
  Status AddRows(const KeyedRows& rows);
  Status AddEncoded(const EncodedRows& rows);
  Status AddErased(const std::vector<int64_t>& keys);
  Status AddAdmission(const AdmissionState& state);
  Status Finish(FileSum* sum);
  // The sums over all that was added.
  const TableFileTotals& totals() const { return totals_; }

 private:
  TableFileHeader header_;
  TableFileTotals totals_;
  SectionWriter file_;
};

// Part of what a file holds. What it does not hold is empty.
struct TableFileBlock {
  std::vector<char> initial_rows;
  KeyedRows rows;  // with slots in the order of the header
  EncodedRows encoded;
  std::vector<int64_t> erased;
  AdmissionState admission;
  int64_t first_counter_byte = 0;  // of admission.counters
  bool is_last = false;
};

// Everything that a file says is checked before memory is taken by it, and before it is handed out:
// checksums find damage, and a file whose checksums are right may have been made by anybody.
class TableFileReader {
 public:
  TableFileReader(std::string path, const FileSource& files) : file_(std::move(path), files) {}

  // Opens the file, or begins again, and reads the header.
  Status Open();
  const std::string& path() const { return file_.path(); }
  const TableFileHeader& header() const { return header_; }
  Status Next(TableFileBlock* block);
  // After the last block.
  FileSum sum() const;
  const TableFileTotals& totals() const { return totals_; }
  // Whether a block had encoded rows, which no table that is trained can have.
  bool has_encoded() const { return has_encoded_; }

 private:
  bool ReadRows(const std::string& payload, KeyedRows* rows) const;
  bool ReadEncoded(const std::string& payload, EncodedRows* rows) const;
  bool ReadCounted(const std::string& payload, AdmissionState* state) const;
  bool ReadCounters(const std::string& payload, TableFileBlock* block) const;
  bool ReadPayload(uint32_t kind, const std::string& payload, TableFileBlock* block);
  // Whether all was there that the file says of itself.
  bool IsComplete() const;

  SectionReader file_;
  TableFileHeader header_;
  TableFileTotals totals_, stated_;
  int64_t initial_bytes_ = 0;  // of initial rows that were read
  bool has_encoded_ = false;
};

}  // namespace group_embedding
