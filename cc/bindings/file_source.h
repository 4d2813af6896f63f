// Files that Python opens, for paths that are not of this machine's file system.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "table/file/file_system.h"

namespace group_embedding {

// `open`: None: files of this machine; else a function of a path, whose result has `read`, `seek`,
// `tell` and `close` as binary files of Python have.
std::unique_ptr<FileSource> SourceOf(pybind11::object open);

}  // namespace group_embedding
