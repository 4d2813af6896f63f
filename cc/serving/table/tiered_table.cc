// ServedTable above LowerRows: the array is a cache of the base's rows. evict_rows.cc takes rows
// out.
#include <algorithm>
#include <new>
#include <utility>

#include "serving/table/served_table.h"
#include "serving/table/sort_keys.h"

namespace group_embedding {
namespace {

// Keys that wait to be cached: a quarter of the cache, or as many as these.
constexpr int64_t kMostLater = 65536;

}  // namespace

void ServedTable::StartCache(int64_t max_rows, const TierOptions& tiers, TierThreads* threads) {
  tiers_ = tiers;
  threads_ = threads;
  max_cached_ = std::max<int64_t>(max_rows, 1);
  // Keys that are nowhere are remembered, too.
  int64_t num_keys = std::min(max_cached_, lower_->num_rows());
  if (tiers.insert == Insert::kOff) num_keys = 0;
  index_ = std::make_unique<ServedIndex>(num_keys + num_keys / 4);
  round_began_ = CacheSecond();
  mark_seconds_ = LongestMark();
}

TierCounts ServedTable::tier_counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TierCounts counts = counts_;
  counts.in_memory = num_in_memory_.Total();
  counts.below = num_below_.Total();
  counts.absent = num_absent_keys_.Total();
  counts.cached = num_cached_;
  counts.cached_bytes = num_cached_ * row_bytes_;
  return counts;
}

int64_t ServedTable::LocateInCache(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                                   int64_t* rows) const {
  const int64_t second = MarkSecond();
  int64_t num_missing = 0, num_absent = 0;
  index_->ForHashes(keys, num_keys, [&](int64_t i, uint64_t hash) {
    const int64_t key = keys[i];
    int64_t row = ServedIndex::kNone;
    if (overlay != nullptr) row = overlay->Find(key, hash);
    if (row == ServedIndex::kNone) row = index_->FindAndMark(key, hash, second);
    num_missing += row == ServedIndex::kNone;
    num_absent += row != ServedIndex::kNone && row <= options_.matrix_rows;
    rows[i] = row == ServedIndex::kNone ? kNotInMemory : row;
  });
  num_in_memory_.Add(num_keys - num_missing - num_absent);
  num_absent_keys_.Add(num_absent);
  return num_missing;
}

Status ServedTable::Fetch(const int64_t* keys, std::vector<int64_t> positions, Deadline deadline,
                          int64_t* rows, bool* is_late) {
  std::vector<KeyAt> asked;
  asked.reserve(positions.size());
  for (const int64_t p : positions) {
    if (rows[p] == kNotInMemory) asked.push_back({static_cast<uint64_t>(keys[p]), p});
  }
  SortKeys(&asked);  // in the order of the disk, each once
  std::vector<int64_t> wanted;
  wanted.reserve(asked.size());
  for (const KeyAt& one : asked) {
    const auto key = static_cast<int64_t>(one.key);
    if (wanted.empty() || wanted.back() != key) wanted.push_back(key);
  }
  if (deadline.is_never() && tiers_.timeout) {  // of a caller that is no request
    deadline = Deadline();
    deadline.Shorten(*tiers_.timeout);
  }
  std::shared_ptr<LowerRead> read;
  Status status = StartRead(std::move(wanted), &read);
  if (!status.ok()) return status;
  status = ReadLower(read.get(), deadline);
  if (!status.ok()) {
    *is_late = deadline.is_over();
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(*is_late ? counts_.timeouts : counts_.failures);
    if (tiers_.on_failure == OnFailure::kError) return status;
    counts_.defaulted += static_cast<int64_t>(asked.size());
    for (const KeyAt& one : asked) rows[one.position] = DefaultRow(keys[one.position]);
    return {};
  }
  *is_late = false;
  std::vector<int64_t> row_of;  // of read->keys
  Place(read.get(), tiers_.insert, &row_of);
  size_t next = 0;
  int64_t num_below = 0;
  for (int64_t i = 0; i < read->num_keys(); ++i) {
    for (; next < asked.size() && keys[asked[next].position] == read->keys[i]; ++next) {
      rows[asked[next].position] = row_of[i];
      num_below += read->found[i];
    }
  }
  num_below_.Add(num_below);
  num_absent_keys_.Add(static_cast<int64_t>(asked.size()) - num_below);
  return {};
}

// A read into rows of the array, which are free again if it fails, also by another thread.
Status ServedTable::StartRead(std::vector<int64_t> wanted, std::shared_ptr<LowerRead>* read) {
  std::vector<int64_t> taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  Reclaim();
  Status status = Take(static_cast<int64_t>(wanted.size()), &taken);
  if (!status.ok()) return status;
  const auto give_back = [this](const std::vector<int64_t>& rows) {
    if (rows.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      free_.insert(free_.end(), rows.begin(), rows.end());
    } catch (const std::bad_alloc&) {
    }  // they stay out of use
  };
  *read = std::make_shared<LowerRead>(options_.name, lower_, std::move(wanted),
                                      RowPlaces{rows_->data(), row_bytes_}, std::move(taken),
                                      give_back, &lower_seconds_);
  return {};
}

Status ServedTable::ReadLower(LowerRead* read, const Deadline& deadline) {
  if (threads_ == nullptr || !tiers_.timeout || lower_->keeps_deadlines()) {
    return read->Here(deadline);
  }
  const auto late = [this](LowerRead* late) {
    std::vector<int64_t> rows;
    if (tiers_.insert != Insert::kOff) Place(late, Insert::kAtOnce, &rows);
  };
  return read->Beside(&threads_->reads, deadline, late);
}

// Gives the rows that were read to their keys, or to a request alone. rows: [keys] written, those
// of keys that are nowhere too.
void ServedTable::Place(LowerRead* read, Insert how, std::vector<int64_t>* rows) {
  std::vector<int64_t> used, not_used;
  rows->resize(read->num_keys());
  for (int64_t i = 0; i < read->num_keys(); ++i) {
    (read->found[i] ? used : not_used).push_back(read->rows[i]);
    (*rows)[i] = read->found[i] ? read->rows[i] : DefaultRow(read->keys[i]);
  }
  read->rows = std::move(not_used);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.fetched += static_cast<int64_t>(used.size());
    const bool too_many = num_later_ >= std::max(max_cached_ / 4, kMostLater);
    if (how == Insert::kBackground && (threads_ == nullptr || too_many)) how = Insert::kOff;
    if (how == Insert::kBackground) num_later_ += read->num_keys();
    if (how == Insert::kOff) Retire(used);  // free when the request, a Reader, is over
  }
  if (how == Insert::kAtOnce) Cache(read->keys, false, rows);
  if (how == Insert::kBackground) CacheLater(read->keys, *rows);
}

// Gives keys their rows, unless they have others: of a delta, or of a request that was earlier.
// More keys than the cache is for would only push each other out: the rows of the rest are the
// request's. rows: [keys], replaced by those. `are_read`: whether requests may read the rows
// already.
void ServedTable::Cache(const std::vector<int64_t>& keys, bool are_read,
                        std::vector<int64_t>* rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t second = MarkSecond();
  std::vector<int64_t> not_used, of_request;
  int64_t num_rows = 0, num_absent = 0;  // that came with these keys
  for (size_t i = 0; i < keys.size(); ++i) {
    int64_t& row = (*rows)[i];
    const bool has_row = row > options_.matrix_rows;
    const int64_t known = index_->Find(keys[i], ServedIndex::HashOf(keys[i]));
    if (known != ServedIndex::kNone) {
      if (has_row) not_used.push_back(row);
      row = known;
      continue;
    }
    if ((has_row ? num_rows : num_absent) >= max_cached_) {
      if (has_row) of_request.push_back(row);
      continue;
    }
    if (num_cached_ >= max_cached_ || num_absent_ >= max_cached_) EvictOldest();
    index_->Set(keys[i], row, false, second);
    ++(has_row ? num_cached_ : num_absent_);
    ++(has_row ? num_rows : num_absent);
  }
  Retire(of_request);
  if (are_read) {
    Retire(not_used);
  } else {
    free_.insert(free_.end(), not_used.begin(), not_used.end());
  }
}

void ServedTable::CacheLater(const std::vector<int64_t>& keys, const std::vector<int64_t>& rows) {
  const auto leave = [this](const std::vector<int64_t>& keys) {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_later_ -= static_cast<int64_t>(keys.size());
  };
  const int64_t job =
      threads_->inserts.Add([this, leave, keys, rows = std::vector<int64_t>(rows)]() mutable {
        leave(keys);
        Cache(keys, true, &rows);
      });
  if (job == JobThreads::kNone) leave(keys);  // in a forked process, where nothing is read
}

// Rows of a delta stay, and so does the knowledge that a key was erased: below is its former row.
void ServedTable::MergeIntoCache(const Overlay& overlay) {
  std::vector<int64_t> freed;
  overlay.index_.ForEach([&](int64_t key, int64_t row) {
    const uint64_t hash = ServedIndex::HashOf(key);
    const bool stayed = index_->Stays(key, hash);
    const int64_t former = index_->Set(key, row, true);
    if (former == ServedIndex::kNone) return;
    const bool had_row = former > options_.matrix_rows;
    // All readers find the key in the overlay.
    if (had_row) freed.push_back(former);
    if (!stayed) --(had_row ? num_cached_ : num_absent_);
  });
  Free(freed);
}

}  // namespace group_embedding
