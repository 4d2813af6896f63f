// UseCounts: what a keyed table was asked for and what it did, since it was made.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace group_embedding {

// Rows in which the age of the oldest is looked for, at most.
constexpr int64_t kMostLookedAt = 1 << 16;

// Keys that went by what a table evicts by, each by the first of these.
struct ExpiredCounts {
  int64_t by_steps = 0, by_minutes = 0, by_norm = 0;

  void operator+=(const ExpiredCounts& more) {
    by_steps += more.by_steps;
    by_minutes += more.by_minutes;
    by_norm += more.by_norm;
  }
};

struct UseCounts {
  int64_t num_looked_up = 0;              // ids of located batches
  std::array<int64_t, 3> num_found = {};  // of these, with a row when the batch came, by its tier
  int64_t num_admitted = 0;               // keys that got a row as they were trained
  ExpiredCounts expired;                  // keys
  int64_t wait_nanoseconds = 0;           // for which batches waited for rows from below
  // By samples of the keys of some batches: how many ids there were, how many different keys, and
  // the largest share that one key had of the ids of a batch.
  int64_t num_sampled_ids = 0, num_sampled_keys = 0;
  double hottest_share = 0;
  int64_t oldest_steps = -1;  // for which a key was not trained, the longest in a sample; -1: none

  // version: the step in which a key was trained last; -1: not known.
  void AddAge(int64_t last_step, int64_t version) {
    if (version >= 0) oldest_steps = std::max(oldest_steps, last_step - version);
  }
};

}  // namespace group_embedding
