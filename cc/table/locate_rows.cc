#include "table/locate_rows.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace group_embedding {
namespace {

using Locators = std::vector<std::unique_ptr<RowLocator>>;

// Runs the tasks of a step of those tables that have it. Returns the error of one that failed.
Status RunStep(const Locators& locators, int step, const ParallelFor& parallel_for) {
  std::vector<RowLocator*> having;
  std::vector<int64_t> begins = {0};  // of each table's tasks among all
  int64_t cost = 0;
  for (const auto& locator : locators) {
    if (step >= locator->num_steps()) continue;
    having.push_back(locator.get());
    begins.push_back(begins.back() + locator->num_tasks(step));
    cost += locator->cost(step);
  }
  std::mutex mutex;
  Status status;
  parallel_for(begins.back(), cost / (begins.back() + 1), [&](int64_t first, int64_t last) {
    size_t t = std::upper_bound(begins.begin(), begins.end(), first) - begins.begin() - 1;
    for (int64_t task = first; task < last; ++task) {
      while (task >= begins[t + 1]) ++t;
      Status failed = having[t]->RunTask(step, task - begins[t]);
      if (failed.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex);
      status = std::move(failed);
    }
  });
  return status;
}

}  // namespace

Status LocateRowsCpu(const KeysToLocate* requests, int64_t num_requests, Access access,
                     int64_t step, const ParallelFor& parallel_for) {
  std::map<HostTable*, std::vector<KeysToLocate>> of_table;  // in the order that all calls share
  for (int64_t r = 0; r < num_requests; ++r) of_table[requests[r].table].push_back(requests[r]);
  Locators locators;
  int num_steps = 0;
  for (auto& [table, keys] : of_table) {
    locators.push_back(table->Locate(std::move(keys), access, step));
    num_steps = std::max(num_steps, locators.back()->num_steps());
  }
  for (int s = 0; s < num_steps; ++s) {
    for (const auto& locator : locators) {
      if (s >= locator->num_steps()) continue;
      Status status = locator->BeginStep(s, parallel_for);
      if (!status.ok()) return status;
    }
    Status status = RunStep(locators, s, parallel_for);
    if (!status.ok()) return status;
  }
  for (const auto& locator : locators) locator->End();
  return {};
}

Status HostTable::ReadRows(const int64_t* keys, int64_t num_keys, void* values,
                           const ParallelFor& parallel_for) {
  constexpr int64_t kNanoseconds = 20;  // a row, about
  std::vector<int64_t> found(num_keys);
  const KeysToLocate request = {this, keys, num_keys, found.data()};
  Status status = LocateRowsCpu(&request, 1, Access::kRead, -1, parallel_for);
  if (!status.ok()) return status;
  const int64_t row_bytes = options().dim * SizeOf(options().dtype);
  const auto* from = static_cast<const char*>(rows().rows);
  auto* to = static_cast<char*>(values);
  parallel_for(num_keys, kNanoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + i * row_bytes, from + found[i] * row_bytes, row_bytes);
    }
  });
  return {};
}

}  // namespace group_embedding
