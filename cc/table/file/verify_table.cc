#include "table/file/verify_table.h"

#include <algorithm>
#include <map>
#include <unordered_set>

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

// What distinguishes rows of a file from those of a table, and the converter's options that make
// the one kind of the other.
class Differences {
 public:
  void Compare(const std::string& what, const std::string& option, const std::string& expected,
               const std::string& got) {
    if (expected == got) return;
    sentence_ +=
        (sentence_.empty() ? "expected " : "; expected ") + what + expected + ", got " + got;
    options_ += " --to-" + option + " " + expected;
  }

  // An error if there are any.
  Status Of(const std::string& table, const std::string& saved_as) const {
    if (sentence_.empty()) return {};
    return sentence_ +
           ". To convert a checkpoint: python -m group_embedding.convert checkpoint PREFIX --table "
           "'" +
           saved_as + "'" + options_ + " --out NEW_PREFIX; table '" + table +
           "' starts from it by CheckpointOption('NEW_PREFIX', '" + saved_as + "')";
  }

 private:
  std::string sentence_, options_;
};

// A file that does not say of which type its keys are has every one of them checked.
Status CheckKeys(const TableFileSummary& file, KeyType key_type) {
  for (const int64_t key : {file.keys.least, file.keys.greatest}) {
    if (Takes(key_type, key)) continue;
    return "expected keys of type " + NameOf(key_type) + ", got key " + std::to_string(key) +
           "; make the table with keys of another type";
  }
  return {};
}

Status CheckSlots(const TableFileHeader& header, const EmbeddingTable& table) {
  const auto words = [](const SlotOptions& s) {
    return std::to_string(s.width) + " columns of " + NameOf(s.dtype);
  };
  for (const SlotOptions& saved : header.slots) {
    const SlotOptions slot = SlotInTable(saved, table.options());
    for (const SlotOptions& present : table.slots()) {
      if (present.name != slot.name || words(present) == words(slot)) continue;
      return "expected slot '" + slot.name + "' of " + words(present) + ", got " + words(slot);
    }
  }
  return {};
}

// Whether rows of a file can be rows of `table`.
Status CheckFits(const TableFileSummary& file, const EmbeddingTable& table) {
  const TableFileHeader& header = file.header;
  const TableOptions& options = table.options();
  if (file.has_encoded) {
    return "expected rows as trained, got rows that were quantised for serving; open the model by "
           "InferenceSession";
  }
  Differences found;
  found.Compare("dim ", "dim", std::to_string(options.dim), std::to_string(header.dim));
  found.Compare("values of type ", "value-dtype", NameOf(options.dtype), NameOf(header.dtype));
  if (header.key_type != KeyType::kUnknown && !Takes(options.key_type, header.key_type)) {
    found.Compare("keys of type ", "key-dtype", NameOf(options.key_type), NameOf(header.key_type));
  }
  Status status = found.Of(options.name, header.table);
  if (status.ok() && header.key_type == KeyType::kUnknown) {
    status = CheckKeys(file, options.key_type);
  }
  return status.ok() ? CheckSlots(header, table) : status;
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

// The slots that `table` has once it is restored, as a union over the files.
std::vector<SlotOptions> SlotsOf(const std::vector<TableFileSummary>& files,
                                 const EmbeddingTable& table) {
  std::map<std::string, SlotOptions> slots;
  for (const TableFileSummary& file : files) {
    for (const SlotOptions& slot : file.header.slots) {
      slots[slot.name] = SlotInTable(slot, table.options());
    }
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

Status CheckFits(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                 const EmbeddingTable& table) {
  for (size_t f = 0; f < files.size(); ++f) {
    const Status status = CheckFits(files[f], table).In("file '" + saved.paths[f] + "': ");
    if (!status.ok()) return InTable(table.options().name, status);
  }
  return {};
}

// Rows are counted where it is not plain.
Status CheckSpace(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                  const EmbeddingTable& table, const RestoreOptions& how) {
  const std::string& name = table.options().name;
  const std::vector<SlotOptions> slots =
      how.as_start ? std::vector<SlotOptions>() : SlotsOf(files, table);
  if (table.options().budget.is_given()) {  // it keeps the keys that fit
    return table.CheckSlots(slots).In("table '" + name + "', slots of the checkpoint: ");
  }
  const int64_t max_keys = table.max_keys(slots);
  int64_t num_keys = 0;
  for (const TableFileSummary& file : files) num_keys += file.totals.num_rows;
  if (num_keys <= max_keys) return {};
  const Status status = CountKeys(saved, files, how.subset, &num_keys);
  if (!status.ok() || num_keys <= max_keys) return InTable(name, status);
  return "table '" + name + "': expected at most " + std::to_string(max_keys) + " rows with " +
         std::to_string(slots.size()) + " slots, as fit what it may use, the " + "checkpoint has " +
         std::to_string(num_keys) +
         "; give it more (tier_bytes, or storage_size of a StorageOption)";
}

Status ReadHeaders(const SavedTable& saved, const std::string& name,
                   std::vector<TableFileSummary>* files) {
  for (const std::string& path : saved.paths) {
    TableFileReader file(path, *saved.source);
    Status status = file.Open();
    TableFileSummary summary;
    summary.header = file.header();
    summary.sum.id = file.header().file_id;
    if (status.ok() && summary.header.key_type == KeyType::kUnknown) {
      status = VerifyTableFile(path, *saved.source, &summary);
    }
    if (status.ok()) status = CheckIdentity(saved, files->size(), summary);
    if (!status.ok()) return InTable(name, status);
    files->push_back(std::move(summary));
  }
  return CheckComplete(name, *files);
}

Status VerifyTableFile(const std::string& path, const FileSource& files,
                       TableFileSummary* summary) {
  TableFileReader file(path, files);
  Status status = file.Open();
  KeyRange range;
  for (TableFileBlock block; status.ok() && !block.is_last;) {
    status = file.Next(&block);
    for (const auto* keys :
         {&block.rows.keys, &block.encoded.keys, &block.erased, &block.admission.keys}) {
      for (const int64_t key : *keys) range.Add(key);
    }
  }
  *summary = {file.header(), file.totals(), file.sum(), file.has_encoded(), range};
  return status;
}

Status VerifySavedTable(const SavedTable& saved, const std::string& name,
                        std::vector<TableFileSummary>* files) {
  for (size_t f = 0; f < saved.paths.size(); ++f) {
    TableFileSummary file;
    Status status = VerifyTableFile(saved.paths[f], *saved.source, &file);
    if (status.ok()) status = CheckIdentity(saved, f, file);
    if (!status.ok()) return InTable(name, status);
    files->push_back(std::move(file));
  }
  return CheckComplete(name, *files);
}

}  // namespace group_embedding
