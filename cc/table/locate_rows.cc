#include "table/locate_rows.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "table/no_memory.h"

namespace group_embedding {
namespace {

// One table's share of the call. It tells its errors of memory as the table's.
class TableShare {
 public:
  TableShare(HostTable* table, std::vector<KeysToLocate> requests, Access access, int64_t step)
      : options_(table->options()), locator_(table->Locate(std::move(requests), access, step)) {}

  const RowLocator& locator() const { return *locator_; }
  bool HasStep(int step) const { return step < locator_->num_steps(); }
  Status BeginStep(int step, const ParallelFor& parallel_for) {
    return CatchNoMemory(options_, [&] { return locator_->BeginStep(step, parallel_for); });
  }
  Status RunTask(int step, int64_t task) {
    return CatchNoMemory(options_, [&] { return locator_->RunTask(step, task); });
  }
  void End() { locator_->End(); }

 private:
  const TableOptions& options_;
  const std::unique_ptr<RowLocator> locator_;
};

// Runs the tasks of a step of those tables that have it. Returns the error of one that failed.
Status RunStep(std::deque<TableShare>* shares, int step, const ParallelFor& parallel_for) {
  std::vector<TableShare*> having;
  std::vector<int64_t> begins = {0};  // of each table's tasks among all
  int64_t cost = 0;
  for (TableShare& share : *shares) {
    if (!share.HasStep(step)) continue;
    having.push_back(&share);
    begins.push_back(begins.back() + share.locator().num_tasks(step));
    cost += share.locator().cost(step);
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
  std::deque<TableShare> shares;
  int num_steps = 0;
  for (auto& [table, keys] : of_table) {
    shares.emplace_back(table, std::move(keys), access, step);
    num_steps = std::max(num_steps, shares.back().locator().num_steps());
  }
  for (int s = 0; s < num_steps; ++s) {
    for (TableShare& share : shares) {
      if (!share.HasStep(s)) continue;
      Status status = share.BeginStep(s, parallel_for);
      if (!status.ok()) return status;
    }
    Status status = RunStep(&shares, s, parallel_for);
    if (!status.ok()) return status;
  }
  for (TableShare& share : shares) share.End();
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
