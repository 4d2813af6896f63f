// A budget of a DiskTieredHash, which is of both tiers. Places are made on the host in the middle
// of a call, when it is known which keys get a row.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/device_buffer.h"
#include "table/device/device_hash_kernels.h"
#include "table/disk/disk_tiered_hash.h"
#include "table/order_of_rows.h"

namespace group_embedding {
namespace {

// Makes a number smaller as long as it lives.
class Fewer {
 public:
  Fewer(int64_t* number, int64_t by) : number_(*number), by_(by) { number_ -= by_; }
  ~Fewer() { number_ += by_; }
  Fewer(const Fewer&) = delete;
  Fewer& operator=(const Fewer&) = delete;

 private:
  int64_t& number_;
  const int64_t by_;
};

}  // namespace

void DiskTieredHash::CountBelow(std::vector<int64_t>* of_shares) const {
  if (of_shares->size() == 1) {
    (*of_shares)[0] += disk_->num_keys();
    return;
  }
  const auto count = [&](int64_t key, const RecordHead&, const char*, const char*) {
    ++(*of_shares)[options_.budget.ShareOf(key)];
  };
  disk_->CompleteEviction();
  const Status status = disk_->Visit(count);
  Require(status.In(Named(": ")));
}

Status DiskTieredHash::FindBelow(const LowestOfShares& lowest,
                                 const std::unordered_set<int64_t>& kept) const {
  const int score = ScoreSlot();
  const bool by_norm = options_.budget.first == EvictFirst::kSmallestNorm;
  std::vector<int64_t> slot_at = {0};  // in a record's slots
  for (size_t s = 0; s < slots_.size(); ++s) slot_at.push_back(slot_at.back() + SlotBytes(s));
  KeyedRows some;
  some.slots.resize(slots_.size());
  const auto add_some = [&] {
    const auto orders = OrderOfRows(options_, last_step(), some, score);
    for (size_t i = 0; i < some.keys.size(); ++i) {
      lowest[options_.budget.ShareOf(some.keys[i])]->Add({{orders[i], some.keys[i], kNoRow}});
    }
    some = {};
    some.slots.resize(slots_.size());
  };
  const auto is_safe = [&](const char* slots) {
    uint32_t born = 0;
    if (born_slot_ >= 0) std::memcpy(&born, slots + slot_at[born_slot_], sizeof(born));
    return IsSafe(born, last_step(), options_.budget.safe_steps);
  };
  const Status status =
      disk_->Visit([&](int64_t key, const RecordHead& head, const char* values, const char* slots) {
        if (lowest[options_.budget.ShareOf(key)] == nullptr || kept.count(key) > 0) return;
        if (is_safe(slots)) return;
        some.keys.push_back(key);
        some.counts.push_back(head.count);
        some.versions.push_back(head.version);
        if (by_norm) some.values.insert(some.values.end(), values, values + RowBytes());
        if (score >= 0) {
          const char* from = slots + slot_at[score];
          some.slots[score].insert(some.slots[score].end(), from, from + SlotBytes(score));
        }
        if (some.keys.size() == RowsOnDisk::kAtOnce) add_some();
      });
  add_some();
  return status;
}

Status DiskTieredHash::EraseBelow(const std::vector<int64_t>& keys) {
  const Status status = disk_->EraseEvicted(keys);
  if (status.ok()) changes_.erased()->insert(changes_.erased()->end(), keys.begin(), keys.end());
  return status;
}

bool DiskTieredHash::MayExceedBudget(const std::vector<int64_t>& new_of_shares, bool all_get_rows) {
  if (budget_ == nullptr) return false;
  if (keys_of_shares_.empty()) return true;
  for (size_t s = 0; s < keys_of_shares_.size(); ++s) {
    const int64_t most = keys_of_shares_[s] + new_of_shares[s];
    if (most > budget_->MaxKeysOfShare(static_cast<int64_t>(s))) return true;
  }
  for (size_t s = 0; s < keys_of_shares_.size(); ++s) keys_of_shares_[s] += new_of_shares[s];
  are_counted_ = are_counted_ && all_get_rows;
  return false;
}

bool DiskTieredHash::FitsInMemory(int64_t num_keys) {
  int64_t since = 0;
  const TableState state = Reported(&since);
  if (state.RowsWith(since + num_keys) > MaxRows()) return false;
  if (budget_ == nullptr) return true;
  const int64_t num_shares = options_.budget.shares_of_rank();
  if (num_shares == 1) keys_of_shares_ = {state.num_keys + since};
  are_counted_ = false;
  return !MayExceedBudget(std::vector<int64_t>(num_shares, num_keys), /*all_get_rows=*/false);
}

Status DiskTieredHash::MakePlacesOnHost(int64_t num_keys, std::unordered_set<int64_t>* new_keys) {
  makes_places_ = false;
  if (new_keys->empty()) return {};
  const Alone alone(*this, std::adopt_lock);
  const Fewer before_call(&enqueued_, num_keys);  // the state has no key of this call yet
  return MakePlaces(new_keys);
}

// The keys that the call has found stay: their rows are of this call.
Status DiskTieredHash::MakePlaces(std::unordered_set<int64_t>* new_keys) {
  const Budget& budget = options_.budget;
  const int64_t num_shares = budget.shares_of_rank();
  // Not known until places are made, in case that fails.
  std::vector<int64_t> keys_of_shares = std::move(keys_of_shares_);
  keys_of_shares_.clear();
  if (keys_of_shares.empty() || !are_counted_) keys_of_shares = KeysOfShares();
  std::vector<std::vector<int64_t>> of_shares(num_shares);
  for (const int64_t key : *new_keys) of_shares[budget.ShareOf(key)].push_back(key);
  std::vector<int64_t> num_to_go(num_shares);
  bool is_over = false;
  for (int64_t s = 0; s < num_shares; ++s) {
    const int64_t max_keys = budget_->MaxKeysOfShare(s);
    const auto num_new = static_cast<int64_t>(of_shares[s].size());
    if (keys_of_shares[s] + num_new <= max_keys) continue;
    is_over = true;
    num_to_go[s] = keys_of_shares[s] - budget.NumKept(max_keys, num_new);
  }
  if (is_over) {
    disk_->CompleteEviction();
    std::unordered_set<int64_t> none;
    const Status status = EvictLowest(num_to_go, {clock_, {}}, {}, &none);
    if (!status.ok()) return status;
    keys_of_shares = KeysOfShares();
  }
  const size_t num_new = new_keys->size();
  for (int64_t s = 0; s < num_shares; ++s) {
    std::vector<int64_t>& of_share = of_shares[s];
    const int64_t places = std::max<int64_t>(0, budget_->MaxKeysOfShare(s) - keys_of_shares[s]);
    const int64_t num_without = static_cast<int64_t>(of_share.size()) - places;
    keys_of_shares[s] += std::min<int64_t>(of_share.size(), places);
    if (num_without <= 0) continue;
    // As PlaceMaker: the new keys with the lowest hashes.
    std::nth_element(
        of_share.begin(), of_share.begin() + num_without - 1, of_share.end(),
        [](int64_t a, int64_t b) { return IndexRef::HashOf(a) < IndexRef::HashOf(b); });
    for (int64_t i = 0; i < num_without; ++i) new_keys->erase(of_share[i]);
  }
  budget_->CountOnHost(0, static_cast<int64_t>(num_new - new_keys->size()));
  if (num_new > new_keys->size() && budget_->lends()) last_lent_ = clock_;
  keys_of_shares_ = std::move(keys_of_shares);
  are_counted_ = true;
  return {};
}

void DiskTieredHash::ReleaseLent() {
  if (last_lent_ == 0) return;
  const cudaStream_t stream = streams_.own();
  const int64_t held_since = OldestBatchLocked(), num_rows = State().next_row;
  const StreamBuffer<bool> is_over(num_rows, stream);
  const StreamBuffer<int64_t> rows(num_rows, stream);
  RequireCuda(EndLending(Ref(), num_rows, held_since, is_over.data(), stream));
  const int64_t count = SelectNumbers(is_over.data(), num_rows, rows.data(), stream);
  if (count > 0) FreeRows(ToHost(rows.data(), count, stream));
  if (last_lent_ < held_since) last_lent_ = 0;
}

// Rows on disk are brought, some at a time, as the score is in a slot.
Status DiskTieredHash::SetScores(const int64_t* keys, int64_t num_keys, const float* scores) {
  if (score_slot_ < 0) return EmbeddingTable::SetScores(keys, num_keys, scores);
  const auto highest = HighestScores(keys, num_keys, scores);
  // Their rows are in memory together.
  const auto at_once = static_cast<size_t>(
      std::clamp<int64_t>((MaxRows() - first_row()) / 4, 1, RowsOnDisk::kAtOnce));
  std::vector<int64_t> some;
  std::vector<float> of_some;
  Status status;
  const auto set_some = [&] {
    const auto count = static_cast<int64_t>(some.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const StreamBuffer<int64_t> device_keys(some.data(), count, streams_.own());
      status = PrefetchRowsOf({{device_keys.data(), count}}, Access::kRead, streams_.own());
    }
    if (status.ok()) status = DeviceHash::SetScores(some.data(), count, of_some.data());
    some.clear();
    of_some.clear();
  };
  for (const auto& [key, score] : highest) {
    some.push_back(key);
    of_some.push_back(score);
    if (some.size() == at_once && status.ok()) set_some();
  }
  if (!some.empty() && status.ok()) set_some();
  return status;
}

}  // namespace group_embedding
