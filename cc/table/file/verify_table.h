// What is wrong with the files of a table, found before it is restored from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/owner.h"
#include "core/status.h"
#include "table/embedding_table.h"
#include "table/file/table_file.h"

namespace group_embedding {

struct TableFileSummary {
  TableFileHeader header;
  TableFileTotals totals;
  FileSum sum;  // of a file that was read to its end; else its id alone
  // Seen when the file was read to its end.
  bool has_encoded = false;  // rows of a served table
  KeyRange keys;             // of rows, erased keys and those that are not admitted yet
};

// Reads a file to its end, and says what is wrong with it.
Status VerifyTableFile(const std::string& path, const FileSource& files, TableFileSummary* summary);

// What a checkpoint says of a file.
struct ExpectedFile {
  bool changes_only = false;
  FileSum sum;
};

// The keys that a table keeps: those of rank `index` of `count`.
struct KeySubset {
  int64_t index = 0, count = 1;

  bool Has(int64_t key) const { return OwnerOfKey(key, count) == index; }
};

// All parts of one full save and, if there are, all of one save of the changes since, in any order.
struct SavedTable {
  std::vector<std::string> paths;
  // What the checkpoint says of them. Without it `files` is empty.
  std::string table;  // which was saved
  std::vector<ExpectedFile> files;
  const FileSource* source = &LocalFiles();  // where they are
};

// Whether file `f` is the one that the checkpoint names: its table, its kind, its identity and, if
// it was read to its end, its content.
Status CheckIdentity(const SavedTable& saved, size_t f, const TableFileSummary& found);

struct RestoreOptions {
  KeySubset subset;
  // It is where another training starts: slots start anew, and new keys as the table has it.
  bool as_start = false;
};

// Reads all files of the table of that name to their ends: whether they are the ones that were
// saved, and all of them.
Status VerifySavedTable(const SavedTable& saved, const std::string& name,
                        std::vector<TableFileSummary>* files);

// Reads the headers alone; files that do not name the type of their keys are read to their
// ends.
Status ReadHeaders(const SavedTable& saved, const std::string& name,
                   std::vector<TableFileSummary>* files);

// Whether rows of sound files can be rows of `table`: of its dim, its types of values and keys, its
// slots. Where they are not, the sentence says how to convert them.
Status CheckFits(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                 const EmbeddingTable& table);

// Whether what `table` may use holds the rows of files that were read to their ends.
Status CheckSpace(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                  const EmbeddingTable& table, const RestoreOptions& how);

}  // namespace group_embedding
