// ServingOptions: the options of ge_serving_open, from JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"

namespace group_embedding {

struct ServingOptions {
  std::string tensorflow;  // folder; empty: to be found
  std::vector<std::string> tags = {"serve"};
  std::optional<int64_t> version;
  std::optional<RowFormat> quantize;
  int32_t threads = 0;           // of one op; 0: one per core
  int32_t inter_op_threads = 0;  // for ops side by side; 0: a request's own thread runs them all
  std::string state;             // file; empty: none
  std::string rocksdb;           // folder, below host memory; empty: all rows are in memory
  int64_t memory_bytes = 0;      // for rows that are cached, with a tier below
};

// Reads "memory=16GB,rocksdb=FOLDER": sizes in bytes, or with kB, MB, GB, KiB, MiB or GiB.
Status ReadTiers(const std::string& text, ServingOptions* options);

// Reads one JSON object. An unknown key, or a value of another type, is an error.
Status ReadOptions(const std::string& json, ServingOptions* options);

// `text` as a JSON string, in quotes.
std::string Quoted(const std::string& text);

}  // namespace group_embedding
