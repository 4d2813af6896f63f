// GracePeriods: when what a writer has taken away is read by nobody any more.
//
// Readers are counted in one of two epochs. What was taken away in epoch e is free in epoch e + 2:
// an epoch ends only after all readers of the one before it have.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace group_embedding {

class GracePeriods {
 public:
  // Counts a reader in, for its life.
  class Reader {
   public:
    explicit Reader(GracePeriods* periods) : periods_(periods) {
      for (;;) {
        const int64_t epoch = periods->epoch_.load();
        parity_ = epoch & 1;
        periods->readers_[parity_].count.fetch_add(1);
        if (periods->epoch_.load() == epoch) return;
        periods->readers_[parity_].count.fetch_sub(1);
      }
    }
    ~Reader() { periods_->readers_[parity_].count.fetch_sub(1); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    GracePeriods* const periods_;
    int parity_;
  };

  // The rest is for the writer.
  int64_t epoch() const { return epoch_.load(); }
  // Ends the epoch, unless a reader of the one before it is left.
  void TryAdvance() {
    const int64_t epoch = epoch_.load();
    if (readers_[(epoch + 1) & 1].count.load() == 0) epoch_.store(epoch + 1);
  }
  bool IsFree(int64_t taken_away) const { return epoch() >= taken_away + 2; }

 private:
  struct alignas(64) Count {
    std::atomic<int64_t> count{0};
  };
  std::atomic<int64_t> epoch_{0};
  std::array<Count, 2> readers_;
};

}  // namespace group_embedding
