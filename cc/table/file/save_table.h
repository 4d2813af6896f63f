// Saves keyed tables to files.
#pragma once

#include <string>

#include "core/status.h"
#include "table/embedding_table.h"
#include "table/file/table_file.h"

namespace group_embedding {

// Writes what `snapshot` holds; `header` is HeaderOf its table when it was taken, and what the
// caller adds. No lock is held: the table may be trained on meanwhile.
Status WriteTable(const TableFileHeader& header, Snapshot* snapshot, const std::string& path,
                  const FileSystem& files, FileSum* sum);

// Writes what `snapshot`, of changes, holds: erased keys, and rows without slots. No lock is held.
Status WriteChanges(const TableFileHeader& header, Snapshot* snapshot, const std::string& path,
                    const FileSystem& files, FileSum* sum, TableFileTotals* totals);

}  // namespace group_embedding
