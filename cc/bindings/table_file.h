// Files of keyed tables.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "table/embedding_table.h"
#include "table/file/save_table.h"

namespace group_embedding {

// "float32", "float16" or "bfloat16".
const char* NameOf(DataType type);
// {bytes, crc, id}.
pybind11::dict SumDict(const FileSum& sum);
// What an entry of "files" of a decoded manifest says of a file of a table.
SavedTable Expected(const std::string& path, const std::string& table, const pybind11::dict& entry);

// core.restore_table, of a table of any storage.
void RestoreFromFiles(EmbeddingTable* table, const std::vector<std::string>& paths, int64_t index,
                      int64_t count);

void BindTableFile(pybind11::module_& m);

}  // namespace group_embedding
