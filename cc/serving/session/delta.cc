#include "serving/session/delta.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "serving/table/pace.h"
#include "table/file/byte_stream.h"
#include "table/file/table_file.h"

namespace group_embedding {
namespace {

constexpr uint32_t kVersion = 16, kFile = 17;
constexpr uint32_t kVariable = 20, kRowNumbers = 21, kValues = 22, kTotals = 23;
constexpr uint64_t kMaxSection = uint64_t{1} << 20;
constexpr uint32_t kMaxRank = 32;
constexpr size_t kMaxFiles = 1 << 20;

bool ReadVersion(ByteReader* reader, VersionRecord* record) {
  record->kind = reader->Get<uint32_t>();
  record->model = reader->GetText();
  record->version = reader->Get<int64_t>();
  record->parent = reader->Get<int64_t>();
  record->parent_base_id = reader->Get<uint64_t>();
  record->base = reader->Get<int64_t>();
  record->base_id = reader->Get<uint64_t>();
  record->content = reader->Get<int64_t>();
  record->step = reader->Get<int64_t>();
  record->time = reader->Get<int64_t>();
  return reader->Ended() && record->kind >= VersionRecord::kBase &&
         record->kind <= VersionRecord::kRollback && record->version >= 0 && record->base_id != 0;
}

// A file beside COMMIT: its name has no folder, so that a record cannot name files elsewhere.
bool IsFileName(const std::string& path) {
  return !path.empty() && path.find('/') == path.npos && path != "." && path != "..";
}

bool ReadFileOf(ByteReader* reader, VersionRecord::File* file) {
  file->kind = reader->Get<uint32_t>();
  file->path = reader->GetText();
  file->table = reader->GetText();
  file->part = reader->Get<int32_t>();
  file->num_parts = reader->Get<int32_t>();
  file->sum.bytes = reader->Get<int64_t>();
  file->sum.crc = reader->Get<uint32_t>();
  file->sum.id = reader->Get<uint64_t>();
  return reader->Ended() && file->kind >= VersionRecord::kRows &&
         file->kind <= VersionRecord::kModelFile && file->sum.bytes >= 0 && file->part >= 0 &&
         file->part < file->num_parts &&
         (file->kind == VersionRecord::kModelFile || IsFileName(file->path));
}

// Whether a file is the one that the record names. `id`: the file's own, or 0.
Status CheckSum(const std::string& path, const FileSum& got, const FileSum& expected) {
  if (got.bytes == expected.bytes && got.crc == expected.crc &&
      (got.id == expected.id || got.id == 0)) {
    return {};
  }
  return "file '" + path + "' is whole, but not the one that COMMIT names";
}

Status ReadRows(const std::string& path, const VersionRecord::File& file, const FileSource& files,
                const DeltaTable& table, RowChanges* changes) {
  TableFileReader reader(path, files);
  Status status = reader.Open();
  if (!status.ok()) return status;
  const TableFileHeader& header = reader.header();
  if (header.table != file.table || header.part != file.part ||
      header.num_parts != file.num_parts) {
    return "file '" + path + "': expected part " + std::to_string(file.part) + " of table '" +
           file.table + "', got part " + std::to_string(header.part) + " of '" + header.table + "'";
  }
  if (header.dim != table.dim || header.dtype != table.dtype || !header.slots.empty()) {
    return "table '" + file.table + "', file '" + path + "': expected rows of dim " +
           std::to_string(table.dim) + " of the model's type without slots, got dim " +
           std::to_string(header.dim);
  }
  for (bool is_last = false; !is_last;) {
    TableFileBlock block;
    status = reader.Next(&block);
    if (!status.ok()) return status;
    if (!block.erased.empty() && !changes->keys.empty() && file.num_parts == 1) {
      return "file '" + path + "': expected erased keys in front of rows";
    }
    changes->erased.insert(changes->erased.end(), block.erased.begin(), block.erased.end());
    changes->keys.insert(changes->keys.end(), block.rows.keys.begin(), block.rows.keys.end());
    changes->values.insert(changes->values.end(), block.rows.values.begin(),
                           block.rows.values.end());
    is_last = block.is_last;
    Pace::Rest();
  }
  return CheckSum(path, reader.sum(), file.sum);
}

// Reads one file of variables.
class VariablesReader {
 public:
  VariablesReader(const std::string& path, const FileSource& files,
                  int64_t (*element_bytes)(int32_t), std::map<std::string, VariableChange>* changes)
      : file_(path, files), element_bytes_(element_bytes), changes_(changes) {}

  Status Read(const FileSum& expected) {
    Status status = file_.Open();
    bool has_totals = false;
    uint32_t kind = kTotals;
    while (status.ok()) {
      std::string payload;
      status = file_.Read(kMaxSection, &kind, &payload);
      if (!status.ok()) return status;
      if (kind == kFooter) break;
      if (has_totals || !Take(kind, payload, &has_totals)) {
        return file_.Damaged("section of kind " + std::to_string(kind) + " is not as expected");
      }
    }
    if (!status.ok()) return status;
    if (!has_totals || !IsComplete()) return file_.Damaged("it is incomplete");
    FileSum sum = file_.sum();
    sum.id = 0;  // known to the record alone
    return CheckSum(file_.path(), sum, expected);
  }

 private:
  bool Take(uint32_t kind, const std::string& payload, bool* has_totals) {
    ByteReader reader(payload);
    if (kind == kVariable) return IsComplete() && Begin(&reader);
    if (kind == kTotals) {
      *has_totals = true;
      return reader.Get<int64_t>() == num_variables_ && reader.Ended();
    }
    if (now_ == nullptr) return false;
    if (kind == kRowNumbers) return TakeRowNumbers(payload.size(), &reader);
    if (kind != kValues || now_->values.size() + payload.size() > value_bytes_) return false;
    now_->values += payload;
    return true;
  }

  bool Begin(ByteReader* reader) {
    const std::string key = reader->GetText();
    VariableChange change;
    change.dtype = reader->Get<int32_t>();
    const uint32_t rank = reader->Get<uint32_t>();
    if (!reader->ok() || rank > kMaxRank) return false;
    reader->GetVector(rank, &change.dims);
    const uint32_t some_rows = reader->Get<uint32_t>();
    num_rows_ = reader->Get<int64_t>();
    if (!reader->Ended() || key.empty() || some_rows > 1 || (some_rows == 1 && rank == 0)) {
      return false;
    }
    change.whole = some_rows == 0;
    // The bytes of the values, without overflow.
    const int64_t element = element_bytes_(change.dtype);
    if (element <= 0 || num_rows_ < 0) return false;
    uint64_t bytes = static_cast<uint64_t>(element);
    for (size_t d = 0; d < change.dims.size(); ++d) {
      if (change.dims[d] < 0) return false;
      const uint64_t size =
          static_cast<uint64_t>(d == 0 && !change.whole ? num_rows_ : change.dims[d]);
      if (size > 0 && bytes > (uint64_t{1} << 46) / size) return false;
      bytes *= size;
    }
    if (!change.whole && num_rows_ > change.dims[0]) return false;
    value_bytes_ = bytes;
    const auto [at, is_new] = changes_->emplace(key, std::move(change));
    now_ = &at->second;
    ++num_variables_;
    return is_new;
  }

  bool TakeRowNumbers(size_t bytes, ByteReader* reader) {
    if (now_->whole || !now_->values.empty() || bytes % 8 != 0 ||
        now_->rows.size() + bytes / 8 > static_cast<uint64_t>(num_rows_)) {
      return false;
    }
    for (size_t i = 0; i < bytes / 8; ++i) {
      const int64_t row = reader->Get<int64_t>();
      const int64_t least = now_->rows.empty() ? 0 : now_->rows.back() + 1;
      if (row < least || row >= now_->dims[0]) return false;
      now_->rows.push_back(row);
    }
    return true;
  }

  bool IsComplete() const {
    return now_ == nullptr ||
           (now_->values.size() == value_bytes_ &&
            (now_->whole || now_->rows.size() == static_cast<uint64_t>(num_rows_)));
  }

  SectionReader file_;
  int64_t (*const element_bytes_)(int32_t);
  std::map<std::string, VariableChange>* const changes_;
  VariableChange* now_ = nullptr;
  int64_t num_rows_ = 0, num_variables_ = 0;
  uint64_t value_bytes_ = 0;
};

}  // namespace

Status ReadVersionRecord(const std::string& path, const FileSource& files, VersionRecord* record) {
  SectionReader file(path, files);
  Status status = file.Open();
  bool has_version = false;
  while (status.ok()) {
    uint32_t kind;
    std::string payload;
    status = file.Read(kMaxSection, &kind, &payload);
    if (!status.ok()) return status;
    ByteReader reader(payload);
    if (kind == kFooter) break;
    bool ok = false;
    if (kind == kVersion && !has_version) {
      ok = has_version = ReadVersion(&reader, record);
    } else if (kind == kFile && has_version && record->files.size() < kMaxFiles) {
      record->files.emplace_back();
      ok = ReadFileOf(&reader, &record->files.back());
    }
    if (!ok) return file.Damaged("section of kind " + std::to_string(kind) + " is not as expected");
  }
  if (status.ok() && !has_version) status = file.Damaged("it has no version");
  return status;
}

Status ReadDelta(const std::string& folder, const VersionRecord& record, const FileSource& files,
                 const std::map<std::string, DeltaTable>& tables,
                 int64_t (*element_bytes)(int32_t dtype), Delta* delta) {
  delta->record = record;
  std::map<std::string, std::set<int32_t>> parts;
  std::map<std::string, int32_t> num_parts;
  for (const VersionRecord::File& file : record.files) {
    const std::string path = folder + "/" + file.path;
    Status status;
    if (file.kind == VersionRecord::kRows) {
      const auto table = tables.find(file.table);
      if (table == tables.end()) {
        return "file '" + path + "': expected rows of a table of the model, got table '" +
               file.table + "'";
      }
      const int32_t expected = num_parts.emplace(file.table, file.num_parts).first->second;
      if (file.num_parts != expected || !parts[file.table].insert(file.part).second) {
        return "table '" + file.table + "': expected each part of " + std::to_string(expected) +
               " once, got part " + std::to_string(file.part) + " again";
      }
      status = ReadRows(path, file, files, table->second, &delta->tables[file.table]);
    } else if (file.kind == VersionRecord::kVariables) {
      status = VariablesReader(path, files, element_bytes, &delta->variables).Read(file.sum);
    }
    if (!status.ok()) return status;
  }
  for (const auto& [table, seen] : parts) {
    if (static_cast<int32_t>(seen.size()) == num_parts[table]) continue;
    return "table '" + table + "': expected " + std::to_string(num_parts[table]) + " parts, got " +
           std::to_string(seen.size());
  }
  return {};
}

}  // namespace group_embedding
