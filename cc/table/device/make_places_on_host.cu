#include <exception>
#include <unordered_map>
#include <unordered_set>

#include "core/device_buffer.h"
#include "table/device/make_places_on_host.h"

namespace group_embedding {
namespace {

// The keys of a table that are to get a row, and where each of them comes first. The others may be
// overwritten by their rows already, as `rows` may be `keys`.
std::unordered_map<int64_t, int64_t> NewKeys(const std::vector<int64_t>& keys,
                                             const std::vector<int32_t>& gets_row) {
  std::unordered_map<int64_t, int64_t> at;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (gets_row[i] != 0) at[keys[i]] = static_cast<int64_t>(i);
  }
  return at;
}

Status MakePlacesInTable(const LocatePlan& plan, const LocateArgs& args, size_t t,
                         cudaStream_t stream) {
  std::vector<int64_t> keys;
  for (const LocateTask& task : plan.tasks) {
    if (task.table != static_cast<int64_t>(t)) continue;
    const std::vector<int64_t> some = ToHost(task.keys, task.num_keys, stream);
    keys.insert(keys.end(), some.begin(), some.end());
  }
  int32_t* const of_table = args.gets_row + plan.table_positions[t];
  std::vector<int32_t> gets_row = ToHost(of_table, plan.KeysOf(t), stream);
  const auto at = NewKeys(keys, gets_row);
  std::unordered_set<int64_t> new_keys;
  for (const auto& [key, i] : at) new_keys.insert(key);
  const Status status = plan.tables[t]->MakePlacesOnHost(plan.KeysOf(t), &new_keys);
  if (!status.ok() || new_keys.size() == at.size()) return status;
  for (const auto& [key, i] : at) gets_row[i] = new_keys.count(key) > 0;
  const size_t bytes = gets_row.size() * sizeof(int32_t);
  RequireCuda(cudaMemcpyAsync(of_table, gets_row.data(), bytes, cudaMemcpyHostToDevice, stream));
  RequireCuda(cudaStreamSynchronize(stream));
  return {};
}

Status TryToMakePlacesInTable(const LocatePlan& plan, const LocateArgs& args, size_t t,
                              cudaStream_t stream) {
  try {
    return MakePlacesInTable(plan, args, t, stream);
  } catch (const std::exception& error) {  // such as of memory that has run out
    return std::string(error.what());
  }
}

}  // namespace

Status MakePlacesOnHost(const LocatePlan& plan, const LocateArgs& args, cudaStream_t stream) {
  Status status;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (args.admits_all || !plan.tables[t]->makes_places_on_host()) continue;
    const Status failed = TryToMakePlacesInTable(plan, args, t, stream);
    if (failed.ok()) continue;
    if (status.ok()) status = failed;
    cudaMemsetAsync(args.gets_row + plan.table_positions[t], 0, plan.KeysOf(t) * sizeof(int32_t),
                    stream);
  }
  return status;
}

}  // namespace group_embedding
