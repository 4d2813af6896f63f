// What a DeviceHash does for its budget (table/budget.h) beside training, which make_places.cu
// does.
#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "core/device_buffer.h"
#include "table/check_table.h"
#include "table/complete_rows.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"
#include "table/order_of_rows.h"

namespace group_embedding {

std::vector<SlotOptions> DeviceHash::OwnSlots() const {
  const Budget& budget = options_.budget;
  std::vector<SlotOptions> slots;
  const auto add = [&](const char* name) { slots.push_back({name, 1, DataType::kFloat32, 0}); };
  if (options_.KeepsTime()) add(kTimeSlot);
  if (budget.first == EvictFirst::kLowestScore) add(kScoreSlot);
  if (budget.safe_steps > 0) add(kBornSlot);
  return slots;
}

Status DeviceHash::MakeOwnSlots() {
  for (const SlotOptions& slot : OwnSlots()) {
    void* array;
    const Status status = Slot(slot, &array);
    if (!status.ok()) return status;
    const int s = static_cast<int>(slots_.size()) - 1;
    if (slot.name == kTimeSlot) time_slot_ = s;
    if (slot.name == kScoreSlot) score_slot_ = s;
    if (slot.name == kBornSlot) born_slot_ = s;
  }
  return {};
}

DeviceBudgetBytes DeviceHash::BytesOfKeys(const std::vector<SlotOptions>& more_slots) const {
  const auto num_arrays =
      static_cast<int64_t>(2 + slots_.size() + NewSlots(slots_, more_slots).size());
  const int64_t bytes = BytesPerRow() + BytesOfNewSlots(slots_, more_slots);
  const auto rows_above_disk = has_tier_below() ? std::optional(max_bytes_ / bytes) : std::nullopt;
  return {options_, bytes, num_arrays, first_row(), moves_ != nullptr, rows_above_disk};
}

int64_t DeviceHash::BudgetKeys(const std::vector<SlotOptions>& more_slots) const {
  const Budget& budget = options_.budget;
  if (HasBudgetOfBytes()) return BytesOfKeys(more_slots).NumKeys(budget.max_bytes);
  int64_t total = 0;
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    total += budget.MaxKeysOfShare(s, budget.max_keys);
  }
  return total;
}

Status DeviceHash::CheckBudgetKeys(const std::vector<SlotOptions>& more_slots) const {
  const Budget& budget = options_.budget;
  if (!HasBudgetOfBytes() || BudgetKeys(more_slots) >= budget.shares_of_rank()) return {};
  const DeviceBudgetBytes bytes = BytesOfKeys(more_slots);
  const int64_t enough = bytes.BytesFor(budget.shares_of_rank());
  return TooFewBytes(budget, enough, bytes.Fixed(enough));
}

Status DeviceHash::FitToBytes(const std::vector<SlotOptions>& more_slots) {
  if (!HasBudgetOfBytes()) return {};
  const Status status = CheckBudgetKeys(more_slots);
  if (!status.ok()) return status;
  const int64_t max_keys = BudgetKeys(more_slots), had = budget_->max_keys();
  RequireCuda(cudaStreamSynchronize(streams_.own()));  // no launch reads the number any more
  const Status set = budget_->SetMaxKeys(max_keys);
  const bool fits = usable_rows_ <= MaxRows(more_slots) && budget_->CanHave(max_keys) &&
                    (more_slots.empty() || NumKeysOfTiers() <= max_keys);
  if (set.ok() && fits) return {};
  const Status restored = budget_->SetMaxKeys(had);
  if (!set.ok() || !restored.ok()) return set.ok() ? restored : set;
  return NeedsLargerBudget(max_keys);
}

Status DeviceHash::NeedsLargerBudget(int64_t max_keys) const {
  return "expected a larger budget than " + std::to_string(options_.budget.max_bytes) +
         " bytes, which have space for " + std::to_string(max_keys) + " keys beside " +
         std::to_string(first_row()) + " initial rows, where the table has memory for " +
         std::to_string(usable_rows_) + " rows; raise max_bytes, or have the optimizer make its " +
         "slots before the table has keys";
}

Status DeviceHash::SetScores(const int64_t* keys, int64_t num_keys, const float* scores) {
  if (score_slot_ < 0) return EmbeddingTable::SetScores(keys, num_keys, scores);
  const auto highest = HighestScores(keys, num_keys, scores);
  std::vector<int64_t> given;
  std::vector<float> values;
  for (const auto& [key, score] : highest) {
    given.push_back(key);
    values.push_back(score);
  }
  const auto count = static_cast<int64_t>(given.size());
  const Alone alone(*this);
  ++clock_;  // the next snapshot of changes has these rows
  const cudaStream_t stream = streams_.own();
  const DeviceBuffer<int64_t> device_keys(given.data(), count, stream), rows(count);
  const DeviceBuffer<float> device_scores(values.data(), count, stream);
  RequireCuda(FindKeys(Ref(), device_keys.data(), count, rows.data(), stream));
  const Status status =
      snapshot_ == nullptr ? Status() : CopyForSnapshot(rows.data(), count, stream);
  if (!status.ok()) return status.In(Named(": "));
  RequireCuda(SetScoresOfRows(Ref(), rows.data(), device_scores.data(), count,
                              reinterpret_cast<float*>(slot_arrays_[score_slot_]->data()), stream));
  RequireCuda(cudaStreamSynchronize(stream));
  return {};
}

Status DeviceHash::CheckSlots(const std::vector<SlotOptions>& more) const {
  if (!HasBudgetOfBytes() || BytesOfNewSlots(slots_, more) == 0) return {};
  const Status status = CheckBudgetKeys(more);
  const int64_t max_keys = BudgetKeys(more);
  if (!status.ok() || usable_rows_ <= first_row() + budget_->MaxRowsWith(max_keys)) return status;
  return NeedsLargerBudget(max_keys);
}

void DeviceHash::CountWithoutPlace(int64_t num_keys) {
  if (budget_ != nullptr) budget_->CountOnHost(0, num_keys);
}

void DeviceHash::TakeEvicted(KeyedRows* rows) {
  if (budget_ == nullptr || budget_->handed_out() == nullptr) return;
  const Alone alone(*this);
  ReadEvicted();
  *rows = budget_->handed_out()->Take();
}

void DeviceHash::DropEvicted() {
  if (budget_ == nullptr || budget_->handed_out() == nullptr) return;
  const Alone alone(*this);
  ReadEvicted();
  budget_->handed_out()->Drop();
}

void DeviceHash::MakePlaceForEvicted(int64_t num_keys) {
  if (budget_ == nullptr || budget_->handed_out() == nullptr) return;
  ReadEvicted();  // keys that went before
  budget_->MakePlaceForEvicted(num_keys);
}

// These keys are about to go, and there is place for them. What their erasure needs is allocated
// before the first is handed out, so that none is handed out twice.
void DeviceHash::HandOut(const int64_t* device_rows, int64_t num_rows) {
  EvictedRows* const handed_out = budget_ == nullptr ? nullptr : budget_->handed_out();
  if (handed_out == nullptr || num_rows == 0) return;
  constexpr int64_t kRowsAtOnce = 1 << 16;
  const bool has_rows = options_.budget.hands_out == HandsOut::kRows;
  const cudaStream_t stream = streams_.own();
  const int64_t at_once = std::min(kRowsAtOnce, num_rows);
  const StreamBuffer<RowInfo> infos(at_once, stream);
  const StreamBuffer<char> values(at_once * RowBytes(), stream);
  if (snapshot_ != nullptr) {
    Require(snapshot_->MakeSpace(num_rows).In(Named(": no memory for rows that are saved: ")));
  }
  for (int64_t begin = 0; begin < num_rows; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, num_rows - begin);
    RequireCuda(InfosOfRows(Ref(), device_rows + begin, count, infos.data(), stream));
    RequireCuda(GatherRows(ref_.rows, device_rows + begin, count, static_cast<int32_t>(RowBytes()),
                           values.data(), stream));
    const std::vector<RowInfo> host = ToHost(infos.data(), count, stream);
    const std::vector<char> rows = ToHost(values.data(), has_rows ? count * RowBytes() : 0, stream);
    for (int64_t i = 0; i < count; ++i) {
      handed_out->Add(host[i].key, host[i].count, host[i].version,
                      has_rows ? rows.data() + i * RowBytes() : nullptr);
    }
  }
}

void DeviceHash::AddCandidates(const Kept& kept, const LowestOfShares& lowest) const {
  constexpr int64_t kBytesAtOnce = int64_t{4} << 20;
  const int64_t at_once = std::clamp<int64_t>(kBytesAtOnce / RowBytes(), 1 << 10, 1 << 14);
  const int64_t end = State().next_row;
  for (int64_t begin = first_row(); begin < end; begin += at_once) {
    AddCandidatesOf(begin, std::min(at_once, end - begin), kept, lowest);
  }
}

void DeviceHash::AddCandidatesOf(int64_t begin, int64_t num_rows, const Kept& kept,
                                 const LowestOfShares& lowest) const {
  const Budget& budget = options_.budget;
  const std::vector<RowInfo> infos = ToHost(ref_.infos + begin, num_rows, streams_.own());
  const int64_t held_from = std::min(kept.since, OldestBatchLocked());
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    const RowInfo& info = infos[i];
    if (info.count < 0 || info.clock >= held_from || kept.keys.count(info.key) > 0) continue;
    if (lowest[budget.ShareOf(info.key)] != nullptr) rows.push_back(begin + i);
  }
  const std::vector<char> born = OfSlot(born_slot_, rows);
  if (!born.empty()) {
    const auto* marks = reinterpret_cast<const uint32_t*>(born.data());
    int64_t num_kept = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!IsSafe(marks[i], last_step(), budget.safe_steps)) rows[num_kept++] = rows[i];
    }
    rows.resize(num_kept);
  }
  KeyedRows found;
  found.slots.resize(slots_.size());
  for (const int64_t row : rows) {
    const RowInfo& info = infos[row - begin];
    found.keys.push_back(info.key);
    found.counts.push_back(info.count);
    found.versions.push_back(info.version);
  }
  if (ScoreSlot() >= 0) found.slots[ScoreSlot()] = OfSlot(ScoreSlot(), rows);
  if (budget.first == EvictFirst::kSmallestNorm) {
    found.values = OfRows(ref_.rows, RowBytes(), rows);
  }
  const auto orders = OrderOfRows(options_, last_step(), found, ScoreSlot());
  for (size_t i = 0; i < rows.size(); ++i) {
    lowest[budget.ShareOf(found.keys[i])]->Add({{orders[i], found.keys[i], rows[i]}});
  }
}

std::vector<char> DeviceHash::OfRows(const void* array, int64_t bytes,
                                     const std::vector<int64_t>& rows) const {
  const auto count = static_cast<int64_t>(rows.size());
  const cudaStream_t stream = streams_.own();
  const StreamBuffer<int64_t> device_rows(rows.data(), count, stream);
  const StreamBuffer<char> values(count * bytes, stream);
  RequireCuda(GatherRows(static_cast<const char*>(array), device_rows.data(), count,
                         static_cast<int32_t>(bytes), values.data(), stream));
  return ToHost(values.data(), count * bytes, stream);
}

std::vector<char> DeviceHash::OfSlot(int slot, const std::vector<int64_t>& rows) const {
  if (slot < 0) return {};
  return OfRows(slot_arrays_[slot]->data(), SlotBytes(slot), rows);
}

int64_t DeviceHash::NumKeysOfTiers() const {
  const std::vector<int64_t> of_shares = KeysOfShares();
  return std::accumulate(of_shares.begin(), of_shares.end(), int64_t{0});
}

std::vector<int64_t> DeviceHash::KeysOfShares() const {
  constexpr int64_t kAtOnce = 1 << 16;
  const Budget& budget = options_.budget;
  const TableState state = State();
  std::vector<int64_t> counts(budget.shares_of_rank());
  if (counts.size() == 1) counts[0] = state.num_keys;
  for (int64_t row = first_row(); row < state.next_row && counts.size() > 1; row += kAtOnce) {
    const int64_t count = std::min(kAtOnce, state.next_row - row);
    for (const RowInfo& info : ToHost(ref_.infos + row, count, streams_.own())) {
      if (info.count >= 0) ++counts[budget.ShareOf(info.key)];
    }
  }
  CountBelow(&counts);
  return counts;
}

Status DeviceHash::FitIntoBudget(KeyedRows* given) {
  if (budget_ == nullptr || given->keys.empty()) return {};
  const Budget& budget = options_.budget;
  const auto num_given = static_cast<int64_t>(given->keys.size());
  std::vector<KeyInfo> infos(num_given);
  Status status = Describe(given->keys.data(), num_given, infos.data());
  if (!status.ok()) return status;
  std::unordered_map<int64_t, int64_t> new_keys;  // and where they come last
  for (int64_t i = 0; i < num_given; ++i) {
    if (infos[i].tier == kNoTier) new_keys[given->keys[i]] = i;
  }
  const Alone alone(*this);
  std::vector<int64_t> num_to_go = KeysOfShares();
  for (const auto& [key, i] : new_keys) ++num_to_go[budget.ShareOf(key)];
  for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
    num_to_go[s] = budget.NumToGo(num_to_go[s], budget_->MaxKeysOfShare(s));
  }
  const auto orders = OrderOfRows(options_, last_step(), *given, ScoreSlot());
  std::vector<EvictionCandidate> candidates;
  for (const auto& [key, i] : new_keys) candidates.push_back({orders[i], key, kNoRow});
  std::unordered_set<int64_t> dropped;
  const Kept kept = {clock_ + 1, {given->keys.begin(), given->keys.end()}};
  status = EvictLowest(num_to_go, kept, candidates, &dropped);
  DropRows(dropped, given);
  budget_->CountOnHost(0, static_cast<int64_t>(dropped.size()));
  return status;
}

Status DeviceHash::EvictLowest(const std::vector<int64_t>& num_to_go, const Kept& kept,
                               const std::vector<EvictionCandidate>& more,
                               std::unordered_set<int64_t>* dropped) {
  const Budget& budget = options_.budget;
  LowestOfShares lowest;
  for (const int64_t count : num_to_go) {
    lowest.push_back(count <= 0 ? nullptr : std::make_unique<LowestKeys>(count));
  }
  const auto is_any = [](const auto& of_share) { return of_share != nullptr; };
  if (std::none_of(lowest.begin(), lowest.end(), is_any)) return {};
  std::unordered_set<int64_t> not_here;
  for (const EvictionCandidate& candidate : more) not_here.insert(candidate.key);
  for (const EvictionCandidate& candidate : more) {
    const auto& of_share = lowest[budget.ShareOf(candidate.key)];
    if (of_share != nullptr) of_share->Add({candidate});
  }
  AddCandidates(kept, lowest);
  Status status = FindBelow(lowest, kept.keys);
  if (!status.ok()) return status;
  std::vector<int64_t> keys, rows, below;  // in memory, and not
  for (const auto& of_share : lowest) {
    if (of_share == nullptr) continue;
    for (const EvictionCandidate& candidate : of_share->Take()) {
      if (candidate.row != kNoRow) {
        keys.push_back(candidate.key);
        rows.push_back(candidate.row);
      } else if (not_here.count(candidate.key) > 0) {
        dropped->insert(candidate.key);
      } else {
        below.push_back(candidate.key);
      }
    }
  }
  const auto num_keys = static_cast<int64_t>(keys.size());
  const auto num_below = static_cast<int64_t>(below.size());
  const cudaStream_t stream = streams_.own();
  const StreamBuffer<int64_t> device_rows(rows.data(), num_keys, stream);
  const StreamBuffer<int64_t> device_keys(keys.data(), num_keys, stream);
  const StreamBuffer<int64_t> erased(num_keys, stream);
  MakePlaceForEvicted(num_keys + num_below);
  if (num_below > 0) status = EraseBelow(below);
  if (!status.ok()) return status;
  HandOut(device_rows.data(), num_keys);
  if (num_keys > 0) EraseKeys(device_keys.data(), num_keys, erased.data());
  budget_->CountOnHost(num_keys + num_below, 0);
  return {};
}

}  // namespace group_embedding
