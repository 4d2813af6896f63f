// RowClocks: the batches in which rows were trained last, in 16 bits each.
//
// A row of one of the last batches has the batch's number modulo kRing. Before that would be
// ambiguous, a row is frozen: its code then names one of a few clocks, the next one after its own.
// These lie right before the marks of followers of the table's changes (change_log.h), so that
// whether a row has changed since a mark stays exact. Rows are visited in passes of kPassBatches,
// some rows as each batch begins; a pass has its own codes, so those of the pass before are free.
//
// Thread safety: BeginBatch and SetMarks are under one lock. CodeOf may run at any time for the
// present batch, and under the lock for others; ClockOf may run at any time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace group_embedding {

class RowClocks {
 public:
  static constexpr uint16_t kNone = 0;
  static constexpr int kFrozenOfPass = 16;
  static constexpr int kFirstOfRing = 1 + 2 * kFrozenOfPass;
  static constexpr int64_t kRing = 65536 - kFirstOfRing;
  static constexpr int64_t kPassBatches = kRing / 8;

  // The number of the present batch.
  int64_t now() const { return now_.load(std::memory_order_relaxed); }

  // The next batch begins. body(begin, end): the rows of [0, num_rows) to be frozen now.
  template <typename Body>
  int64_t BeginBatch(int64_t num_rows, const Body& body) {
    const int64_t now = this->now() + 1;
    now_.store(now, std::memory_order_relaxed);
    if (next_row_ >= pass_rows_ && now >= pass_begin_ + kPassBatches) BeginPass(now, num_rows);
    const int64_t end = std::min(next_row_ + rows_at_once_, pass_rows_);
    if (next_row_ < end) body(next_row_, end);
    next_row_ = std::max(next_row_, end);
    return now;
  }

  // Clocks of which it matters whether a row has a lower one.
  void SetMarks(std::vector<int64_t> marks) {
    std::sort(marks.begin(), marks.end());
    marks_ = std::move(marks);
  }

  uint16_t CodeOf(int64_t clock) const {
    return clock > frozen_until_ ? CodeInRing(clock) : FrozenCode(clock);
  }
  static uint16_t CodeInRing(int64_t clock) {
    return static_cast<uint16_t>(kFirstOfRing + clock % kRing);
  }

  int64_t ClockOf(uint16_t code) const {
    if (code < kFirstOfRing) {
      return code == kNone ? 0 : frozen_[code - 1].load(std::memory_order_relaxed);
    }
    const int64_t now = this->now();
    const int64_t behind = (now % kRing + kRing - (code - kFirstOfRing)) % kRing;
    // Another thread's batch may have begun since.
    return behind < kRing / 8 * 7 ? now - behind : now - behind + kRing;
  }

  // The code of a row in a pass, which has `code` so far.
  uint16_t Freeze(uint16_t code) const {
    const bool is_of_pass = code < kFirstOfRing && (code - 1) / kFrozenOfPass == pass_;
    return code == kNone || is_of_pass ? code : CodeOf(ClockOf(code));
  }

 private:
  // Rows that were trained more than half a ring ago are frozen.
  void BeginPass(int64_t now, int64_t num_rows) {
    pass_begin_ = now;
    next_row_ = 0;
    pass_rows_ = num_rows;
    rows_at_once_ = (num_rows + kPassBatches - 1) / kPassBatches;
    if (now <= kRing / 2) {
      pass_rows_ = 0;
      return;
    }
    pass_ = 1 - pass_;
    frozen_until_ = now - kRing / 2;
    int i = kFrozenOfPass * (pass_ + 1);  // filled from its end, as the latest marks matter most
    const int begin = i - kFrozenOfPass;
    frozen_[--i].store(frozen_until_, std::memory_order_relaxed);
    for (auto mark = marks_.rbegin(); mark != marks_.rend() && i > begin; ++mark) {
      const int64_t before = *mark - 1;
      if (before >= frozen_[i] || before < 0) continue;
      frozen_[--i].store(before, std::memory_order_relaxed);
    }
    while (i > begin) frozen_[--i].store(-1, std::memory_order_relaxed);
  }

  // The code of the first frozen clock from `clock` on.
  uint16_t FrozenCode(int64_t clock) const {
    int i = kFrozenOfPass * pass_;
    while (frozen_[i].load(std::memory_order_relaxed) < clock) ++i;
    return static_cast<uint16_t>(1 + i);
  }

  std::atomic<int64_t> now_{0};
  std::vector<int64_t> marks_;
  std::atomic<int64_t> frozen_[2 * kFrozenOfPass] = {};  // of each pass ascending
  std::atomic<int64_t> frozen_until_{-1};                // the last of them
  int pass_ = 1;
  int64_t pass_begin_ = 0, pass_rows_ = 0, next_row_ = 0, rows_at_once_ = 0;
};

}  // namespace group_embedding
