// Manifest: the list of files in a checkpoint that hold a table's rows. The files lie beside the
// checkpoint: file "data-r0abc-of-12def" of the checkpoint "folder/model-100" is
// "folder/model-100.data-r0abc-of-12def".
//
// TensorFlow takes such names for parts of the checkpoint, and deletes the files with it. Names are
// random, so that no save overwrites a file of another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "table/file/verify_table.h"

namespace group_embedding {

struct SavedFile : ExpectedFile {
  std::string suffix;
};

struct Manifest {
  std::string table;
  int64_t step = -1;
  std::vector<SavedFile> files;

  // Whether a file of another save or table may be taken for one of these: in format version 1.
  bool IsWeak() const;
};

std::string NewSuffix(bool changes_only);
std::string PathOf(const std::string& prefix, const std::string& suffix);
SavedTable FilesOf(const Manifest& manifest, const std::string& prefix, const FileSource& source);

// As bytes, the last of which are a checksum of the others.
std::string Encode(const Manifest& manifest);
Status Decode(const std::string& bytes, const std::string& table, Manifest* manifest);

// Adds the files of another part of the same save.
Status AddPart(const Manifest& part, Manifest* manifest);

}  // namespace group_embedding
