// LocatePlan: the keys of a call that locates rows, in the order of their positions: table after
// table, and of each table request after request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/descriptors.cuh"
#include "table/device/device_hash.h"
#include "table/device/device_table.h"
#include "table/device/locate_rows.cuh"

namespace group_embedding {

struct LocatePlan {
  std::vector<LocateTask> tasks;  // the requests
  std::vector<DeviceHash*> tables;
  std::vector<std::vector<int64_t>> batches;  // of each table, those of its requests
  std::vector<int64_t> first_positions = {0}, table_positions = {0};
  BlockPlan blocks;
  bool has_filter = false, has_bloom = false, has_reads = false, has_decay = false;
  bool has_budget = false;
  // The slots of the call that a table's new keys claim, two for each key; no buckets: they claim
  // slots of its index (DeviceHash::claims_of_call).
  std::vector<IndexArea> claim_areas;
  bool claims_of_call = false;

  int64_t num_positions() const { return first_positions.back(); }
  uint64_t num_claim_buckets() const {
    return claim_areas.empty() ? 0 : claim_areas.back().first + claim_areas.back().num_buckets;
  }
  int64_t KeysOf(size_t t) const { return table_positions[t + 1] - table_positions[t]; }
  bool HasSnapshot() const {
    return std::any_of(tables.begin(), tables.end(),
                       [](const DeviceHash* table) { return table->snapshot() != nullptr; });
  }
};

LocatePlan PlanLocate(const DeviceKeysToLocate* requests, int64_t num_requests);

// The keys of each table of the plan.
std::vector<std::vector<DeviceKeys>> KeysOfTables(const LocatePlan& plan);

}  // namespace group_embedding
