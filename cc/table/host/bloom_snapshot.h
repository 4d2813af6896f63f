// BloomSnapshot: the counters of a Bloom filter at one instant. Before a counter changes that has
// not been read, the counters around it are copied.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace group_embedding {

class BloomSnapshot {
 public:
  // Made while nothing changes `words` [num_words].
  BloomSnapshot(const std::atomic<uint64_t>* words, size_t num_words)
      : words_(words),
        num_words_(num_words),
        blocks_(new Block[(num_words + kWords - 1) / kWords]()),
        stripes_(new Stripe[kNumLocks]) {}

  // A counter in that word is about to change.
  void BeforeChange(size_t word) {
    const size_t b = word / kWords;
    if (!blocks_[b].is_read.load(std::memory_order_acquire)) CopyOnce(b);
  }
  void BeforeChangeOfAll() {
    for (size_t word = 0; word < num_words_; word += kWords) BeforeChange(word);
  }

  // All counters, once.
  std::vector<char> Read() {
    std::vector<char> counters(num_words_ * sizeof(uint64_t));
    auto* words = reinterpret_cast<uint64_t*>(counters.data());
    for (size_t b = 0; b * kWords < num_words_; ++b) {
      Stripe& stripe = stripes_[b % kNumLocks];
      std::lock_guard<std::mutex> lock(stripe.mutex);
      const auto found = stripe.copies.find(b);
      for (size_t w = b * kWords; w < EndOf(b); ++w) {
        words[w] = found == stripe.copies.end() ? words_[w].load(std::memory_order_relaxed)
                                                : found->second[w % kWords];
      }
      if (found != stripe.copies.end()) stripe.copies.erase(found);
      blocks_[b].is_read.store(true, std::memory_order_release);
    }
    return counters;
  }

 private:
  static constexpr size_t kWords = 64;
  static constexpr size_t kNumLocks = 256;

  struct Block {
    std::atomic<bool> is_read;  // or copied
  };
  struct Stripe {  // the blocks that have one lock
    std::mutex mutex;
    std::unordered_map<size_t, std::array<uint64_t, kWords>> copies;
  };

  size_t EndOf(size_t b) const { return std::min((b + 1) * kWords, num_words_); }

  void CopyOnce(size_t b) {
    Stripe& stripe = stripes_[b % kNumLocks];
    std::lock_guard<std::mutex> lock(stripe.mutex);
    if (blocks_[b].is_read.load(std::memory_order_relaxed)) return;
    std::array<uint64_t, kWords>& copy = stripe.copies[b];
    for (size_t w = b * kWords; w < EndOf(b); ++w) {
      copy[w % kWords] = words_[w].load(std::memory_order_relaxed);
    }
    blocks_[b].is_read.store(true, std::memory_order_release);
  }

  const std::atomic<uint64_t>* const words_;
  const size_t num_words_;
  // is_read is set once the block was read or copied.
  std::unique_ptr<Block[]> blocks_;
  std::unique_ptr<Stripe[]> stripes_;
};

}  // namespace group_embedding
