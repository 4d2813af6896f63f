// ChangeLog: the keys erased from a table, and how far each follower of its changes has come.
//
// Saves of changes are one follower, and each publisher is one. A follower has a mark: rows trained
// in batches from the mark's clock on, and keys erased behind the mark, are its changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

namespace group_embedding {

struct ChangeMark {
  int64_t clock = 0;       // of the first batch whose rows are changes
  int64_t num_erased = 0;  // keys that had been erased in the table's life
};

inline constexpr int64_t kSaves = 0;  // the follower that saves of changes are

// Not thread-safe: the caller has the table's lock.
class ChangeLog {
 public:
  // Keys in the order in which they were erased. Whoever erases keys appends them.
  std::vector<int64_t>* erased() { return &erased_; }
  int64_t num_erased() const { return first_ + static_cast<int64_t>(erased_.size()); }

  bool Has(int64_t follower) const { return marks_.count(follower) != 0; }
  bool HasPublishers() const { return marks_.size() > marks_.count(kSaves); }
  std::vector<int64_t> Clocks() const {
    std::vector<int64_t> clocks;
    for (const auto& [follower, mark] : marks_) clocks.push_back(mark.clock);
    return clocks;
  }
  const ChangeMark& MarkOf(int64_t follower) const { return marks_.at(follower); }
  std::vector<int64_t> ErasedSince(const ChangeMark& mark) const {
    return {erased_.begin() + (mark.num_erased - first_), erased_.end()};
  }

  // A mark lies not before that which the follower had. Where keys behind it are no longer known,
  // as of a save that was written for too long, the follower is forgotten.
  void Follow(int64_t follower, const ChangeMark& mark) {
    if (mark.num_erased < first_) return Unfollow(follower);
    marks_[follower] = mark;
    Forget();
  }
  // Forgets followers that have not read the last `most` keys or more: they must read the whole
  // table, which has become less than what they missed.
  void Limit(int64_t most) {
    if (static_cast<int64_t>(erased_.size()) <= most) return;
    for (auto mark = marks_.begin(); mark != marks_.end();) {
      const bool is_behind = num_erased() - mark->second.num_erased > most;
      mark = is_behind ? marks_.erase(mark) : std::next(mark);
    }
    Forget();
  }
  // Keys were erased that the log does not have: all followers must read the whole table.
  void Miss(int64_t num_keys) {
    if (num_keys == 0) return;
    marks_.clear();
    first_ = num_erased() + num_keys;
    erased_.clear();
  }
  void Unfollow(int64_t follower) {
    marks_.erase(follower);
    Forget();
  }

 private:
  // Keys that all followers have.
  void Forget() {
    int64_t first = num_erased();
    for (const auto& [follower, mark] : marks_) first = std::min(first, mark.num_erased);
    erased_.erase(erased_.begin(), erased_.begin() + (first - first_));
    first_ = first;
  }

  std::vector<int64_t> erased_;
  int64_t first_ = 0;  // of all keys erased in the table's life, the number of erased_[0]
  std::unordered_map<int64_t, ChangeMark> marks_ = {{kSaves, ChangeMark()}};
};

}  // namespace group_embedding
