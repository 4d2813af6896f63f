// Caches of tiered tables that are far smaller than what is asked of them: what leaves, and how
// much memory there is.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "tiered_case.h"

namespace group_embedding {
namespace {

// Requests that are late are not what is tested here.
TierOptions Patient(Insert insert) {
  TierOptions tiers = Options(insert);
  tiers.timeout = std::chrono::minutes(1);
  return tiers;
}

TEST(ARequestLargerThanTheCacheLeavesAtMostOneCacheOfIt) {
  // Given a cache of 100 rows, and requests of 5,000 keys, each third of which is nowhere
  for (const Insert insert : {Insert::kAtOnce, Insert::kBackground}) {
    Tiered tiered(100'000, 100, Patient(insert));
    ServedTable* const table = tiered.table.get();
    for (int64_t turn = 1; turn <= 20; ++turn) {
      std::vector<int64_t> keys;
      for (int64_t i = 0; i < 5'000; ++i) {
        keys.push_back(i % 3 == 0 ? -1 - i - 5'000 * turn : i + 4'000 * turn);
      }
      // When they are asked, Then each key reads its row
      const Asked asked = Ask(table, keys, Deadline::Never());
      CHECK_OK(asked.status);
      for (size_t i = 0; i < keys.size(); ++i) {
        CHECK_EQ(asked.values[i], keys[i] < 0 ? 0 : static_cast<float>(keys[i]));
      }
      // And no more leave memory than it is for, as rows of one request do not push each other out
      CHECK_TRUE(WaitFor([&] { return table->tier_counts().cached > 0; }));
      CHECK_TRUE(table->tier_counts().cached <= 100);
      CHECK_TRUE(table->tier_counts().evicted <= 2 * 100 * turn);
    }
    // And the array has the rows of the cache and of a few requests, of more where a busy machine
    // lets the thread that frees them wait, but never of all
    CHECK_TRUE(table->num_rows() < 100 + 10 * 5'000);
  }
}

TEST(MemoryIsCountedWhileRequestsMoveRows) {
  // Given threads whose keys push each other out of a small cache, so that its index grows anew
  Tiered tiered(100'000, 50, Patient(Insert::kAtOnce));
  ServedTable* const table = tiered.table.get();
  std::atomic<bool> stop{false};
  std::atomic<int64_t> num_failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!stop) {
        std::vector<int64_t> keys(200);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 100'000);
        num_failed += !Ask(table, keys, Deadline::Never()).status.ok();
      }
    });
  }
  // When another thread asks how much memory there is, meanwhile
  int64_t least = table->bytes(), most = least;
  while (table->tier_counts().evicted < 400'000) {
    const int64_t bytes = table->bytes();
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(num_failed.load(), 0);
  // Then it was that of a cache of 50 rows, and of rows that wait for a request that the system has
  // stopped for a while, far from the 400,000 rows that left the cache
  CHECK_TRUE(least >= 50 * 2 * static_cast<int64_t>(sizeof(int64_t)));
  CHECK_TRUE(most < 200'000 * table->row_bytes());
}

TEST(MemoryIsTheBudgetAndOneDeltaWhileTwoVersionsAreOpen) {
  // Given a full cache of 1,000 rows, and a trainer that publishes 300 of 300,000 rows at a time
  Tiered tiered(300'000, 1'000, Patient(Insert::kAtOnce));
  ServedTable* const table = tiered.table.get();
  std::mt19937 random(1);
  const auto ask = [&](const Overlay* overlay) {
    std::vector<int64_t> keys(200);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 300'000);
    CHECK_OK(Ask(table, keys, Deadline::Never(), overlay).status);
  };
  std::unique_ptr<Overlay> served;
  for (int64_t version = 1; version <= 40; ++version) {
    for (int i = 0; i < 20; ++i) ask(served.get());
    // When a version is committed: it is staged beside the one that answers, and both are asked
    std::vector<int64_t> changed = Numbers(300);
    std::unique_ptr<Overlay> next;
    CHECK_OK(table->Stage(AllRows(changed, static_cast<float>(version)), &next));
    for (int i = 0; i < 20; ++i) {
      ask(served.get());
      ask(next.get());
    }
    // Then memory is the cache's, that of the changed rows, one delta, and a few requests in flight
    CHECK_TRUE(table->tier_counts().cached <= 1'000);
    CHECK_TRUE(table->num_rows() <= 1'000 + 300 + 300 + 5 * 200);
    table->Merge(served.get());
    table->Drop(std::move(served));
    served = std::move(next);
  }
  CHECK_EQ(Ask(table, {299, 300}, Deadline::Never(), served.get()).values,
           (std::vector<float>{40, 300}));
}

}  // namespace
}  // namespace group_embedding
