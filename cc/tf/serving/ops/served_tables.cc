#include "tf/serving/ops/served_tables.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "table/check_table.h"
#include "table/initial_values.h"
#include "tf/serving/ops/served_request.h"
#include "tf/support/embedding_table_resource.h"

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

absl::Status FromTier(const Status& status, const Deadline& deadline) {
  if (status.ok()) return absl::OkStatus();
  return deadline.is_over() ? absl::DeadlineExceededError(status.message())
                            : absl::UnavailableError(status.message());
}

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
  options.device_reads = device_ != nullptr;
  options.small_tables = device_ == nullptr ? &small_tables_ : nullptr;
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

uint64_t ServedTables::ContentOf(const std::string& table, const std::string& manifest) const {
  // A manifest has the checksums of its files. FNV-1a, mixed; never 0.
  const std::string all = table + '\n' + (quantize_ ? WordOf(*quantize_) : "") + '\n' + manifest;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return MixBits(hash) | 1;
}

absl::Status ServedTables::AttachComplete(Entry* entry, const LowerRowsId& id, bool* is_there) {
  *is_there = false;
  if (lower_ == nullptr) return absl::OkStatus();
  const ServedTableOptions options = entry->table->options();  // the table may be made again
  Status status;
  const Deadline deadline = Deadline::In(kPatienceToOpen);
  std::unique_ptr<LowerRows> rows = lower_->Find(id, options.dim, deadline, &status);
  TF_RETURN_IF_ERROR(FromTier(status, deadline));
  if (rows == nullptr) return absl::OkStatus();
  TF_RETURN_IF_ERROR(MakeAgain(entry, rows->format()));
  std::vector<char> initial;
  TF_RETURN_IF_ERROR(FromTier(rows->ReadInitial(deadline, &initial), deadline));
  const size_t all = options.matrix_rows * options.dim * SizeOf(options.dtype);
  if (all > 0 && initial.size() == all) entry->table->WriteInitialRows(initial.data());
  entry->table->Attach(std::move(rows));
  *is_there = true;
  return absl::OkStatus();
}

void ServedTables::AttachEmpty(ServedTable* table, const LowerRowsId& id) {
  if (lower_ == nullptr) return;
  table->Attach(lower_->Make(id, table->options().format, table->options().dim));
}

void ServedTables::StartCaches(const TierOptions& tiers) {
  // A row of a cache and its key: two words in a cell, of which half are free.
  const auto bytes_of_row = [](const ServedTable& table) { return table.row_bytes() + 32; };
  int64_t total = 0;
  std::vector<ServedTable*> tiered;
  for (auto& [name, entry] : entries_) {
    if (entry.table == nullptr || entry.table->lower() == nullptr) continue;
    tiered.push_back(entry.table.get());
    total += entry.table->num_keys() * bytes_of_row(*entry.table);
  }
  const double share = std::min(1.0, static_cast<double>(tiers.memory_bytes) /
                                         static_cast<double>(std::max<int64_t>(total, 1)));
  for (ServedTable* table : tiered) {
    const auto rows = static_cast<int64_t>(share * static_cast<double>(table->num_keys()));
    table->StartCache(rows, tiers, &threads_);
  }
  if (!tiers.expire || tiered.empty()) return;
  // Rows leave at most an eighth later than they may.
  const auto period = std::clamp<std::chrono::milliseconds>(
      *tiers.expire / 8, std::chrono::milliseconds(250), std::chrono::minutes(1));
  expiry_ = std::make_unique<PeriodicJob>(period, [tiered] {
    for (ServedTable* table : tiered) table->Expire(ServedTable::CacheSecond());
  });
}

#if GROUP_EMBEDDING_CUDA
absl::Status ServedTables::UseDevice(int gpu) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (gpu >= count) {
    return absl::InvalidArgumentError("option 'devices': expected a GPU that is here, of " +
                                      std::to_string(count) + ", got GPU:" + std::to_string(gpu));
  }
  return CatchErrors([&] {
    const OnDevice on_device(gpu);
    device_ = std::make_unique<ServedDevice>();
    device_->gpu = gpu;
    return absl::OkStatus();
  });
}

int64_t ServedTables::MakeResident(int64_t bytes) {
  std::vector<std::pair<int64_t, Entry*>> by_size;
  for (auto& [name, entry] : entries_) {
    if (entry.table == nullptr || entry.table->lower() != nullptr) continue;
    const ServedTable& table = *entry.table;
    by_size.emplace_back(ResidentRows::BytesFor(table.row_bytes(), table.num_rows()), &entry);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  auto left = static_cast<int64_t>(by_size.size());
  for (const auto& [wanted, entry] : by_size) {
    if (wanted > bytes / left--) break;
    bytes -= wanted;
    ServedTable& table = *entry->table;
    auto resident =
        std::make_unique<ResidentRows>(table.rows(), table.row_bytes(), table.num_rows(), wanted);
    entry->resident = resident.get();
    table.SetCopies(std::move(resident));
  }
  return bytes;
}

absl::Status ServedTables::MakeCopies(int64_t bytes) {
  return CatchErrors([&] {
    const OnDevice on_device(device_->gpu);
    if (bytes == 0) {
      size_t left = 0, all = 0;
      RequireCuda(cudaMemGetInfo(&left, &all));
      bytes = static_cast<int64_t>(left / 2);
    }
    bytes = MakeResident(bytes);
    const auto wanted = [](const ServedTable& table) {
      const int64_t num_rows = table.lower() == nullptr ? table.num_rows() : table.num_keys();
      return RowCache::BytesFor(table.row_bytes(), num_rows);
    };
    std::vector<Entry*> others;
    int64_t total = 0;
    for (auto& [name, entry] : entries_) {
      if (entry.table == nullptr || entry.resident != nullptr) continue;
      others.push_back(&entry);
      total += wanted(*entry.table);
    }
    const double share = std::min(
        1.0, static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(total, 1)));
    for (Entry* entry : others) {
      const ServedTable& table = *entry->table;
      const auto of_table = static_cast<int64_t>(share * static_cast<double>(wanted(table)));
      auto cache = std::make_unique<RowCache>(table.rows(), table.row_bytes(), of_table);
      entry->cache = cache.get();
      entry->table->SetCopies(std::move(cache));
    }
    return absl::OkStatus();
  });
}
#else
absl::Status ServedTables::UseDevice(int) {
  return absl::InvalidArgumentError(
      "option 'devices': expected the CPU, as this build of group_embedding has no CUDA");
}

int64_t ServedTables::MakeResident(int64_t bytes) { return bytes; }
absl::Status ServedTables::MakeCopies(int64_t) { return absl::OkStatus(); }
#endif

absl::Status FetchRows(ServedTable* table, const int64_t* keys, std::vector<int64_t> positions,
                       int64_t* rows) {
  ServedRequest* const request = ServedRequest::Current();
  bool is_late = false;
  const Status status =
      table->Fetch(keys, std::move(positions),
                   request == nullptr ? Deadline::Never() : request->read_deadline, rows, &is_late);
  if (status.ok()) return absl::OkStatus();
  const absl::Status failure = is_late ? absl::DeadlineExceededError(status.message())
                                       : absl::UnavailableError(status.message());
  if (request != nullptr) request->failure.Fail(failure);
  return failure;
}

}  // namespace group_embedding
