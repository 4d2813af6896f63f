// Restores keyed tables from files.
#pragma once

#include <vector>

#include "core/status.h"
#include "table/embedding_table.h"
#include "table/file/verify_table.h"

namespace group_embedding {

// Gives `table` the keys of the subset that were saved, and no others. The files were verified and
// fit. Exclusive.
Status RestoreVerified(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                       const RestoreOptions& how, EmbeddingTable* table,
                       const ParallelFor& parallel_for = SerialFor);

// All of that: whatever is wrong with a file is found before the table changes. Exclusive.
Status RestoreTable(const SavedTable& saved, const RestoreOptions& how, EmbeddingTable* table);

}  // namespace group_embedding
