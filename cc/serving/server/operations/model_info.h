// What a model tells of itself: the JSON of ge_serving_info.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"

namespace group_embedding::server {

// The numbers of a table whose rows are below memory: see TierCounts.
struct TierInfo {
  std::string tier;  // "rocksdb"
  int64_t in_memory = 0, below = 0, absent = 0, defaulted = 0;
  int64_t failures = 0, timeouts = 0, evicted = 0, expired = 0, cached = 0, cached_bytes = 0;
  std::vector<int64_t> reads;  // by their time: up to 1 us, 2 us, 4 us, ...
  double read_seconds = 0;     // of all reads
};

struct TableInfo {
  std::string name, storage;
  int64_t rows = 0, dim = 0, bytes = 0;
  std::optional<TierInfo> tier;
};

struct ModelInfo {
  int64_t version = 0, base_version = 0, memory_bytes = 0;
  std::optional<int64_t> step;              // of the trainer
  std::optional<double> staleness_seconds;  // since the trainer published the version
  std::string path;
  std::vector<TableInfo> tables;
};

Status ReadModelInfo(const OpenModel& model, ModelInfo* info);

}  // namespace group_embedding::server
