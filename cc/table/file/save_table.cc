#include "table/file/save_table.h"

#include <algorithm>
#include <vector>

namespace group_embedding {
namespace {

constexpr int64_t kRowsAtATime = 1 << 12;

Status InTable(const std::string& name, const Status& status) {
  return status.In("table '" + name + "': ");
}

Status AddRows(Snapshot* snapshot, TableFileWriter* file) {
  Status status;
  for (int64_t row = 0; row < snapshot->num_rows() && status.ok(); row += kRowsAtATime) {
    KeyedRows rows;
    snapshot->Read(row, std::min(row + kRowsAtATime, snapshot->num_rows()), &rows);
    status = snapshot->status();
    if (status.ok() && !rows.keys.empty()) status = file->AddRows(rows);
  }
  return status;
}

}  // namespace

Status WriteTable(const TableFileHeader& header, Snapshot* snapshot, const std::string& path,
                  const FileSystem& files, FileSum* sum) {
  TableFileWriter file(path, files);
  Status status = file.Open(header);
  const TableOptions& options = snapshot->table().options();
  std::vector<char> initial(options.initial.matrix_rows * options.dim * SizeOf(options.dtype));
  if (!initial.empty()) snapshot->table().ReadInitialRows(initial.data());
  if (status.ok()) status = file.AddInitialRows(initial.data());
  if (status.ok()) status = file.AddErased(snapshot->erased());
  if (status.ok()) status = file.AddAdmission(snapshot->admission());
  if (status.ok()) status = AddRows(snapshot, &file);
  if (status.ok() && header.changes_only) status = file.AddErased(snapshot->evicted());
  if (status.ok()) status = file.Finish(sum);
  return InTable(header.table, status);
}

Status WriteChanges(const TableFileHeader& header, Snapshot* snapshot, const std::string& path,
                    const FileSystem& files, FileSum* sum, TableFileTotals* totals) {
  TableFileHeader values = header;
  values.changes_only = true;
  values.initial.matrix_rows = 0;
  values.slots.clear();
  TableFileWriter file(path, files);
  Status status = file.Open(values);
  if (status.ok()) status = file.AddErased(snapshot->erased());
  if (status.ok()) status = AddRows(snapshot, &file);
  if (status.ok()) status = file.Finish(sum);
  *totals = file.totals();
  return InTable(header.table, status);
}

}  // namespace group_embedding
