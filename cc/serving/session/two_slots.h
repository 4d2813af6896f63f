// TwoSlots: which of two slots requests use, and how many are in each. A slot holds a version of a
// model; the other one is written while the current one answers.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace group_embedding {

inline constexpr int kNumSlots = 2;

class TwoSlots {
 public:
  // Counts a request into the current slot, for its life.
  class Pin {
   public:
    explicit Pin(TwoSlots* slots) : slots_(slots) {
      for (;;) {
        slot_ = slots_->current_.load();
        slots_->counts_[slot_].requests.fetch_add(1);
        // Still current after it was counted in: a writer of the slot waits for this request.
        if (slots_->current_.load() == slot_) return;
        slots_->counts_[slot_].requests.fetch_sub(1);
      }
    }
    ~Pin() { slots_->counts_[slot_].requests.fetch_sub(1); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    int slot() const { return slot_; }

   private:
    TwoSlots* const slots_;
    int slot_;
  };

  int current() const { return current_.load(); }
  void Switch(int slot) { current_.store(slot); }

  int64_t num_requests() const { return counts_[0].requests.load() + counts_[1].requests.load(); }

  // Returns once no request is in a slot. Not for the current slot, which keeps getting requests.
  void WaitUntilFree(int slot) const {
    while (counts_[slot].requests.load() > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  struct alignas(64) Count {
    std::atomic<int64_t> requests{0};
  };

  std::atomic<int> current_{0};
  std::array<Count, kNumSlots> counts_;
};

}  // namespace group_embedding
