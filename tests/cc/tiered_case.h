// Tables of served models above a tier that computes its rows, for tests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "served_case.h"

namespace group_embedding {

// How a tier behaves; a test changes it while threads read.
struct Mood {
  std::atomic<int> sleep_ms{0};
  std::atomic<bool> fails{false};
  std::atomic<int64_t> num_reads{0};
};

// Rows below memory: key k of [0, num_rows) has the value k; others are nowhere.
class ComputedRows : public LowerRows {
 public:
  explicit ComputedRows(int64_t num_rows, Mood* mood = nullptr)
      : num_rows_(num_rows), mood_(mood) {}

  std::string tier() const override { return "computed=here"; }
  bool keeps_deadlines() const override { return false; }
  RowFormat format() const override { return RowFormat::kFloat32; }
  int64_t num_rows() const override { return num_rows_; }
  Status Read(const int64_t* keys, int64_t num_keys, const Deadline&, bool* found,
              const RowPlaces& rows) const override {
    if (mood_ != nullptr) {
      ++mood_->num_reads;
      std::this_thread::sleep_for(std::chrono::milliseconds(mood_->sleep_ms));
      if (mood_->fails) return "table 'user', tier computed=here: it fails";
    }
    for (int64_t i = 0; i < num_keys; ++i) {
      found[i] = keys[i] >= 0 && keys[i] < num_rows_;
      const std::vector<float> row(kDim, static_cast<float>(keys[i]));
      std::memcpy(rows[i], row.data(), kDim * sizeof(float));
    }
    return {};
  }
  Status Write(const int64_t*, int64_t, const char*, bool, const Deadline&) override {
    return "read only";
  }
  Status Erase(const int64_t*, int64_t, const Deadline&) override { return "read only"; }
  Status Complete(const std::vector<char>&, const Deadline&) override { return "read only"; }
  Status ReadInitial(const Deadline&, std::vector<char>*) const override { return {}; }

 private:
  const int64_t num_rows_;
  Mood* const mood_;
};

// A table with its threads, which end first.
struct Tiered {
  std::unique_ptr<ServedTable> table;
  std::unique_ptr<TierThreads> threads = std::make_unique<TierThreads>();

  Tiered(int64_t num_rows, int64_t max_cached, const TierOptions& tiers, Mood* mood = nullptr) {
    table = MakeTable(true, 0);
    table->Attach(std::make_unique<ComputedRows>(num_rows, mood));
    table->StartCache(max_cached, tiers, threads.get());
  }
};

struct Asked {
  Status status;
  bool is_late = false;
  std::vector<float> values;
  double seconds = 0;
};

inline Asked Ask(ServedTable* table, const std::vector<int64_t>& keys, Deadline deadline,
                 const Overlay* overlay = nullptr) {
  const auto start = Deadline::Clock::now();
  const ServedTable::Reader reader(table);
  Asked asked;
  std::vector<int64_t> rows(keys.size());
  if (table->Locate(overlay, keys.data(), keys.size(), rows.data()) > 0) {
    asked.status =
        table->Fetch(keys.data(), Numbers(keys.size()), deadline, rows.data(), &asked.is_late);
  }
  asked.seconds = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  if (!asked.status.ok()) return asked;
  for (const int64_t row : rows) asked.values.push_back(ValueAt(*table, row, kDim - 1));
  return asked;
}

inline Deadline Within(std::chrono::milliseconds time) {
  Deadline deadline;
  deadline.Shorten(time);
  return deadline;
}

inline TierOptions Options(Insert insert, OnFailure on_failure = OnFailure::kError) {
  TierOptions tiers;
  tiers.insert = insert;
  tiers.on_failure = on_failure;
  tiers.timeout = std::chrono::milliseconds(20);
  return tiers;
}

inline bool WaitFor(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

}  // namespace group_embedding
