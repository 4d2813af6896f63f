#include <map>

#include "table/device/locate_plan.h"

namespace group_embedding {

LocatePlan PlanLocate(const DeviceKeysToLocate* requests, int64_t num_requests) {
  LocatePlan plan;
  std::vector<std::vector<int64_t>> requests_of;
  std::map<DeviceHash*, size_t> index_of;
  for (int64_t r = 0; r < num_requests; ++r) {
    const auto [at, is_new] = index_of.try_emplace(requests[r].table, plan.tables.size());
    if (is_new) {
      plan.tables.push_back(requests[r].table);
      plan.batches.emplace_back();
      requests_of.emplace_back();
      const Admission::Kind kind = requests[r].table->options().admission.kind;
      plan.has_filter |= kind != Admission::Kind::kAll;
      plan.has_bloom |= kind == Admission::Kind::kBloom;
      plan.has_decay |= requests[r].table->options().budget.decay_steps > 0;
      plan.has_budget |= requests[r].table->options().budget.is_given();
      plan.claims_of_call |= requests[r].table->claims_of_call();
    }
    requests_of[at->second].push_back(r);
    plan.batches[at->second].push_back(requests[r].batch);
  }
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    for (const int64_t r : requests_of[t]) {
      const DeviceKeysToLocate& from = requests[r];
      plan.tasks.push_back({from.keys, from.rows, from.times, from.reads, from.num_keys,
                            plan.num_positions(), static_cast<int64_t>(t)});
      plan.has_reads |= from.reads != nullptr;
      plan.first_positions.push_back(plan.num_positions() + from.num_keys);
      plan.blocks.Append((from.num_keys + kLocateThreads - 1) / kLocateThreads);
    }
    plan.table_positions.push_back(plan.num_positions());
    const uint64_t slots = plan.tables[t]->claims_of_call() ? 2 * plan.KeysOf(t) : 0;
    plan.claim_areas.push_back(
        {plan.num_claim_buckets(), (slots + kBucketSlots - 1) / kBucketSlots});
  }
  return plan;
}

std::vector<std::vector<DeviceKeys>> KeysOfTables(const LocatePlan& plan) {
  std::vector<std::vector<DeviceKeys>> keys(plan.tables.size());
  for (const LocateTask& task : plan.tasks) keys[task.table].push_back({task.keys, task.num_keys});
  return keys;
}

}  // namespace group_embedding
