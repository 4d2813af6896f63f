// What is wrong with the files of a table, found before it is restored from them.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "table/file/save_table.h"

namespace group_embedding {
namespace {

Status InTable(const std::string& name, const Status& status) {
  return status.In("table '" + name + "': ");
}

const char* NameOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat16:
      return "float16";
    default:
      return "bfloat16";
  }
}

std::string Mismatch(const TableOptions& table, const std::string& path, const std::string& what,
                     const std::string& expected, const std::string& got) {
  return "table '" + table.name + "', file '" + path + "': expected " + what + " " + expected +
         ", got " + got;
}

// Whether rows of a file can be rows of `table`.
Status CheckFits(const TableFileSummary& file, const std::string& path,
                 const EmbeddingTable& table) {
  const TableFileHeader& header = file.header;
  const TableOptions& options = table.options();
  if (file.has_encoded) {
    return Mismatch(options, path, "rows", "as trained",
                    "rows that were quantised for serving; open the model by InferenceSession");
  }
  if (header.dim != options.dim) {
    return Mismatch(options, path, "dim", std::to_string(options.dim), std::to_string(header.dim));
  }
  if (header.dtype != options.dtype) {
    return Mismatch(options, path, "values of type", NameOf(options.dtype), NameOf(header.dtype));
  }
  for (const SlotOptions& slot : header.slots) {
    for (const SlotOptions& present : table.slots()) {
      if (present.name != slot.name) continue;
      auto words = [](const SlotOptions& s) {
        return std::to_string(s.width) + " columns of " + NameOf(s.dtype);
      };
      if (words(present) != words(slot)) {
        return Mismatch(options, path, "slot '" + slot.name + "' of", words(present), words(slot));
      }
    }
  }
  return {};
}

// Whether the files are all parts of one full save and of at most one save of changes.
Status CheckComplete(const std::string& name, const std::vector<TableFileSummary>& files) {
  std::map<uint64_t, std::vector<const TableFileHeader*>> saves;
  int64_t num_full = 0, num_changes = 0;
  for (const TableFileSummary& file : files) saves[file.header.save_id].push_back(&file.header);
  for (auto& [id, parts] : saves) {
    std::sort(parts.begin(), parts.end(), [](auto* a, auto* b) { return a->part < b->part; });
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->part == static_cast<int32_t>(i) &&
          parts[i]->num_parts == static_cast<int32_t>(parts.size()) &&
          parts[i]->changes_only == parts[0]->changes_only) {
        continue;
      }
      return "table '" + name + "': expected " + std::to_string(parts[i]->num_parts) +
             " different parts of a save, got " + std::to_string(parts.size()) + " files";
    }
    ++(parts[0]->changes_only ? num_changes : num_full);
  }
  if (num_full == 1 && num_changes <= 1) return {};
  return "table '" + name +
         "': expected the files of one full save and of at most one save of changes, got " +
         std::to_string(num_full) + " and " + std::to_string(num_changes);
}

Status CheckSaved(const SavedTable& saved, const std::string& name, const EmbeddingTable* table,
                  const std::vector<TableFileSummary>& files) {
  for (size_t f = 0; f < files.size() && table != nullptr; ++f) {
    Status status = CheckFits(files[f], saved.paths[f], *table);
    if (!status.ok()) return status;
  }
  return CheckComplete(name, files);
}

// The slots that a table has once it is restored, and did not have before, as a union.
std::vector<SlotOptions> SlotsOf(const std::vector<TableFileSummary>& files) {
  std::map<std::string, SlotOptions> slots;
  for (const TableFileSummary& file : files) {
    for (const SlotOptions& slot : file.header.slots) slots[slot.name] = slot;
  }
  std::vector<SlotOptions> all;
  for (auto& [name, slot] : slots) all.push_back(slot);
  return all;
}

// body(block) for all blocks of the files that are full saves, or of the others.
template <typename Body>
Status ForBlocks(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                 bool changes_only, const Body& body) {
  for (size_t f = 0; f < files.size(); ++f) {
    if (files[f].header.changes_only != changes_only) continue;
    TableFileReader file(saved.paths[f], *saved.source);
    TableFileBlock block;
    Status status = file.Open();
    while (status.ok() && !block.is_last) {
      status = file.Next(&block);
      if (status.ok()) body(block);
    }
    if (!status.ok()) return status;
  }
  return {};
}

// How many keys of a subset the files have: those of the changes, and of the full save those that
// the changes do not name.
Status CountKeys(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                 const KeySubset& subset, int64_t* num_keys) {
  std::unordered_set<int64_t> changed;
  *num_keys = 0;
  Status status = ForBlocks(saved, files, true, [&](const TableFileBlock& block) {
    for (const int64_t key : block.rows.keys) *num_keys += subset.Has(key);
    changed.insert(block.rows.keys.begin(), block.rows.keys.end());
    changed.insert(block.erased.begin(), block.erased.end());
  });
  if (!status.ok()) return status;
  return ForBlocks(saved, files, false, [&](const TableFileBlock& block) {
    for (const int64_t key : block.rows.keys) {
      *num_keys += subset.Has(key) && changed.count(key) == 0;
    }
  });
}

// Whether what a table may use holds the rows. They are counted where it is not plain.
Status CheckBuffer(const SavedTable& saved, const EmbeddingTable& table, const RestoreOptions& how,
                   const std::vector<TableFileSummary>& files) {
  const std::string& name = table.options().name;
  const std::vector<SlotOptions> slots = how.as_start ? std::vector<SlotOptions>() : SlotsOf(files);
  const int64_t max_keys = table.max_keys(slots);
  int64_t num_keys = 0;
  for (const TableFileSummary& file : files) num_keys += file.totals.num_rows;
  if (num_keys <= max_keys) return {};
  const Status status = CountKeys(saved, files, how.subset, &num_keys);
  if (!status.ok() || num_keys <= max_keys) return InTable(name, status);
  return "table '" + name + "': expected at most " + std::to_string(max_keys) + " rows with " +
         std::to_string(slots.size()) + " slots, as fit what it may use, the " + "checkpoint has " +
         std::to_string(num_keys) + "; give it more by StorageOption(storage_size=...)";
}

}  // namespace

Status CheckIdentity(const SavedTable& saved, size_t f, const TableFileSummary& found) {
  if (saved.files.empty()) return {};
  const FileSum &expected = saved.files[f].sum, &got = found.sum;
  const TableFileHeader& header = found.header;
  const bool read = got.bytes > 0;
  // Format version 1 has no identity, and a checksum that is the same for every file.
  const bool same_content = expected.id == 0 || expected.crc == got.crc;
  if (header.table == saved.table && header.changes_only == saved.files[f].changes_only &&
      (expected.id == 0 || expected.id == got.id) &&
      (!read || (expected.bytes == got.bytes && same_content))) {
    return {};
  }
  return "file '" + saved.paths[f] +
         "' is whole, but not the one that was saved with this checkpoint: it has " +
         (header.changes_only ? "changes" : "all rows") + " of table '" + header.table +
         "' at step " + std::to_string(header.step) + ", part " + std::to_string(header.part + 1) +
         " of " + std::to_string(header.num_parts);
}

Status ReadHeaders(const SavedTable& saved, const std::string& name, const EmbeddingTable& table,
                   std::vector<TableFileSummary>* files) {
  for (const std::string& path : saved.paths) {
    TableFileReader file(path, *saved.source);
    Status status = file.Open();
    TableFileSummary summary = {file.header(), {}, {}, false};
    summary.sum.id = file.header().file_id;
    if (status.ok()) status = CheckIdentity(saved, files->size(), summary);
    if (!status.ok()) return InTable(name, status);
    files->push_back(std::move(summary));
  }
  return CheckSaved(saved, name, &table, *files);
}

Status VerifyTableFile(const std::string& path, const FileSource& files,
                       TableFileSummary* summary) {
  TableFileReader file(path, files);
  Status status = file.Open();
  TableFileBlock block;
  while (status.ok() && !block.is_last) status = file.Next(&block);
  *summary = {file.header(), file.totals(), file.sum(), file.has_encoded()};
  return status;
}

Status VerifySavedTable(const SavedTable& saved, const std::string& name,
                        const EmbeddingTable* table, const RestoreOptions& how,
                        std::vector<TableFileSummary>* summaries) {
  for (size_t f = 0; f < saved.paths.size(); ++f) {
    TableFileSummary file;
    Status status = VerifyTableFile(saved.paths[f], *saved.source, &file);
    if (status.ok()) status = CheckIdentity(saved, f, file);
    if (!status.ok()) return InTable(name, status);
    summaries->push_back(std::move(file));
  }
  Status status = CheckSaved(saved, name, table, *summaries);
  if (status.ok() && table != nullptr) status = CheckBuffer(saved, *table, how, *summaries);
  return status;
}

}  // namespace group_embedding
