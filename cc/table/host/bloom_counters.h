// A counting Bloom filter: how often a key was seen, or more, in a fixed amount of memory.
// B. H. Bloom, "Space/time trade-offs in hash coding with allowable errors" (1970); counters after
// L. Fan et al., "Summary cache" (2000).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "table/embedding_table.h"
#include "table/host/bloom_snapshot.h"

namespace group_embedding {

// Thread-safe: counters are atomic and never fall. They stop at their maximum.
class BloomCounters {
 public:
  explicit BloomCounters(const Admission& admission) : admission_(admission) {
    if (admission.kind != Admission::Kind::kBloom) return;
    words_.reset(new std::atomic<uint64_t>[NumWords()]());
  }

  size_t bytes() const { return words_ == nullptr ? 0 : NumWords() * sizeof(uint64_t); }

  // Counts so many occurrences. Counters that several of a key's hashes name are counted once.
  // `snapshot`: that of now, or null.
  void Add(uint64_t hash, int64_t times, BloomSnapshot* snapshot) {
    int64_t seen[kMaxHashes];
    for (int32_t h = 0; h < admission_.num_hashes; ++h) {
      seen[h] = Counter(hash, h);
      if (std::find(seen, seen + h, seen[h]) != seen + h) continue;
      if (snapshot != nullptr) snapshot->BeforeChange(WordOf(seen[h]));
      Increase(seen[h], static_cast<uint64_t>(times));
    }
  }

  // How often a key was seen, or more.
  int64_t Count(uint64_t hash) const {
    uint64_t least = ~uint64_t{0};
    for (int32_t h = 0; h < admission_.num_hashes; ++h) {
      least = std::min(least, Get(Counter(hash, h)));
    }
    return static_cast<int64_t>(std::min(least, ~uint64_t{0} >> 1));
  }

  // One at a time; exclusive.
  std::shared_ptr<BloomSnapshot> TakeSnapshot() {
    auto snapshot = std::make_shared<BloomSnapshot>(words_.get(), bytes() / sizeof(uint64_t));
    std::atomic_store(&snapshot_, snapshot);
    return snapshot;
  }
  void ForgetSnapshot() { std::atomic_store(&snapshot_, std::shared_ptr<BloomSnapshot>()); }
  // That is being read, or null.
  std::shared_ptr<BloomSnapshot> snapshot() const { return std::atomic_load(&snapshot_); }

  // counters: from a filter with the same options; empty: all zeros.
  void SetCounters(const std::vector<char>& counters) {
    Clear();
    if (counters.empty()) return;
    std::memcpy(static_cast<void*>(words_.get()), counters.data(),
                std::min(counters.size(), bytes()));
  }
  void Clear() {
    if (const auto read = snapshot(); read != nullptr) read->BeforeChangeOfAll();
    for (size_t w = 0; w < bytes() / sizeof(uint64_t); ++w) words_[w] = 0;
  }

  static constexpr int32_t kMaxHashes = 64;

 private:
  size_t NumWords() const {
    const int64_t per_word = 8 / admission_.counter_bytes;
    return (admission_.num_counters + per_word - 1) / per_word;
  }
  // Two halves of a hash stand for any number of hashes: A. Kirsch, M. Mitzenmacher, "Less hashing,
  // same performance" (2006).
  int64_t Counter(uint64_t hash, int32_t h) const {
    const uint64_t other = MixBits(hash + 0x9e3779b97f4a7c15ULL) | 1;
    return static_cast<int64_t>((hash + h * other) %
                                static_cast<uint64_t>(admission_.num_counters));
  }
  uint64_t Max() const { return ~uint64_t{0} >> (64 - 8 * admission_.counter_bytes); }
  size_t WordOf(int64_t counter) const { return counter / (8 / admission_.counter_bytes); }
  int Shift(int64_t counter) const {
    return static_cast<int>(counter % (8 / admission_.counter_bytes)) * 8 *
           admission_.counter_bytes;
  }
  uint64_t Get(int64_t counter) const {
    const uint64_t word = words_[WordOf(counter)].load();
    return word >> Shift(counter) & Max();
  }
  void Increase(int64_t counter, uint64_t times) {
    std::atomic<uint64_t>& word = words_[WordOf(counter)];
    uint64_t old = word.load(), left;
    do {
      left = Max() - (old >> Shift(counter) & Max());  // until it stops
    } while (!word.compare_exchange_weak(old, old + (std::min(times, left) << Shift(counter))));
  }

  const Admission admission_;
  std::unique_ptr<std::atomic<uint64_t>[]> words_;
  std::shared_ptr<BloomSnapshot> snapshot_;
};

}  // namespace group_embedding
