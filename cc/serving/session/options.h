// ServingOptions: the options of ge_serving_open, from JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"
#include "serving/lower/tier_options.h"

namespace group_embedding {

struct ServingOptions {
  std::string tensorflow;  // folder; empty: to be found
  std::vector<std::string> tags = {"serve"};
  std::optional<int64_t> version;
  std::optional<RowFormat> quantize;
  int32_t threads = 0;           // of one op; 0: one per core
  int32_t inter_op_threads = 0;  // for ops side by side; 0: a request's own thread runs them all
  int32_t gpu = -1;              // that lookups and the dense part run on; -1: the CPU
  std::string state;             // file; empty: none
  TierOptions tiers;
};

// Reads one JSON object. An unknown key, or a value of another type, is an error.
Status ReadOptions(const std::string& json, ServingOptions* options);

// `text` as a JSON string, in quotes.
std::string Quoted(const std::string& text);

}  // namespace group_embedding
