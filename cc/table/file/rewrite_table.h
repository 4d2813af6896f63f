// Files of a table, written anew without the table: the rows of a full save and of changes after it
// in one file, which a server reads in less time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"
#include "table/file/verify_table.h"

namespace group_embedding {

// Writes the rows of `base`, changed by `deltas` one after the other, without slots and counts of a
// filter. Memory is taken for the rows of deltas alone; rows of the base pass block by block.
//
// base: all parts of a full save, and of at most one save of changes.
// deltas: files of changes. Files that follow each other may be parts of one version.
// format: of the rows that are written; null: as trained.
Status RewriteTable(const SavedTable& base, const std::vector<std::string>& deltas,
                    std::optional<RowFormat> format, const std::string& path,
                    const FileSystem& files, FileSum* sum);

}  // namespace group_embedding
