// ServedModel: how a delta becomes the next version.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "serving/table/pace.h"
#include "tensorflow/core/platform/env.h"
#include "tf/serving/session/served_model.h"
#include "tf/support/file_systems.h"
#include "tf/support/group_attrs.h"

namespace group_embedding {
namespace {

using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

int64_t ElementBytes(int32_t dtype) {
  if (!tensorflow::DataType_IsValid(dtype)) return 0;
  return tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(dtype));
}

std::string Words(const std::vector<int64_t>& dims) {
  std::string words = "[";
  for (size_t d = 0; d < dims.size(); ++d) words += (d > 0 ? "," : "") + std::to_string(dims[d]);
  return words + "]";
}

absl::Status CheckVariable(const std::string& key, tensorflow::DataType dtype,
                           const TensorShape& shape, const VariableChange& change) {
  const auto sizes = shape.dim_sizes();
  const std::vector<int64_t> dims(sizes.begin(), sizes.end());
  if (dtype == static_cast<tensorflow::DataType>(change.dtype) && dims == change.dims) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "variable '" + key + "': expected " + tensorflow::DataTypeString(dtype) + Words(dims) +
      ", got " + tensorflow::DataTypeString(static_cast<tensorflow::DataType>(change.dtype)) +
      Words(change.dims));
}

}  // namespace

absl::Status ServedModel::CheckFollows(const VersionRecord& record) const {
  const Version& now = slots_[requests_.current()].version;
  const std::string which = "version " + std::to_string(record.version);
  if (record.kind == VersionRecord::kRollback ||
      (record.kind == VersionRecord::kBase && record.parent < 0)) {
    return absl::FailedPreconditionError(which + ": expected a delta, got a " +
                                         (record.kind == VersionRecord::kBase
                                              ? "base without a parent; open it"
                                              : "rollback; open the base of its content"));
  }
  if (record.version <= now.number && record.parent_base_id == now.base_id) {
    return absl::AlreadyExistsError(which + ": the model has version " +
                                    std::to_string(now.number));
  }
  if (now.base_id == 0) {
    return absl::FailedPreconditionError(which + ": expected a base that a Publisher wrote, got '" +
                                         path_ + "', which has no assets.extra/version");
  }
  if (record.parent_base_id != now.base_id) {
    return absl::FailedPreconditionError(which + ": expected a delta of the open base, " +
                                         std::to_string(now.base) + ", got one of another base");
  }
  if (record.parent == now.number && record.version == record.parent + 1) return absl::OkStatus();
  return absl::FailedPreconditionError(which + ": expected the version after " +
                                       std::to_string(now.number) + ", got one after " +
                                       std::to_string(record.parent));
}

absl::Status ServedModel::ConvertVariable(const ServedVariable& variable, VariableChange* change,
                                          Tensor* value) {
  const Tensor former = *value;  // shares its memory with a session
  TF_RETURN_IF_ERROR(CheckVariable(variable.key, former.dtype(), former.shape(), *change));
  *value = Tensor(former.dtype(), former.shape());
  char* to = static_cast<char*>(value->data());
  if (change->whole) {
    if (!change->values.empty()) std::memcpy(to, change->values.data(), change->values.size());
    return absl::OkStatus();
  }
  if (value->TotalBytes() > 0) std::memcpy(to, former.data(), value->TotalBytes());
  if (change->rows.empty()) return absl::OkStatus();
  const size_t row_bytes = change->values.size() / change->rows.size();
  for (size_t r = 0; r < change->rows.size(); ++r) {
    std::memcpy(to + change->rows[r] * row_bytes, change->values.data() + r * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

absl::Status ServedModel::ConvertRows(const ServedVariable& variable, VariableChange* change,
                                      RowChanges* rows) {
  const auto entry = tables_->entries().find(variable.resource);
  if (entry == tables_->entries().end() || entry->second.table == nullptr) {
    return absl::InternalError("variable '" + variable.key + "' has no table");
  }
  const ServedTableOptions& options = entry->second.table->options();
  TF_RETURN_IF_ERROR(CheckVariable(variable.key, FromCore(options.dtype),
                                   TensorShape({options.max_rows, options.dim}), *change));
  rows->keys = std::move(change->rows);
  if (change->whole) {
    rows->keys.resize(options.max_rows);
    std::iota(rows->keys.begin(), rows->keys.end(), 0);
  }
  rows->values.assign(change->values.begin(), change->values.end());
  return absl::OkStatus();
}

absl::Status ServedModel::ReadChanges(const std::string& folder, const VersionRecord& record,
                                      Changes* changes) {
  std::map<std::string, ServedTables::Entry*> by_name;
  std::map<std::string, DeltaTable> tables;
  for (auto& [resource, entry] : tables_->entries()) {
    if (entry.table == nullptr || !entry.table->options().keyed) continue;
    if (!by_name.emplace(entry.table_name, &entry).second) {
      return absl::FailedPreconditionError("expected tables of different names, got several '" +
                                           entry.table_name +
                                           "', to which no delta can be applied");
    }
    tables[entry.table_name] = {entry.table->options().dim, entry.table->options().dtype};
  }
  Delta delta;
  const Status read = ReadDelta(folder, record, FileSystemOf(folder), tables, ElementBytes, &delta);
  if (!read.ok()) return absl::DataLossError(read.message());
  for (auto& [name, rows] : delta.tables) changes->rows[by_name[name]] = std::move(rows);
  TF_RETURN_IF_ERROR(ReadVariables(slots_[requests_.current()].session.get(), &changes->values));
  for (auto& [key, change] : delta.variables) {
    const auto variable = variables_.find(key);
    if (variable == variables_.end()) {
      return absl::FailedPreconditionError("variable '" + key +
                                           "': expected one that the SavedModel restores");
    }
    if (variable->second.resource.empty()) {
      TF_RETURN_IF_ERROR(ConvertVariable(variable->second, &change, &changes->values.at(key)));
    } else {
      ServedTables::Entry* entry = &tables_->entries().find(variable->second.resource)->second;
      TF_RETURN_IF_ERROR(ConvertRows(variable->second, &change, &changes->rows[entry]));
    }
  }
  return absl::OkStatus();
}

absl::Status ServedModel::WriteSlot(int index, const Changes& changes) {
  const int current = requests_.current();
  for (auto& [resource, entry] : tables_->entries()) {
    if (entry.table == nullptr) continue;
    entry.table->Drop(std::move(entry.overlays[index]));
    entry.table->Merge(entry.overlays[current].get());
  }
  for (const auto& [entry, rows] : changes.rows) {
    const Status staged = entry->table->Stage(rows, &entry->overlays[index]);
    if (!staged.ok()) return absl::ResourceExhaustedError(staged.message());
  }
  return Assign(slots_[index].session.get(), changes.values);
}

absl::Status ServedModel::Apply(const std::string& folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Pace pace([this] { return requests_.num_requests() > 0; });
  const std::string commit = folder + "/COMMIT";
  if (!tensorflow::Env::Default()->FileExists(commit).ok()) {
    return absl::DataLossError("'" + folder + "': expected a complete delta, with the file COMMIT");
  }
  VersionRecord record;
  const Status found = ReadVersionRecord(commit, FileSystemOf(commit), &record);
  if (!found.ok()) return absl::DataLossError(found.message());
  TF_RETURN_IF_ERROR(CheckFollows(record));
  Changes changes;
  TF_RETURN_IF_ERROR(ReadChanges(folder, record, &changes));

  const int current = requests_.current(), next = 1 - current;
  Slot& slot = slots_[next];
  slot.can_return_to = false;
  requests_.WaitUntilFree(next);
  const absl::Status written = WriteSlot(next, changes);
  if (!written.ok()) {
    for (auto& [resource, entry] : tables_->entries()) {
      if (entry.table != nullptr) entry.table->Drop(std::move(entry.overlays[next]));
    }
    return written;
  }
  slot.version = {record.version, record.step, record.time, record.base, record.base_id};
  applied_.push_back(folder);
  const absl::Status noted = WriteState();
  if (!noted.ok()) {
    applied_.pop_back();
    return noted;
  }
  slots_[current].can_return_to = true;
  requests_.Switch(next);
  return absl::OkStatus();
}

absl::Status ServedModel::Rollback() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int current = requests_.current(), former = 1 - current;
  Slot& slot = slots_[former];
  if (!slot.can_return_to) {
    return absl::FailedPreconditionError(
        "expected a version before the current one that is still there; only the last apply can be "
        "taken back, once");
  }
  // Requests that began before the last apply may read parts of an index that the next one frees.
  requests_.WaitUntilFree(former);
  std::vector<std::string> applied = applied_;
  if (!applied.empty()) applied.pop_back();
  applied_.swap(applied);
  const absl::Status noted = WriteState();
  if (!noted.ok()) {
    applied_.swap(applied);
    return noted;
  }
  slot.can_return_to = false;
  requests_.Switch(former);
  return absl::OkStatus();
}

// The state is a text: a title, the id of the base, and a folder a line.
absl::Status ServedModel::WriteState() {
  if (options_.state.empty()) return absl::OkStatus();
  std::string text = kStateTitle + std::to_string(base_.base_id) + "\n";
  for (const std::string& folder : applied_) text += folder + "\n";
  std::unique_ptr<WritableFile> file;
  Status status = FileSystemOf(options_.state).Create(options_.state, &file);
  if (status.ok()) status = file->Append(text.data(), text.size());
  if (status.ok()) status = file->Finish();
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError("state '" + options_.state + "': " + status.message());
}

absl::Status ServedModel::Resume() {
  tensorflow::Env* env = tensorflow::Env::Default();
  if (options_.state.empty() || !env->FileExists(options_.state).ok()) return absl::OkStatus();
  std::string text;
  TF_RETURN_IF_ERROR(tensorflow::ReadFileToString(env, options_.state, &text));
  const std::string title = kStateTitle;
  if (text.rfind(title, 0) != 0 || text.back() != '\n') {
    return absl::DataLossError("state '" + options_.state + "': expected a file that this wrote");
  }
  size_t at = title.size(), end = text.find('\n', at);
  if (text.substr(at, end - at) != std::to_string(base_.base_id)) return absl::OkStatus();
  for (at = end + 1; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    TF_RETURN_IF_ERROR(Apply(text.substr(at, end - at)));
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
