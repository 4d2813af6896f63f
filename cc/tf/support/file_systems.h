// Chooses the file system of a table's files by their path.
#pragma once

#include <string>

#include "table/file/file_system.h"

namespace group_embedding {

// Whether a path names no file system ("ram://...", "gs://...") and so is of this machine's.
bool IsLocal(const std::string& path);

// LocalFiles, or those of TensorFlow, which reads and writes whatever it has a file system for.
const FileSystem& FileSystemOf(const std::string& path);

}  // namespace group_embedding
