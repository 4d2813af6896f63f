// ServedTable above LowerRows: the array is a cache of the base's rows.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "serving/served_table.h"

namespace group_embedding {
namespace {

constexpr int64_t kKeysAtATime = 32;
// Keys that leave the cache at a time, of those that were scanned for it: the oldest of four.
constexpr int64_t kMostEvicted = 4096, kScannedForOne = 4;

int64_t Second() {
  using std::chrono::seconds;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<seconds>(now).count();
}

}  // namespace

void ServedTable::LimitRows(int64_t max_rows) {
  max_cached_ = std::max<int64_t>(max_rows, 1);
  // Keys that are nowhere are remembered, too.
  const int64_t num_keys = std::min(max_cached_, lower_->num_rows());
  index_ = std::make_unique<ServedIndex>(num_keys + num_keys / 4);
}

TierCounts ServedTable::tier_counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TierCounts counts = counts_;
  counts.cached = num_cached_;
  return counts;
}

int64_t ServedTable::LocateInCache(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                                   int64_t* rows) const {
  const int64_t second = Second();
  int64_t num_missing = 0;
  uint64_t hashes[kKeysAtATime];
  for (int64_t begin = 0; begin < num_keys; begin += kKeysAtATime) {
    const int64_t count = std::min(kKeysAtATime, num_keys - begin);
    for (int64_t i = 0; i < count; ++i) {
      hashes[i] = ServedIndex::HashOf(keys[begin + i]);
      index_->Prefetch(hashes[i]);
      if (overlay != nullptr) overlay->index_.Prefetch(hashes[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = keys[begin + i];
      int64_t row = ServedIndex::kNone;
      if (overlay != nullptr) row = overlay->index_.Find(key, hashes[i]);
      if (row == ServedIndex::kNone) row = index_->FindAndMark(key, hashes[i], second);
      num_missing += row == ServedIndex::kNone;
      rows[begin + i] = row == ServedIndex::kNone ? kNotInMemory : row;
    }
  }
  return num_missing;
}

Status ServedTable::Fetch(const int64_t* keys, std::vector<int64_t> positions, int64_t* rows) {
  const auto is_known = [&](int64_t p) { return rows[p] != kNotInMemory; };
  positions.erase(std::remove_if(positions.begin(), positions.end(), is_known), positions.end());
  // In the order of the disk, each once.
  const auto before = [&](int64_t a, int64_t b) {
    return static_cast<uint64_t>(keys[a]) < static_cast<uint64_t>(keys[b]);
  };
  std::sort(positions.begin(), positions.end(), before);
  std::vector<int64_t> wanted;
  for (const int64_t p : positions) {
    if (wanted.empty() || wanted.back() != keys[p]) wanted.push_back(keys[p]);
  }
  const int64_t num_wanted = static_cast<int64_t>(wanted.size());
  std::vector<char> values(num_wanted * row_bytes_);
  const std::unique_ptr<bool[]> found(new bool[num_wanted]);
  Status status =
      lower_->Read(wanted.data(), num_wanted, Deadline::Never(), found.get(), values.data());
  if (!status.ok()) return status;

  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t second = Second();
  Reclaim();
  size_t next = 0;
  for (int64_t i = 0; i < num_wanted; ++i) {
    int64_t row = index_->Find(wanted[i], ServedIndex::HashOf(wanted[i]));
    if (row == ServedIndex::kNone) {  // no other request has brought it meanwhile
      const char* of_key = found[i] ? values.data() + i * row_bytes_ : nullptr;
      status = CacheRow(wanted[i], of_key, second, &row);
      if (!status.ok()) return status;
    }
    for (; next < positions.size() && keys[positions[next]] == wanted[i]; ++next) {
      rows[positions[next]] = row;
    }
  }
  return {};
}

// `values`: null: the key is nowhere.
Status ServedTable::CacheRow(int64_t key, const char* values, int64_t second, int64_t* row) {
  if (num_cached_ >= max_cached_ || num_absent_ >= max_cached_) EvictOldest(second);
  if (values == nullptr) {
    *row = DefaultRow(key);
    ++num_absent_;
    ++counts_.absent;
  } else {
    std::vector<int64_t> taken;
    Status status = Take(1, &taken);
    if (!status.ok()) return status;
    *row = taken[0];
    std::memcpy(Row(*row), values, row_bytes_);
    ++num_cached_;
    ++counts_.fetched;
  }
  index_->Set(key, *row, false, second);
  return {};
}

// Takes the oldest of some keys out of the cache. Their rows wait until nobody reads them; until
// then the array may be longer than the limit, by what the requests in progress ask for.
void ServedTable::EvictOldest(int64_t second) {
  struct Candidate {
    int64_t age, key, row;
  };
  std::vector<Candidate> candidates;
  const int64_t wanted = std::clamp<int64_t>(max_cached_ / 16, 1, kMostEvicted);
  const int64_t num_cells = index_->num_cells();
  for (int64_t scanned = 0, step; scanned < num_cells; scanned += step) {
    if (static_cast<int64_t>(candidates.size()) >= kScannedForOne * wanted) break;
    step = std::min(kScannedForOne * wanted, num_cells - scanned);  // no cell twice
    index_->ScanOn(step, second, [&](int64_t key, int64_t row, int64_t age) {
      candidates.push_back({age, key, row});
    });
  }
  const int64_t count = std::min<int64_t>(wanted, static_cast<int64_t>(candidates.size()));
  std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.age > b.age; });
  Retired retired;
  retired.epoch = grace_.epoch();
  for (int64_t i = 0; i < count; ++i) {
    index_->Erase(candidates[i].key);
    if (candidates[i].row > options_.matrix_rows) {
      retired.rows.push_back(candidates[i].row);
      --num_cached_;
    } else {
      --num_absent_;
    }
  }
  counts_.evicted += count;
  if (!retired.rows.empty()) retired_.push_back(std::move(retired));
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
    free_.insert(free_.end(), retired.rows.begin(), retired.rows.end());
    num_parts += retired.num_parts;
  }
  retired_.erase(retired_.begin(), retired_.begin() + num_free);
  index_->DropFormerParts(num_parts);
  num_retired_parts_ -= num_parts;
}

// Rows of a delta stay, and so does the knowledge that a key was erased: below is its former row.
void ServedTable::MergeIntoCache(const Overlay& overlay) {
  overlay.index_.ForEach([this](int64_t key, int64_t row) {
    const uint64_t hash = ServedIndex::HashOf(key);
    const bool stayed = index_->Stays(key, hash);
    const int64_t former = index_->Set(key, row, true);
    if (former == ServedIndex::kNone) return;
    const bool had_row = former > options_.matrix_rows;
    // All readers find the key in the overlay.
    if (had_row) free_.push_back(former);
    if (!stayed) --(had_row ? num_cached_ : num_absent_);
  });
}

}  // namespace group_embedding
