#include "tf/support/served_tables.h"

#include <utility>

#include "table/check_table.h"

namespace group_embedding {
namespace {

struct Registry {
  std::mutex mutex;
  int64_t next = 1;
  std::map<int64_t, std::shared_ptr<ServedTables>> tables;
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

std::string WordOf(RowFormat format) {
  for (const auto& [word, value] : RowFormatWords()) {
    if (value == format) return word;
  }
  return "";
}

}  // namespace

int64_t ServedTables::Register(std::shared_ptr<ServedTables> tables) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.tables[registry.next] = std::move(tables);
  return registry.next++;
}

void ServedTables::Unregister(int64_t number) {
  std::shared_ptr<ServedTables> last;  // freed without the lock
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.tables.find(number);
  if (found == registry.tables.end()) return;
  last = std::move(found->second);
  registry.tables.erase(found);
}

absl::Status ServedTables::Find(int64_t number, std::shared_ptr<ServedTables>* tables) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.tables.find(number);
  if (found == registry.tables.end()) {
    return absl::NotFoundError("expected a served model that is open, got number " +
                               std::to_string(number));
  }
  *tables = found->second;
  return absl::OkStatus();
}

ServedTables::Entry* ServedTables::Get(const std::string& resource, const std::string& table_name) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[resource];
  entry.table_name = table_name;
  return &entry;
}

absl::Status ServedTables::Make(Entry* entry, ServedTableOptions options, const void* matrix) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (entry->table != nullptr) return absl::OkStatus();
  options.name = entry->table_name;
  options.format = quantize_.value_or(FormatOf(options.dtype));
  Status status;
  auto table = std::make_unique<ServedTable>(options, matrix, &status);
  if (!status.ok()) {
    return absl::ResourceExhaustedError("table '" + options.name + "': " + status.message());
  }
  entry->table = std::move(table);
  return absl::OkStatus();
}

absl::Status ServedTables::MakeAgain(Entry* entry, RowFormat format) {
  std::lock_guard<std::mutex> lock(mutex_);
  ServedTableOptions options = entry->table->options();
  if (options.format == format) return absl::OkStatus();
  if (quantize_.has_value()) {
    return absl::InvalidArgumentError(
        "table '" + options.name + "': expected 'quantize' to be '" + WordOf(format) +
        "', as which its rows were stored, or none, got '" + WordOf(*quantize_) + "'");
  }
  // As trained, since it was not quantised: all bits of initial values.
  const std::unique_ptr<ServedTable> former = std::move(entry->table);
  options.format = format;
  Status status;
  entry->table = std::make_unique<ServedTable>(
      options, options.matrix_rows > 0 ? former->rows() : nullptr, &status);
  if (status.ok()) return absl::OkStatus();
  return absl::ResourceExhaustedError("table '" + options.name + "': " + status.message());
}

}  // namespace group_embedding
