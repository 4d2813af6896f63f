// Tables of any storage saved to files and restored from them.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "table/embedding_table.h"

namespace group_embedding {

// core.restore_table.
void RestoreFromFiles(EmbeddingTable* table, const std::vector<std::string>& paths, int64_t index,
                      int64_t count);

void BindSaveTable(pybind11::module_& m);

}  // namespace group_embedding
