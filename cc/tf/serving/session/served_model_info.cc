// What a served model tells about itself, as JSON.
#include <string>
#include <utility>

#include "core/row_format.h"
#include "tensorflow/core/platform/env.h"
#include "tf/serving/session/served_model.h"

namespace group_embedding {
namespace {

using ::tensorflow::Env;

// More keys of InfoJson for a tiered table.
std::string TierJson(const ServedTable& table) {
  if (table.lower() == nullptr) return "";
  const TierCounts counts = table.tier_counts();
  std::string json = ", \"tier\": " + Quoted(table.lower()->tier());
  for (const auto& [name, count] : {std::pair<const char*, int64_t>{"in_memory", counts.in_memory},
                                    {"below", counts.below},
                                    {"absent", counts.absent},
                                    {"defaulted", counts.defaulted},
                                    {"fetched", counts.fetched},
                                    {"failures", counts.failures},
                                    {"timeouts", counts.timeouts},
                                    {"evicted", counts.evicted},
                                    {"expired", counts.expired},
                                    {"cached", counts.cached},
                                    {"cached_bytes", counts.cached_bytes}}) {
    json += ", \"" + std::string(name) + "\": " + std::to_string(count);
  }
  json += ", \"reads\": [";
  for (int b = 0; b < Latencies::kBuckets; b += Latencies::kPerDoubling) {
    json += (b > 0 ? ", " : "") + std::to_string(table.lower_seconds().UpTo(b));
  }
  return json + "], \"read_seconds\": " + std::to_string(table.lower_seconds().Sum());
}

// More keys of InfoJson for a table with rows on a GPU.
std::string CopiesJson(const ServedTables::Entry& entry) {
#if GROUP_EMBEDDING_CUDA
  if (entry.resident != nullptr) {
    return ", \"copies\": {\"resident\": true, \"bytes\": " +
           std::to_string(entry.resident->bytes()) +
           ", \"rows\": " + std::to_string(entry.resident->num_rows()) + "}";
  }
  if (entry.cache != nullptr) {
    const RowCacheCounts counts = entry.cache->counts();
    return ", \"copies\": {\"resident\": false, \"bytes\": " +
           std::to_string(entry.cache->bytes()) + ", \"rows\": " + std::to_string(counts.capacity) +
           ", \"found\": " + std::to_string(counts.found) +
           ", \"brought\": " + std::to_string(counts.brought) +
           ", \"kept\": " + std::to_string(counts.kept) + "}";
  }
#endif
  return "";
}

}  // namespace

std::string ServedModel::SignaturesJson() const {
  std::string json = "{";
  for (const auto& [name, signature] : signatures_) {
    json += (json.size() > 1 ? ", " : "") + Quoted(name) + ": " + signature.Json();
  }
  return json + "}";
}

std::string ServedModel::KeyOf(const std::string& resource) const {
  for (const auto& [key, variable] : variables_) {
    if (variable.resource == resource) return Quoted(key);
  }
  return "null";
}

std::string ServedModel::InfoJson() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int current = requests_.current();
  const Version& version = slots_[current].version;
  const Slot& other = slots_[1 - current];
  auto seconds = [](int64_t micros) { return std::to_string(static_cast<double>(micros) / 1e6); };
  const int64_t now = static_cast<int64_t>(Env::Default()->NowMicros());
  std::string tables;
  int64_t total = 0;
  for (const auto& [name, entry] : tables_->entries()) {
    if (entry.table == nullptr) continue;
    const ServedTableOptions& options = entry.table->options();
    std::string storage;
    for (const auto& [word, format] : RowFormatWords()) {
      if (format == options.format) storage = word;
    }
    const int64_t bytes = entry.table->bytes();
    total += bytes;
    tables += (tables.empty() ? "" : ", ") + ("{\"name\": " + Quoted(entry.table_name)) +
              ", \"rows\": " + std::to_string(entry.table->num_keys()) +
              ", \"dim\": " + std::to_string(options.dim) + ", \"storage\": " + Quoted(storage) +
              ", \"bytes\": " + std::to_string(bytes) + ", \"variable\": " + KeyOf(name) +
              TierJson(*entry.table) + CopiesJson(entry) + "}";
  }
  std::string quantize = "null";
  for (const auto& [word, format] : RowFormatWords()) {
    if (options_.quantize == format) quantize = Quoted(word);
  }
  return "{\"path\": " + Quoted(path_) + ", \"base_version\": " + std::to_string(version.base) +
         ", \"version\": " + std::to_string(version.number) + ", \"previous_version\": " +
         (other.can_return_to ? std::to_string(other.version.number) : "null") +
         ", \"step\": " + (version.step < 0 ? "null" : std::to_string(version.step)) +
         ", \"time\": " + (version.time < 0 ? "null" : seconds(version.time)) +
         ", \"staleness_seconds\": " + (version.time < 0 ? "null" : seconds(now - version.time)) +
         ", \"quantize\": " + quantize + ", \"memory_bytes\": " + std::to_string(total) +
         ", \"tables\": [" + tables + "]}";
}

}  // namespace group_embedding
