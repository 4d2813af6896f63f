// BudgetUse: what a table in host memory has done to keep its budget.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "table/evicted_rows.h"

namespace group_embedding {

struct BudgetUse {
  // The lock of training: held from the count of new keys until they have their rows.
  std::mutex training;
  std::atomic<int64_t> num_evicted{0};
  std::atomic<int64_t> num_without_place{0};
  // Keys without a row that were counted since the table was made, and of each share those that
  // are counted, as of the moment when so many had been; empty: not known.
  std::atomic<int64_t> num_counted{0};
  std::vector<int64_t> counted_of_share;
  int64_t num_counted_then = 0;
  std::unique_ptr<EvictedRows> evicted;  // null: evicted keys are not handed out
};

}  // namespace group_embedding
