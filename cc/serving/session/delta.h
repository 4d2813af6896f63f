// Delta: what one published version changes. docs/reference/deltas.md describes the files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "serving/table/served_table.h"
#include "table/file/file_system.h"
#include "table/file/section_file.h"

namespace group_embedding {

// COMMIT, or the record of a base beside its SavedModel.
struct VersionRecord {
  enum Kind : uint32_t { kBase = 1, kDelta = 2, kRollback = 3 };
  enum FileKind : uint32_t { kRows = 1, kVariables = 2, kModelFile = 3 };

  struct File {
    uint32_t kind = 0;
    std::string path, table;
    int32_t part = 0, num_parts = 1;
    FileSum sum;
  };

  uint32_t kind = 0;
  std::string model;
  int64_t version = -1, parent = -1, base = -1, content = -1, step = -1, time = -1;
  uint64_t parent_base_id = 0, base_id = 0;
  std::vector<File> files;
};

Status ReadVersionRecord(const std::string& path, const FileSource& files, VersionRecord* record);

// What a delta says of a variable: its whole value, or some rows.
struct VariableChange {
  int32_t dtype = 0;  // TensorFlow's DataType
  std::vector<int64_t> dims;
  bool whole = true;
  std::vector<int64_t> rows;  // rising
  std::string values;         // row-major
};

// The tables that a delta may change, by the trainer's name.
struct DeltaTable {
  int32_t dim;
  DataType dtype;
};

struct Delta {
  VersionRecord record;
  std::map<std::string, RowChanges> tables;
  std::map<std::string, VariableChange> variables;  // by key
};

// Reads and verifies all files of a delta, or of a base that comes with its own delta, in `folder`.
// `tables`: those of the model. element_bytes: of a DataType of TensorFlow's, or 0 if a variable
// cannot have it.
Status ReadDelta(const std::string& folder, const VersionRecord& record, const FileSource& files,
                 const std::map<std::string, DeltaTable>& tables,
                 int64_t (*element_bytes)(int32_t dtype), Delta* delta);

}  // namespace group_embedding
