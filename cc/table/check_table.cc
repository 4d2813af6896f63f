#include "table/check_table.h"

#include <unistd.h>

#include "table/host/bloom_counters.h"

namespace group_embedding {
namespace {

// "table 'user', dim: expected 1 to 4096, got 0", or nothing.
Status CheckRange(const TableOptions& options, const char* what, int64_t value, int64_t least,
                  int64_t most) {
  if (value >= least && value <= most) return {};
  return "table '" + options.name + "', " + what + ": expected " + std::to_string(least) + " to " +
         std::to_string(most) + ", got " + std::to_string(value);
}

Status CheckBloom(const TableOptions& options) {
  const Admission& admission = options.admission;
  const int32_t bytes = admission.counter_bytes;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
    return "table '" + options.name + "', bytes of a counter of the Bloom filter: expected 1, 2, " +
           "4 or 8, got " + std::to_string(bytes);
  }
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  Status status = CheckRange(options, "counters of the Bloom filter (as many as memory holds)",
                             admission.num_counters, 1, memory / bytes);
  if (status.ok()) {
    status = CheckRange(options, "hashes of the Bloom filter", admission.num_hashes, 1,
                        BloomCounters::kMaxHashes);
  }
  if (status.ok() && bytes < 8) {
    status = CheckRange(options, "times that a counter of the Bloom filter must count to",
                        admission.min_count, 0, (int64_t{1} << (8 * bytes)) - 1);
  }
  return status;
}

Status CheckBudget(const TableOptions& options) {
  const Budget& budget = options.budget;
  Status status = CheckRange(options, "keys of the budget", budget.max_keys, 0, kMaxCount);
  if (status.ok())
    status = CheckRange(options, "bytes of the budget", budget.max_bytes, 0, kMaxTierBytes);
  if (status.ok() && budget.max_keys > 0 && budget.max_bytes > 0) {
    status = "table '" + options.name + "': expected a budget of keys or of bytes, got both: " +
             std::to_string(budget.max_keys) + " and " + std::to_string(budget.max_bytes);
  }
  if (status.ok() && !(budget.keep > 0 && budget.keep <= 1)) {
    status = "table '" + options.name + "', keep of the budget: expected above 0 and at most 1, " +
             "got " + std::to_string(budget.keep);
  }
  if (status.ok())
    status = CheckRange(options, "steps of a decay", budget.decay_steps, 0, kMaxCount);
  if (status.ok()) status = CheckRange(options, "safe steps", budget.safe_steps, 0, kMaxCount);
  if (status.ok()) status = CheckRange(options, "ranks", budget.num_ranks, 1, 1 << 20);
  if (status.ok()) status = CheckRange(options, "rank", budget.rank, 0, budget.num_ranks - 1);
  if (status.ok() && (budget.num_shares < 0 || budget.num_shares % budget.num_ranks != 0)) {
    status = "table '" + options.name + "', shares of the budget: expected a multiple of " +
             std::to_string(budget.num_ranks) + " ranks, got " + std::to_string(budget.num_shares);
  }
  return status;
}

}  // namespace

Status CheckOptions(const TableOptions& options) {
  Status status = CheckRange(options, "dim", options.dim, 1, kMaxTableDim);
  if (status.ok()) status = CheckTierBytes(options, options.max_bytes);
  if (status.ok()) {
    status = CheckRange(options, "times that a key must be trained to get a row",
                        options.admission.min_count, 0, kMaxCount);
  }
  if (status.ok() && options.admission.kind == Admission::Kind::kBloom) {
    status = CheckBloom(options);
  }
  if (status.ok() && !(options.admission.probability > 0 && options.admission.probability <= 1)) {
    status = "table '" + options.name + "', probability of admission: expected above 0 and at " +
             "most 1, got " + std::to_string(options.admission.probability);
  }
  if (status.ok()) status = CheckBudget(options);
  return status;
}

Status CheckTierBytes(const TableOptions& options, int64_t bytes) {
  return CheckRange(options, "bytes of a tier", bytes, 0, kMaxTierBytes);
}

Status TooFewBytes(const Budget& budget, int64_t enough, int64_t without_keys) {
  const bool is_of_all = budget.num_shares > 0;
  return "expected a budget for at least " + std::to_string(budget.shares_of_rank()) +
         " keys, got max_bytes=" + std::to_string(budget.max_bytes) +
         (is_of_all ? " for each of " + std::to_string(budget.num_ranks) + " ranks" : "") +
         "; raise it to at least " + std::to_string(enough) + (is_of_all ? " for each" : "") +
         ", as the table without keys takes " + std::to_string(without_keys);
}

Status CheckCounts(const TableOptions& options, const KeyedRowsView& rows) {
  if (rows.counts == nullptr) return {};
  for (int64_t i = 0; i < rows.num_keys; ++i) {
    if (rows.counts[i] >= 0) continue;
    return "table '" + options.name + "', key " + std::to_string(rows.keys[i]) +
           ": expected a frequency of 0 or more, got " + std::to_string(rows.counts[i]);
  }
  return {};
}

}  // namespace group_embedding
