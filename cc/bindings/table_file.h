// Files of keyed tables.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "table/file/verify_table.h"

namespace group_embedding {

// "float32", "float16" or "bfloat16".
const char* NameOf(DataType type);
// {bytes, crc, id}.
pybind11::dict SumDict(const FileSum& sum);
// What an entry of "files" of a decoded manifest says of a file of a table.
SavedTable Expected(const std::string& path, const std::string& table, const pybind11::dict& entry);

void BindTableFile(pybind11::module_& m);

}  // namespace group_embedding
