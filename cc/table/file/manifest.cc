#include "table/file/manifest.h"

#include <algorithm>
#include <cstring>

#include "table/file/byte_stream.h"
#include "table/file/crc32c.h"
#include "table/file/unfinished_saves.h"
#include "table/random_bits.h"

namespace group_embedding {
namespace {

constexpr char kMagic[8] = {'\x89', 'G', 'E', 'M', 'A', 'N', '\r', '\n'};

std::string Base36Digits(uint64_t bits, int count) {
  std::string digits;
  for (; count > 0; --count, bits /= 36) {
    digits += "0123456789abcdefghijklmnopqrstuvwxyz"[bits % 36];
  }
  return digits;
}

bool HasChanges(const Manifest& manifest) {
  return std::any_of(manifest.files.begin(), manifest.files.end(),
                     [](const SavedFile& file) { return file.changes_only; });
}

}  // namespace

bool Manifest::IsWeak() const {
  return std::any_of(files.begin(), files.end(),
                     [](const SavedFile& file) { return file.sum.id == 0; });
}

std::string NewSuffix(bool changes_only) {
  return std::string("data-") + (changes_only ? "c" : "r") + Base36Digits(RandomBits(), 4) +
         "-of-" + Base36Digits(RandomBits(), 5);
}

std::string PathOf(const std::string& prefix, const std::string& suffix) {
  return prefix + "." + suffix;
}

SavedTable FilesOf(const Manifest& manifest, const std::string& prefix, const FileSource& source) {
  SavedTable saved;
  saved.source = &source;
  saved.table = manifest.table;
  for (const SavedFile& file : manifest.files) {
    saved.paths.push_back(PathOf(prefix, file.suffix));
    saved.files.push_back(file);
  }
  return saved;
}

std::string Encode(const Manifest& manifest) {
  ByteWriter out;
  out.PutArray(kMagic, sizeof(kMagic));
  out.Put(kFileVersion);
  out.PutString(manifest.table);
  out.Put(manifest.step);
  out.Put(static_cast<uint32_t>(manifest.files.size()));
  for (const SavedFile& file : manifest.files) {
    out.PutString(file.suffix);
    out.Put(static_cast<uint32_t>(file.changes_only));
    out.Put(file.sum.bytes);
    out.Put(file.sum.crc);
    out.Put(file.sum.id);
  }
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  return out.bytes();
}

Status Decode(const std::string& bytes, const std::string& table, Manifest* manifest) {
  const std::string where = "table '" + table + "': its entry in the checkpoint ";
  const size_t size = bytes.size();
  if (size < sizeof(kMagic) + 8 || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0 ||
      ByteReader(bytes.data() + size - 4, 4).Get<uint32_t>() != Crc32c(0, bytes.data(), size - 4)) {
    return where + "is damaged";
  }
  ByteReader in(bytes.data() + sizeof(kMagic), size - sizeof(kMagic) - 4);
  const uint32_t version = in.Get<uint32_t>();
  if (version < kOldestFileVersion || version > kFileVersion) {
    return where + "has format version " + std::to_string(version) + ", expected " +
           std::to_string(kFileVersion) + " or older";
  }
  manifest->table = in.GetText();
  manifest->step = in.Get<int64_t>();
  manifest->files.clear();
  for (uint32_t left = in.Get<uint32_t>(); left > 0 && in.ok(); --left) {
    SavedFile file;
    file.suffix = in.GetString();
    file.changes_only = in.Get<uint32_t>() != 0;
    file.sum.bytes = in.Get<int64_t>();
    file.sum.crc = in.Get<uint32_t>();
    file.sum.id = version == 1 ? 0 : in.Get<uint64_t>();
    // The suffix is a part of a file's name and of nothing else.
    if (!IsTableSuffix(file.suffix) || file.sum.bytes < 0) return where + "is damaged";
    manifest->files.push_back(file);
  }
  return in.Ended() ? Status() : where + "is damaged";
}

Status AddPart(const Manifest& part, Manifest* manifest) {
  if (part.table != manifest->table || part.step != manifest->step) {
    return "the ranks disagree on a checkpoint: expected table '" + manifest->table + "' at step " +
           std::to_string(manifest->step) + " from all, got table '" + part.table + "' at step " +
           std::to_string(part.step);
  }
  if (HasChanges(part) != HasChanges(*manifest)) {
    return "the ranks disagree on a checkpoint: expected all rows of table '" + manifest->table +
           "' from all, or the changes from all, got changes from some; save it again";
  }
  manifest->files.insert(manifest->files.end(), part.files.begin(), part.files.end());
  return {};
}

}  // namespace group_embedding
