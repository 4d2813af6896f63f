// How rows leave the cache of a tiered ServedTable, and are used again.
#include <algorithm>
#include <chrono>
#include <utility>

#include "serving/table/served_table.h"

namespace group_embedding {
namespace {

// Keys that leave the cache at a time, of those that were scanned for it: the oldest of four.
constexpr int64_t kMostEvicted = 4096, kScannedForOne = 4;
// Cells that are looked at for expiry while requests wait to insert.
constexpr int64_t kScannedAtATime = 8192;
// Seconds between two marks of a row: a part of the time that rows stay, and no more than this.
constexpr int64_t kMarksOfLife = 16, kLongestMark = 16;

}  // namespace

int64_t ServedTable::CacheSecond() {
  using std::chrono::seconds;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<seconds>(now).count();
}

int64_t ServedTable::MarkSecond() const {
  const int64_t second = CacheSecond();
  return second - second % mark_seconds_.load(std::memory_order_relaxed);
}

int64_t ServedTable::LongestMark() const {
  return tiers_.expire ? std::clamp<int64_t>(tiers_.expire->count() / kMarksOfLife, 1, kLongestMark)
                       : kLongestMark;
}

// Takes the oldest of some keys out of the cache.
void ServedTable::EvictOldest() {
  const int64_t second = CacheSecond();
  struct Candidate {
    int64_t age, key;
  };
  std::vector<Candidate> candidates;
  const int64_t wanted = std::clamp<int64_t>(max_cached_ / 16, 1, kMostEvicted);
  const int64_t num_cells = index_->num_cells();
  for (int64_t scanned = 0, step; scanned < num_cells; scanned += step, num_scanned_ += step) {
    if (static_cast<int64_t>(candidates.size()) >= kScannedForOne * wanted) break;
    step = std::min(kScannedForOne * wanted, num_cells - scanned);  // no cell twice
    index_->ScanOn(step, second,
                   [&](int64_t key, int64_t, int64_t age) { candidates.push_back({age, key}); });
  }
  if (num_scanned_ >= num_cells) {
    const int64_t of_life = (second - round_began_) / kMarksOfLife;
    mark_seconds_ = std::clamp<int64_t>(of_life, 1, LongestMark());
    round_began_ = second;
    num_scanned_ = 0;
  }
  const int64_t count = std::min<int64_t>(wanted, static_cast<int64_t>(candidates.size()));
  std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.age > b.age; });
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(candidates[i].key);
  Evict(keys);
  counts_.evicted += count;
}

void ServedTable::Expire(int64_t second) {
  if (!tiers_.expire) return;
  int64_t num_cells;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_cells = index_->num_cells();
  }
  for (int64_t left = num_cells; left > 0; left -= kScannedAtATime) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> keys;
    index_->ScanOn(std::min(left, kScannedAtATime), second, [&](int64_t key, int64_t, int64_t age) {
      // Its last request was some time after the second that it is marked with.
      if (age >= tiers_.expire->count() + LongestMark()) keys.push_back(key);
    });
    Evict(keys);
    counts_.expired += static_cast<int64_t>(keys.size());
    Reclaim();
  }
}

void ServedTable::Evict(const std::vector<int64_t>& keys) {
  std::vector<int64_t> rows;
  for (const int64_t key : keys) {
    const int64_t row = index_->Erase(key);
    const bool has_row = row > options_.matrix_rows;
    if (has_row) rows.push_back(row);
    --(has_row ? num_cached_ : num_absent_);
  }
  Retire(rows);
}

// Rows wait until nobody reads them; until then the array may be longer than the limit, by what the
// requests in progress ask for.
void ServedTable::Retire(const std::vector<int64_t>& rows) {
  if (!rows.empty()) retired_.push_back({grace_.epoch(), rows, 0});
}

// Frees what nobody reads any more.
void ServedTable::Reclaim() {
  if (const size_t parts = index_->num_former_parts(); parts > num_retired_parts_) {
    retired_.push_back({grace_.epoch(), {}, parts - num_retired_parts_});
    num_retired_parts_ = parts;
  }
  if (retired_.empty()) return;
  grace_.TryAdvance();
  size_t num_free = 0, num_parts = 0;
  while (num_free < retired_.size() && grace_.IsFree(retired_[num_free].epoch)) {
    const Retired& retired = retired_[num_free++];
    Free(retired.rows);
    num_parts += retired.num_parts;
  }
  retired_.erase(retired_.begin(), retired_.begin() + num_free);
  index_->DropFormerParts(num_parts);
  num_retired_parts_ -= num_parts;
}

}  // namespace group_embedding
