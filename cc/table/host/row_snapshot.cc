#include "table/host/row_snapshot.h"

#include <algorithm>
#include <utility>

namespace group_embedding {
namespace {

void AppendBytes(const char* from, int64_t bytes, std::vector<char>* to) {
  to->insert(to->end(), from, from + bytes);
}

}  // namespace

RowSnapshot::RowSnapshot(RowStore& store, int64_t changed_since, const Eviction& eviction,
                         int64_t step, EvictedRows* handed_out)
    : store_(store),
      num_rows_(store.num_rows()),
      changed_since_(changed_since),
      clock_(store.clock()),
      num_slots_(store.slots().size()),
      read_(new std::atomic<uint64_t>[(num_rows_ + 63) / 64]()),
      stripes_(new Stripes[kNumLocks]),
      eviction_(eviction),
      step_(step),
      handed_out_(handed_out),
      evicts_(eviction.kind != Eviction::Kind::kNone) {}

void RowSnapshot::Append(int64_t row, KeyedRows* rows) const {
  const RowInfo info = store_.infos().Info(row);
  rows->keys.push_back(info.key);
  rows->counts.push_back(info.count);
  rows->versions.push_back(info.version);
  AppendBytes(store_.Row(row), store_.row_bytes(), &rows->values);
  rows->slots.resize(num_slots_);
  for (size_t s = 0; s < num_slots_; ++s) {
    AppendBytes(store_.SlotRow(s, row), store_.slot_row_bytes(s), &rows->slots[s]);
  }
}

void RowSnapshot::AppendCopy(const KeyedRows& copies, size_t copy, KeyedRows* rows) const {
  rows->keys.push_back(copies.keys[copy]);
  rows->counts.push_back(copies.counts[copy]);
  rows->versions.push_back(copies.versions[copy]);
  const int64_t bytes = store_.row_bytes();
  AppendBytes(copies.values.data() + copy * bytes, bytes, &rows->values);
  for (size_t s = 0; s < num_slots_; ++s) {
    const int64_t slot_bytes = store_.slot_row_bytes(s);
    AppendBytes(copies.slots[s].data() + copy * slot_bytes, slot_bytes, &rows->slots[s]);
  }
}

void RowSnapshot::Truncate(size_t num_rows, KeyedRows* rows) const {
  rows->keys.resize(num_rows);
  rows->counts.resize(num_rows);
  rows->versions.resize(num_rows);
  rows->values.resize(num_rows * store_.row_bytes());
  rows->slots.resize(num_slots_);
  for (size_t s = 0; s < num_slots_; ++s) {
    rows->slots[s].resize(num_rows * store_.slot_row_bytes(s));
  }
}

void RowSnapshot::CopyOnce(int64_t row) {
  Stripes& stripes = StripesOf(row);
  std::lock_guard<std::mutex> lock(stripes.mutex);
  if (IsRead(row)) return;
  if (!Evict(row) && IsWanted(row)) {
    const size_t copy = stripes.copies.keys.size();
    try {
      Append(row, &stripes.copies);
      stripes.copy_of_row[row] = copy;
    } catch (...) {  // memory ran out
      Truncate(copy, &stripes.copies);
      throw;
    }
  }
  SetRead(row);
}

void RowSnapshot::Read(int64_t begin, int64_t end, KeyedRows* rows) {
  rows->slots.resize(num_slots_);
  for (int64_t row = std::max(begin, store_.first_row()); row < std::min(end, num_rows_);) {
    const int64_t stripe_end = std::min({(row / kStripeRows + 1) * kStripeRows, end, num_rows_});
    Stripes& stripes = StripesOf(row);
    std::lock_guard<std::mutex> lock(stripes.mutex);
    for (; row < stripe_end; ++row) {
      if (!IsRead(row)) {
        if (!Evict(row) && IsWanted(row)) Append(row, rows);
        SetRead(row);
      } else if (const auto found = stripes.copy_of_row.find(row);
                 found != stripes.copy_of_row.end()) {
        AppendCopy(stripes.copies, found->second, rows);
        stripes.copy_of_row.erase(found);
      }
    }
    if (stripes.copy_of_row.empty()) stripes.copies = {};  // at the latest when all is read
  }
}

bool RowSnapshot::Evict(int64_t row) {
  if (!evicts() || !store_.IsKeys(row)) return false;
  const Eviction::Kind policy =
      EvictedBy(store_.options(), eviction_, step_, store_.infos().VersionOf(row), store_.Row(row),
                store_.MinuteOf(row));
  if (policy == Eviction::Kind::kNone) return false;
  std::lock_guard<std::mutex> lock(evicted_mutex_);
  const RowInfo info = store_.infos().Info(row);
  evicted_.push_back({info.key, row});
  Count(policy, &expired_);
  if (handed_out_ != nullptr) {
    handed_out_->Add(info.key, info.count, info.version, store_.Row(row));
  }
  store_.infos().SetNoKeys(row);
  return true;
}

bool RowSnapshot::IsEvicted(int64_t row) {
  if (!evicts() || row >= num_rows_) return false;
  if (!IsRead(row)) JudgeRows(row, row + 1);
  return !store_.infos().IsKeys(row);
}

void RowSnapshot::JudgeRows(int64_t begin, int64_t end) {
  for (int64_t row = std::max(begin, store_.first_row()); row < std::min(end, num_rows_);) {
    const int64_t stripe_end = std::min({(row / kStripeRows + 1) * kStripeRows, end, num_rows_});
    if (read_[row / kStripeRows].load(std::memory_order_acquire) == kAllRead) {
      row = stripe_end;
      continue;
    }
    std::lock_guard<std::mutex> lock(StripesOf(row).mutex);
    for (; row < stripe_end; ++row) {
      if (!IsRead(row) && Evict(row)) SetRead(row);
    }
  }
}

std::vector<RowSnapshot::EvictedKey> RowSnapshot::TakeEvicted(ExpiredCounts* counts) {
  std::lock_guard<std::mutex> lock(evicted_mutex_);
  *counts += std::exchange(expired_, {});
  const auto begin = evicted_.begin() + static_cast<int64_t>(num_taken_);
  num_taken_ = evicted_.size();
  return {begin, evicted_.end()};
}

std::vector<int64_t> RowSnapshot::evicted() const {
  std::lock_guard<std::mutex> lock(evicted_mutex_);
  std::vector<int64_t> keys;
  for (const EvictedKey& evicted : evicted_) keys.push_back(evicted.key);
  return keys;
}

}  // namespace group_embedding
