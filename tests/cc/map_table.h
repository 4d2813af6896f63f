// MapTable: the plainest table that the interface allows: one lock, a map from keys to rows, and an
// array of float32 rows of fixed size. It shows that callers need no more than the interface.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "table/embedding_table.h"
#include "table/eviction.h"

namespace group_embedding {
namespace testing {

class MapTable : public EmbeddingTable, public HostTable {
 public:
  // `matrix`: [options.initial.matrix_rows, dim], or null. Keys are admitted at once, or
  // counted exactly.
  MapTable(const TableOptions& options, const float* matrix, int64_t max_keys)
      : options_(options),
        max_rows_(first_row() + max_keys),
        values_(max_rows_ * options.dim, options.no_row_value),
        infos_(max_rows_, RowInfo{0, -1, -1, 0}) {
    if (matrix != nullptr) WriteInitialRows(matrix);
    next_row_ = first_row();
  }

  HostTable* host() override { return this; }
  const TableOptions& options() const override { return options_; }
  Table rows() const override { return {values_.data(), next_row_, options_.dim, 0}; }
  int64_t first_row() const override { return options_.initial.matrix_rows + 1; }
  RowKeys row_keys() const override {
    return {reinterpret_cast<const char*>(infos_.data()), sizeof(RowInfo)};
  }
  void ReadInitialRows(void* rows) const override {
    std::copy_n(values_.data(), options_.initial.matrix_rows * options_.dim,
                static_cast<float*>(rows));
  }
  void WriteInitialRows(const void* rows) override {
    std::copy_n(static_cast<const float*>(rows), options_.initial.matrix_rows * options_.dim,
                values_.data());
  }

  int64_t BeginBatch() override {
    std::lock_guard<std::mutex> lock(mutex_);
    batches_.insert(++clock_);
    return clock_;
  }
  void EndBatch(int64_t batch) override {
    std::lock_guard<std::mutex> lock(mutex_);
    batches_.erase(batch);
  }

  Status Slot(const SlotOptions& slot, void** array) override {
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].name != slot.name) continue;
      if (slots_[s].width != slot.width) return "slot '" + slot.name + "' has another width";
      *array = slot_values_[s]->data();
      return {};
    }
    slots_.push_back(slot);
    slot_values_.push_back(
        std::make_unique<std::vector<float>>(max_rows_ * slot.width, slot.initial));
    *array = slot_values_.back()->data();
    return {};
  }
  const std::vector<SlotOptions>& slots() const override { return slots_; }

  int64_t num_keys() const override { return static_cast<int64_t>(row_of_.size()); }
  int64_t max_keys(const std::vector<SlotOptions>&) const override {
    return max_rows_ - first_row();
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(values_.size() * sizeof(float) + infos_.size() * sizeof(RowInfo));
  }
  float load_factor() const override { return row_of_.load_factor(); }

  void Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < num_keys; ++i) rows[i] = RowOf(keys[i]);
  }
  RowInfo Info(int64_t row) const override { return infos_[row]; }
  Status ReadAll(KeyedRows* rows) const override {
    for (const auto& [key, row] : row_of_) Append(row, rows);
    return {};
  }

  Status Insert(const KeyedRowsView& given, const ParallelFor&) override {
    for (int64_t i = 0; i < given.num_keys; ++i) {
      if (given.counts != nullptr && given.counts[i] < 0) return "a count is negative";
    }
    for (int64_t i = 0; i < given.num_keys; ++i) {
      const int64_t key = given.keys[i];
      int64_t row = RowOf(key);
      if (row == kNoRow) row = NewRow(key, 0, -1);
      if (row == kNoRow) return Full();
      const auto* values = reinterpret_cast<const float*>(given.values);
      std::copy_n(values + i * options_.dim, options_.dim, values_.data() + row * options_.dim);
      if (given.counts != nullptr) infos_[row].count = std::min(given.counts[i], kMaxCount);
      if (given.versions != nullptr) infos_[row].version = given.versions[i];
      for (size_t s = 0; s < slots_.size(); ++s) {
        const bool is_given = s < given.slots.size() && given.slots[s] != nullptr;
        const int64_t width = slots_[s].width;
        float* to = slot_values_[s]->data() + row * width;
        if (!is_given) std::fill_n(to, width, slots_[s].initial);
        if (is_given) {
          std::copy_n(reinterpret_cast<const float*>(given.slots[s]) + i * width, width, to);
        }
      }
    }
    return {};
  }
  int64_t Erase(const int64_t* keys, int64_t num_keys) override {
    int64_t num_erased = 0;
    for (int64_t i = 0; i < num_keys; ++i) {
      const auto at = row_of_.find(keys[i]);
      if (at == row_of_.end()) continue;
      infos_[at->second].count = -1;
      free_.push_back({at->second, clock_});
      changes_.erased()->push_back(keys[i]);
      row_of_.erase(at);
      ++num_erased;
    }
    return num_erased;
  }
  int64_t Evict(const Eviction& eviction, int64_t step, const ParallelFor&) override {
    std::vector<int64_t> keys;
    for (const auto& [key, row] : row_of_) {
      const char* values = reinterpret_cast<const char*>(values_.data() + row * options_.dim);
      if (EvictedBy(options_, eviction, step, infos_[row].version, values, /*minute=*/0) !=
          Eviction::Kind::kNone) {
        keys.push_back(key);
      }
    }
    return Erase(keys.data(), static_cast<int64_t>(keys.size()));
  }
  void Clear() override {
    KeyedRows rows;
    (void)ReadAll(&rows);
    Erase(rows.keys.data(), static_cast<int64_t>(rows.keys.size()));
    seen_.clear();
  }
  void SetAdmissionState(const AdmissionState& state) override {
    seen_.clear();
    for (size_t i = 0; i < state.keys.size(); ++i) seen_[state.keys[i]] = state.counts[i];
  }

  ChangeLog* changes() override { return &changes_; }
  ChangeMark Now() const override {
    return {batches_.empty() ? clock_ + 1 : *batches_.begin(), changes_.num_erased()};
  }
  std::unique_ptr<Snapshot> TakeSnapshot(bool changes_only, const Eviction& eviction, int64_t step,
                                         int64_t follower) override {
    Evict(eviction, step, SerialFor);
    return std::make_unique<Copy>(this, changes_only, follower);
  }
  void BeforeWrite(const int64_t*, int64_t) override {}  // a snapshot is a copy

  std::unique_ptr<RowLocator> Locate(std::vector<KeysToLocate> requests, Access access,
                                     int64_t step) override {
    return std::make_unique<Locator>(this, std::move(requests), access, step);
  }

 private:
  // One step of one task, which locates everything.
  class Locator : public RowLocator {
   public:
    Locator(MapTable* table, std::vector<KeysToLocate> requests, Access access, int64_t step)
        : table_(table), requests_(std::move(requests)), access_(access), step_(step) {}
    int num_steps() const override { return 1; }
    int64_t num_tasks(int) const override { return 1; }
    int64_t cost(int) const override { return 1000; }
    Status RunTask(int, int64_t) override {
      std::lock_guard<std::mutex> lock(table_->mutex_);
      if (access_ == Access::kTrain) Count();
      for (const KeysToLocate& r : requests_) {
        for (int64_t i = 0; i < r.num_keys; ++i) {
          const int64_t key = r.keys[i], read = table_->DefaultRow(key);
          int64_t row = table_->RowOf(key);
          const bool is_new = row == kNoRow;
          if (is_new && access_ == Access::kTrain && table_->IsAdmitted(key)) {
            row = table_->NewRow(key, table_->seen_[key], step_);
            if (row == kNoRow) {
              if (!HasFilter(table_->options_)) table_->seen_.clear();
              return table_->Full();
            }
          }
          r.rows[i] = row == kNoRow ? read : row;
        }
      }
      return {};
    }

   private:
    void Count() {
      for (const KeysToLocate& r : requests_) {
        for (int64_t i = 0; i < r.num_keys; ++i) {
          const int64_t times = r.times == nullptr ? 1 : r.times[i];
          const int64_t row = table_->RowOf(r.keys[i]);
          if (row == kNoRow) table_->seen_[r.keys[i]] += times;
          if (row == kNoRow) continue;
          table_->infos_[row].count += times;
          table_->infos_[row].version = step_;
        }
      }
    }

    MapTable* const table_;
    const std::vector<KeysToLocate> requests_;
    const Access access_;
    const int64_t step_;
  };

  class Copy : public Snapshot {
   public:
    Copy(MapTable* table, bool changes_only, int64_t follower)
        : table_(table), changes_only_(changes_only), mark_(table->Now()) {
      (void)table->ReadAll(&rows_);
      for (const auto& [key, count] : table->seen_) {
        admission_.keys.push_back(key);
        admission_.counts.push_back(count);
      }
      ChangeLog& changes = table->changes_;
      if (changes_only) erased_ = changes.ErasedSince(changes.MarkOf(follower));
    }
    const EmbeddingTable& table() const override { return *table_; }
    int64_t num_rows() const override { return static_cast<int64_t>(rows_.keys.size()); }
    void Read(int64_t begin, int64_t end, KeyedRows* to) override {
      end = std::min(end, num_rows());
      auto append = [&](const auto& from, int64_t width, auto* out) {
        out->insert(out->end(), from.begin() + begin * width, from.begin() + end * width);
      };
      append(rows_.keys, 1, &to->keys);
      append(rows_.counts, 1, &to->counts);
      append(rows_.versions, 1, &to->versions);
      append(rows_.values, table_->options_.dim * sizeof(float), &to->values);
      to->slots.resize(rows_.slots.size());
      for (size_t s = 0; s < rows_.slots.size(); ++s) {
        append(rows_.slots[s], table_->slots_[s].width * sizeof(float), &to->slots[s]);
      }
    }
    const AdmissionState& admission() override { return admission_; }
    const std::vector<int64_t>& erased() const override { return erased_; }
    std::vector<int64_t> evicted() const override { return {}; }
    void Keep() override {
      if (!changes_only_) table_->changes_.Follow(kSaves, mark_);
    }
    const ChangeMark& mark() const override { return mark_; }

   private:
    MapTable* const table_;
    const bool changes_only_;
    const ChangeMark mark_;
    KeyedRows rows_;
    AdmissionState admission_;
    std::vector<int64_t> erased_;
  };

  int64_t RowOf(int64_t key) const {
    const auto at = row_of_.find(key);
    return at == row_of_.end() ? kNoRow : at->second;
  }
  int64_t DefaultRow(int64_t key) const {
    const bool reads_start = !HasFilter(options_) && options_.initial.matrix_rows > 0;
    return reads_start ? MatrixRow(key, options_.initial.matrix_rows) : first_row() - 1;
  }
  bool IsAdmitted(int64_t key) { return seen_[key] >= options_.admission.min_count; }
  std::string Full() const {
    return "table '" + options_.name + "' is full at " + std::to_string(num_keys()) + " rows";
  }

  // A row with initial values; kNoRow: the table is full.
  int64_t NewRow(int64_t key, int64_t count, int64_t version) {
    int64_t row = next_row_;
    const int64_t oldest = batches_.empty() ? clock_ + 1 : *batches_.begin();
    if (!free_.empty() && free_.front().second < oldest) {
      row = free_.front().first;
      free_.erase(free_.begin());
    } else if (next_row_ == max_rows_) {
      return kNoRow;
    } else {
      ++next_row_;
    }
    float* values = values_.data() + row * options_.dim;
    for (int32_t j = 0; j < options_.dim; ++j) {
      values[j] = options_.initial.matrix_rows > 0
                      ? values_[MatrixRow(key, options_.initial.matrix_rows) * options_.dim + j]
                      : InitialValue(options_.initial, key, j);
    }
    for (size_t s = 0; s < slots_.size(); ++s) {
      const int64_t width = slots_[s].width;
      std::fill_n(slot_values_[s]->data() + row * width, width, slots_[s].initial);
    }
    infos_[row] = {key, count, version, clock_};
    row_of_[key] = row;
    seen_.erase(key);
    return row;
  }

  void Append(int64_t row, KeyedRows* rows) const {
    auto append = [row](const std::vector<float>& from, int64_t width, std::vector<char>* to) {
      const char* begin = reinterpret_cast<const char*>(from.data() + row * width);
      to->insert(to->end(), begin, begin + width * sizeof(float));
    };
    rows->keys.push_back(infos_[row].key);
    rows->counts.push_back(infos_[row].count);
    rows->versions.push_back(infos_[row].version);
    append(values_, options_.dim, &rows->values);
    rows->slots.resize(slots_.size());
    for (size_t s = 0; s < slots_.size(); ++s) {
      append(*slot_values_[s], slots_[s].width, &rows->slots[s]);
    }
  }

  const TableOptions options_;
  const int64_t max_rows_;
  std::vector<float> values_;
  std::vector<RowInfo> infos_;
  std::vector<SlotOptions> slots_;
  std::vector<std::unique_ptr<std::vector<float>>> slot_values_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, int64_t> row_of_;
  std::map<int64_t, int64_t> seen_;                // how often keys without a row were trained
  std::vector<std::pair<int64_t, int64_t>> free_;  // rows, and the clock when they were freed
  ChangeLog changes_;
  std::set<int64_t> batches_;
  int64_t next_row_ = 0, clock_ = 0;
};

}  // namespace testing
}  // namespace group_embedding
