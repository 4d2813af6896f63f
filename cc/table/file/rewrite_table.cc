#include "table/file/rewrite_table.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "table/file/table_file.h"
#include "table/random_bits.h"

namespace group_embedding {
namespace {

constexpr int64_t kRowsAtATime = 1 << 12;

void Append(const KeyedRows& from, size_t row, size_t row_bytes, KeyedRows* to) {
  to->keys.push_back(from.keys[row]);
  to->counts.push_back(from.counts[row]);
  to->versions.push_back(from.versions[row]);
  const auto begin = from.values.begin() + row * row_bytes;
  to->values.insert(to->values.end(), begin, begin + row_bytes);
}

// The last state of each key that files of changes name.
class ChangedRows {
 public:
  ChangedRows(const TableFileHeader& base, const FileSource& files)
      : base_(base), files_(files), row_bytes_(base.dim * SizeOf(base.dtype)) {}

  Status Add(const std::string& path) {
    TableFileReader file(path, files_);
    Status status = file.Open();
    if (!status.ok()) return status;
    const TableFileHeader& header = file.header();
    if (header.table != base_.table || header.dim != base_.dim || header.dtype != base_.dtype) {
      return "file '" + path + "': expected rows of table '" + base_.table + "' of dim " +
             std::to_string(base_.dim) + ", got '" + header.table + "' of dim " +
             std::to_string(header.dim);
    }
    for (TableFileBlock block; !block.is_last;) {
      status = file.Next(&block);
      if (status.ok() && file.has_encoded()) {
        status = "file '" + path + "': expected rows as trained, got rows quantised for serving";
      }
      if (!status.ok()) return status;
      for (const int64_t key : block.erased) row_of_[key] = kErased;
      for (size_t i = 0; i < block.rows.keys.size(); ++i) Set(block.rows, i);
    }
    return "";
  }

  bool Has(int64_t key) const { return row_of_.count(key) > 0; }

  // write(rows) for blocks of the rows that were not erased.
  template <typename Write>
  Status ForBlocks(const Write& write) const {
    KeyedRows block;
    Status status;
    for (const auto& [key, row] : row_of_) {
      if (row == kErased) continue;
      Append(rows_, row, row_bytes_, &block);
      if (static_cast<int64_t>(block.keys.size()) < kRowsAtATime) continue;
      status = write(block);
      if (!status.ok()) return status;
      block = KeyedRows();
    }
    return block.keys.empty() ? "" : write(block);
  }

 private:
  static constexpr int64_t kErased = -1;

  void Set(const KeyedRows& from, size_t row) {
    const auto [at, is_new] = row_of_.emplace(from.keys[row], kErased);
    if (at->second == kErased) {
      at->second = static_cast<int64_t>(rows_.keys.size());
      return Append(from, row, row_bytes_, &rows_);
    }
    const int64_t to = at->second;
    rows_.counts[to] = from.counts[row];
    rows_.versions[to] = from.versions[row];
    std::copy_n(from.values.begin() + row * row_bytes_, row_bytes_,
                rows_.values.begin() + to * row_bytes_);
  }

  const TableFileHeader& base_;
  const FileSource& files_;
  const size_t row_bytes_;
  std::unordered_map<int64_t, int64_t> row_of_;  // in rows_, or kErased
  KeyedRows rows_;
};

// A file of rows, in the format that they were trained in or in another one.
class RowsWriter {
 public:
  RowsWriter(const TableFileHeader& header, std::optional<RowFormat> format,
             const std::string& path, const FileSystem& files)
      : header_(header), format_(format), file_(path, files) {}

  TableFileWriter* file() { return &file_; }

  Status Add(const KeyedRows& rows) {
    if (rows.keys.empty()) return "";
    if (!format_.has_value() || *format_ == FormatOf(header_.dtype)) return file_.AddRows(rows);
    EncodedRows encoded;
    encoded.format = *format_;
    encoded.keys = rows.keys;
    const int64_t row_bytes = RowBytes(*format_, header_.dim);
    const int64_t value_bytes = header_.dim * SizeOf(header_.dtype);
    encoded.rows.resize(rows.keys.size() * row_bytes);
    for (size_t row = 0; row < rows.keys.size(); ++row) {
      EncodeRow(header_.dtype, rows.values.data() + row * value_bytes, header_.dim, *format_,
                encoded.rows.data() + row * row_bytes);
    }
    return file_.AddEncoded(encoded);
  }

 private:
  const TableFileHeader header_;
  const std::optional<RowFormat> format_;
  TableFileWriter file_;
};

// Initial rows are in front of all others in a file.
Status ReadInitialRows(const std::string& path, const FileSource& files,
                       std::vector<char>* initial) {
  TableFileReader file(path, files);
  Status status = file.Open();
  const TableFileHeader& header = file.header();
  const size_t bytes = header.initial.matrix_rows * header.dim * SizeOf(header.dtype);
  for (TableFileBlock block; status.ok() && initial->size() < bytes;) {
    status = file.Next(&block);
    initial->insert(initial->end(), block.initial_rows.begin(), block.initial_rows.end());
  }
  return status;
}

// The rows of one file of the base that have not changed.
Status CopyRows(const std::string& path, const FileSource& files, const ChangedRows& changed,
                RowsWriter* writer) {
  TableFileReader file(path, files);
  Status status = file.Open();
  const size_t row_bytes = file.header().dim * SizeOf(file.header().dtype);
  for (TableFileBlock block; status.ok() && !block.is_last;) {
    status = file.Next(&block);
    if (status.ok() && file.has_encoded()) {
      status = "file '" + path + "': expected rows as trained, got rows quantised for serving";
    }
    if (!status.ok()) break;
    KeyedRows kept;
    for (size_t i = 0; i < block.rows.keys.size(); ++i) {
      if (!changed.Has(block.rows.keys[i])) Append(block.rows, i, row_bytes, &kept);
    }
    status = writer->Add(kept);
  }
  return status;
}

TableFileHeader WithoutSlots(const TableFileHeader& header) {
  TableFileHeader plain = header;
  plain.save_id = RandomBits();
  plain.part = 0;
  plain.num_parts = 1;
  plain.changes_only = false;
  plain.slots.clear();
  return plain;
}

}  // namespace

Status RewriteTable(const SavedTable& base, const std::vector<std::string>& deltas,
                    std::optional<RowFormat> format, const std::string& path,
                    const FileSystem& files, FileSum* sum) {
  std::vector<TableFileSummary> found;
  Status status = VerifySavedTable(base, base.table, &found);
  if (!status.ok()) return status;
  std::vector<std::string> full, changes;
  const TableFileHeader* header = nullptr;
  for (size_t f = 0; f < found.size(); ++f) {
    (found[f].header.changes_only ? changes : full).push_back(base.paths[f]);
    if (!found[f].header.changes_only && header == nullptr) header = &found[f].header;
  }
  changes.insert(changes.end(), deltas.begin(), deltas.end());
  ChangedRows changed(*header, *base.source);
  for (size_t f = 0; f < changes.size() && status.ok(); ++f) status = changed.Add(changes[f]);
  if (!status.ok()) return status;

  const TableFileHeader plain = WithoutSlots(*header);
  RowsWriter writer(plain, format, path, files);
  std::vector<char> initial;
  status = writer.file()->Open(plain);
  if (status.ok()) status = ReadInitialRows(full[0], *base.source, &initial);
  if (status.ok()) status = writer.file()->AddInitialRows(initial.data());
  for (size_t f = 0; f < full.size() && status.ok(); ++f) {
    status = CopyRows(full[f], *base.source, changed, &writer);
  }
  if (status.ok()) status = changed.ForBlocks([&](auto& rows) { return writer.Add(rows); });
  return status.ok() ? writer.file()->Finish(sum) : status;
}

}  // namespace group_embedding
