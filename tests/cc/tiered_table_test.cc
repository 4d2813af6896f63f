// Served tables whose rows are below memory: every way of caching them, a tier that is slow or
// fails, and rows for which nobody asks.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "serving/session/two_slots.h"
#include "serving/table/sort_keys.h"
#include "tiered_case.h"

namespace group_embedding {
namespace {

using std::chrono::milliseconds;

// Asks for keys in one version, and checks each row: k in the base, `changed` in the overlay.
void AskVersion(ServedTable* table, TwoSlots* requests,
                const std::array<const Overlay*, 2>& overlays, const std::array<float, 2>& values,
                const std::vector<int64_t>& keys) {
  const TwoSlots::Pin pin(requests);
  const Asked asked = Ask(table, keys, Within(std::chrono::minutes(5)), overlays[pin.slot()]);
  CHECK_OK(asked.status);
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool changed = keys[i] % 7 == 0 && values[pin.slot()] != 0;
    const float there = keys[i] < table->num_keys() ? static_cast<float>(keys[i]) : 0;
    CHECK_TRUE(asked.values[i] == (changed ? values[pin.slot()] : there));
  }
}

// Threads ask for many keys, while versions change each seventh key.
void CheckVersions(int64_t num_rows, int64_t max_cached, Insert insert) {
  constexpr int kVersions = 12, kThreads = 3, kKeys = 40;
  Tiered tiered(num_rows, max_cached, Options(insert));
  ServedTable* const table = tiered.table.get();
  std::array<std::unique_ptr<Overlay>, 2> overlays;
  std::array<const Overlay*, 2> seen = {};
  std::array<float, 2> values = {};
  TwoSlots requests;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> num_asked{0}, num_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      while (!stop) {
        std::vector<int64_t> keys(kKeys);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % (num_rows + 100));
        try {
          AskVersion(table, &requests, seen, values, keys);
        } catch (const testing::Failure&) {
          ++num_wrong;
        }
        ++num_asked;
      }
    });
  }
  std::vector<int64_t> sevenths;
  for (int64_t key = 0; key < num_rows + 100; key += 7) sevenths.push_back(key);
  for (int version = 1; version <= kVersions; ++version) {
    const int slot = 1 - requests.current();
    requests.WaitUntilFree(slot);
    table->Merge(overlays[1 - slot].get());
    table->Drop(std::move(overlays[slot]));
    CHECK_OK(table->Stage(AllRows(sevenths, 10'000.0f + version), &overlays[slot]));
    seen[slot] = overlays[slot].get();
    values[slot] = 10'000.0f + version;
    requests.Switch(slot);
    while (num_asked < 10 * version) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(num_wrong.load(), 0);
  const TierCounts counts = table->tier_counts();
  CHECK_TRUE(counts.absent > 0);
  if (num_rows != 1) CHECK_TRUE((counts.below > 0) == (num_rows > 0));  // versions change key 0
  CHECK_EQ(counts.in_memory + counts.below + counts.absent, kKeys * num_asked.load());
  CHECK_TRUE(insert == Insert::kOff ? counts.cached == 0
                                    : counts.cached <= max_cached + kThreads * kKeys);
  if (insert == Insert::kAtOnce && num_rows == 3000) {
    CHECK_TRUE((counts.evicted > 0) == (max_cached < num_rows));
  }
}

TEST(ATieredTableAnswersFromEveryTier) {
  for (const Insert insert : {Insert::kAtOnce, Insert::kBackground, Insert::kOff}) {
    for (const int64_t num_rows : {0, 1, 10, 3000}) {
      for (const int64_t max_cached : {1, 50, 5000}) CheckVersions(num_rows, max_cached, insert);
    }
  }
}

TEST(RowsOfReadsThatFailAreUsedAgain) {
  // Given a tier that fails, or answers after the deadline
  for (const bool is_slow : {false, true}) {
    Mood mood;
    Tiered tiered(1000, 100, Options(Insert::kOff), &mood);
    ServedTable* const table = tiered.table.get();
    mood.fails = !is_slow;
    mood.sleep_ms = is_slow ? 30 : 0;
    // When it is asked again and again
    const int64_t before = table->num_rows();
    for (int i = 0; i < 40; ++i) {
      CHECK_TRUE(!Ask(table, Numbers(50), Within(milliseconds(3))).status.ok());
    }
    // Then the array has no more rows than reads in progress need: of 16 threads, and those that
    // begin and end
    CHECK_TRUE(table->num_rows() <= before + 50 * (16 + 2));
    // And what is read next is right
    mood.fails = false;
    mood.sleep_ms = 0;
    const Asked asked = Ask(table, Numbers(50), Within(std::chrono::minutes(5)));
    CHECK_OK(asked.status);
    for (int64_t key = 0; key < 50; ++key) CHECK_TRUE(asked.values[key] == key);
  }
}

TEST(KeysAreSortedByTheirBits) {
  std::mt19937_64 random(1);
  // Given none, few and many keys, of a small range and of all bits, some of them twice
  for (const int64_t count : {0, 1, 255, 256, 5000}) {
    for (const uint64_t most : {uint64_t{1}, uint64_t{1000}, ~uint64_t{0}}) {
      std::vector<KeyAt> keys;
      std::vector<uint64_t> expected, given;
      for (int64_t i = 0; i < count; ++i) {
        given.push_back(most == ~uint64_t{0} ? random() : random() % most);
        keys.push_back({given.back(), i});
      }
      // When they are sorted
      SortKeys(&keys);
      // Then they are in order, each with its position
      expected = given;
      std::sort(expected.begin(), expected.end());
      for (int64_t i = 0; i < count; ++i) {
        CHECK_TRUE(keys[i].key == expected[i] && given[keys[i].position] == expected[i]);
      }
    }
  }
}

TEST(ARequestLeavesASlowTierAtItsDeadline) {
  // Given a tier that takes 200 ms
  Mood mood;
  Tiered tiered(100, 100, Options(Insert::kAtOnce), &mood);
  mood.sleep_ms = 200;
  // When a request waits 20 ms
  const Asked asked = Ask(tiered.table.get(), {3, 4, 3}, Within(milliseconds(20)));
  // Then its error names the table, the tier and the deadline, about then
  CHECK_CONTAINS(asked.status, "table 'user', tier computed=here: the rows of 2 keys");
  CHECK_CONTAINS(asked.status, "20 ms");
  CHECK_TRUE(asked.is_late && asked.seconds < 0.15);
  // And the rows that came later are in memory
  ServedTable* const table = tiered.table.get();
  CHECK_TRUE(WaitFor([&] { return table->tier_counts().cached == 2; }));
  const Asked again = Ask(table, {3, 4}, Within(milliseconds(20)));
  CHECK_OK(again.status);
  CHECK_EQ(again.values, (std::vector<float>{3, 4}));
  const TierCounts counts = table->tier_counts();
  CHECK_EQ(counts.timeouts, 1);
  CHECK_EQ(counts.failures, 0);
  CHECK_EQ(counts.in_memory, 2);
}

TEST(RequestsOfATierThatHangsAllLeave) {
  // Given a tier that hangs, and more requests than threads that read it
  Mood mood;
  Tiered tiered(1000, 10, Options(Insert::kAtOnce), &mood);
  mood.sleep_ms = 400;
  std::atomic<int> num_late{0};
  std::vector<std::thread> threads;
  const auto start = Deadline::Clock::now();
  for (int t = 0; t < 40; ++t) {
    threads.emplace_back(
        [&, t] { num_late += Ask(tiered.table.get(), {t}, Within(milliseconds(20))).is_late; });
  }
  for (std::thread& thread : threads) thread.join();
  // Then all leave at their deadlines, and reads that nobody waits for are not begun
  CHECK_TRUE(Deadline::Clock::now() - start < milliseconds(350));
  CHECK_EQ(num_late.load(), 40);
  CHECK_TRUE(mood.num_reads <= 16);
}

TEST(AFailureIsAnErrorOrADefaultThatIsNotRemembered) {
  for (const Insert insert : {Insert::kAtOnce, Insert::kBackground, Insert::kOff}) {
    for (const OnFailure on_failure : {OnFailure::kError, OnFailure::kDefault}) {
      for (const bool is_slow : {false, true}) {
        // Given a tier that fails, or is slow, and a row that is in memory
        Mood mood;
        Tiered tiered(100, 100, Options(insert, on_failure), &mood);
        ServedTable* const table = tiered.table.get();
        std::unique_ptr<Overlay> overlay;
        CHECK_OK(table->Stage(AllRows({5}, 55), &overlay));
        mood.fails = true;
        mood.sleep_ms = is_slow ? 60 : 0;
        // When keys are asked for
        const Asked asked =
            Ask(table, {5, 6, 7, 6}, Within(milliseconds(is_slow ? 20 : 60'000)), overlay.get());
        // Then it is an error, or the default row for what was below, and counted
        const TierCounts counts = table->tier_counts();
        CHECK_EQ(counts.failures, is_slow ? 0 : 1);
        CHECK_EQ(counts.timeouts, is_slow ? 1 : 0);
        if (on_failure == OnFailure::kError) {
          CHECK_CONTAINS(asked.status, is_slow ? "within the request's 20 ms" : "it fails");
          CHECK_TRUE(asked.is_late == is_slow);
          CHECK_EQ(counts.defaulted, 0);
        } else {
          CHECK_OK(asked.status);
          CHECK_EQ(asked.values, (std::vector<float>{55, 0, 0, 0}));
          CHECK_EQ(counts.defaulted, 3);
        }
        // And once the tier is well, each key reads its row
        mood.fails = false;
        mood.sleep_ms = 0;
        const Asked again = Ask(table, {5, 6, 7}, Within(std::chrono::minutes(1)), overlay.get());
        CHECK_OK(again.status);
        CHECK_EQ(again.values, (std::vector<float>{55, 6, 7}));
      }
    }
  }
}

TEST(RowsAreCachedInTheBackground) {
  // Given a table whose rows are cached by another thread
  Mood mood;
  Tiered tiered(100, 50, Options(Insert::kBackground), &mood);
  ServedTable* const table = tiered.table.get();
  // When rows and absent keys were asked for, Then they come into memory
  CHECK_EQ(Ask(table, {1, 2, 200}, Deadline::Never()).values, (std::vector<float>{1, 2, 0}));
  CHECK_TRUE(WaitFor([&] { return table->tier_counts().cached == 2; }));
  const int64_t num_reads = mood.num_reads;
  CHECK_EQ(Ask(table, {1, 2, 200}, Deadline::Never()).values, (std::vector<float>{1, 2, 0}));
  CHECK_EQ(mood.num_reads.load(), num_reads);
}

TEST(RowsThatAreNotCachedUseTheSameMemory) {
  // Given a table that caches nothing
  Tiered tiered(100'000, 50, Options(Insert::kOff));
  // When requests read all of it, Then its memory is that of a few requests
  for (int64_t first = 0; first < 100'000; first += 100) {
    std::vector<int64_t> keys = Numbers(100);
    for (int64_t& key : keys) key += first;
    CHECK_EQ(Ask(tiered.table.get(), keys, Deadline::Never()).values.back(),
             static_cast<float>(first + 99));
  }
  CHECK_TRUE(tiered.table->bytes() < 2000 * tiered.table->row_bytes());
  CHECK_EQ(tiered.table->tier_counts().cached, 0);
}

TEST(RowsForWhichNobodyAsksExpire) {
  // Given rows, absent keys and a row of a delta in memory
  TierOptions tiers = Options(Insert::kAtOnce);
  tiers.expire = std::chrono::seconds(10);
  Tiered tiered(100, 100, tiers);
  ServedTable* const table = tiered.table.get();
  std::unique_ptr<Overlay> overlay;
  CHECK_OK(table->Stage(AllRows({9}, 99), &overlay));
  const int64_t second = ServedTable::CacheSecond();
  CHECK_OK(Ask(table, {1, 2, 200}, Deadline::Never(), overlay.get()).status);
  table->Merge(overlay.get());
  // When fewer seconds have passed, Then all stay
  table->Expire(second - 1);  // of another thread, that read the clock earlier
  table->Expire(second + 9);
  CHECK_EQ(table->tier_counts().cached, 2);
  CHECK_EQ(table->tier_counts().expired, 0);
  // When more have, Then those of the base leave, and are read again
  table->Expire(second + 15);
  TierCounts counts = table->tier_counts();
  CHECK_EQ(counts.cached, 0);
  CHECK_EQ(counts.expired, 3);
  CHECK_EQ(counts.fetched, 2);
  CHECK_EQ(Ask(table, {1, 9, 200}, Deadline::Never()).values, (std::vector<float>{1, 99, 0}));
  CHECK_EQ(table->tier_counts().fetched, 3);
}

TEST(TheOptionsOfTiersAreRead) {
  TierOptions tiers;
  CHECK_OK(
      ReadTiers("memory=1.5kB,rocksdb=/a b=c,timeout=50ms,on_failure=default,"
                "insert=background,expire=2min",
                &tiers));
  CHECK_EQ(tiers.memory_bytes, 1500);
  CHECK_EQ(tiers.rocksdb, "/a b=c");
  CHECK_TRUE(*tiers.timeout == milliseconds(50) && *tiers.expire == std::chrono::seconds(120));
  CHECK_TRUE(tiers.on_failure == OnFailure::kDefault && tiers.insert == Insert::kBackground);
  const std::string start = "memory=1GB,rocksdb=/x,";
  for (const auto& [wrong, expected] : std::vector<std::pair<std::string, std::string>>{
           {"timeout=50", "timeout: expected a duration"},
           {"timeout=0ms", "got '0ms'"},
           {"timeout=nanms", "got 'nanms'"},
           {"expire=200ms", "from 1s to 480h"},
           {"expire=1000h", "got '1000h'"},
           {"on_failure=retry", "on_failure: expected error or default, got 'retry'"},
           {"insert=never", "insert: expected at_once, background or off, got 'never'"},
           {"expire=1h,insert=off", "expected expire= or insert=off, got both"},
           {"memory=2GB", "each once"},
           {"ttl=5s", "expected memory=SIZE,rocksdb=FOLDER"}}) {
    CHECK_CONTAINS(ReadTiers(start + wrong, &tiers), expected);
  }
}

}  // namespace
}  // namespace group_embedding
