// Budgets of tables: the order of eviction, the lowest of many, and threads that train, read and
// save a table that is full.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "table/change_log.h"
#include "table/host/budget_bytes.h"
#include "table/host/host_table.h"
#include "table/lowest_keys.h"
#include "threads.h"

namespace group_embedding {
namespace {

TEST(FloatsKeepTheirOrder) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-infinity, -2.5f, -1e-40f, 0, 1e-40f, 1, infinity};
  for (size_t i = 1; i < ascending.size(); ++i) {
    CHECK_EQ(eviction_order::OfFloat(ascending[i - 1]) < eviction_order::OfFloat(ascending[i]),
             true);
  }
  CHECK_EQ(eviction_order::OfFloat(-0.0f), eviction_order::OfFloat(0.0f));
  CHECK_EQ(eviction_order::OfFloat(infinity) < eviction_order::OfFloat(std::nanf("")), true);
  CHECK_EQ(eviction_order::OfInteger(-1) < eviction_order::OfInteger(0), true);
}

TEST(CountsAreHalvedOncePerDecay) {
  CHECK_EQ(DecayedCount(100, 7, 7, 4), 100);
  CHECK_EQ(DecayedCount(100, 7, 8, 4), 50);  // steps 4 to 7 are one, 8 to 11 the next
  CHECK_EQ(DecayedCount(100, 0, 11, 4), 25);
  CHECK_EQ(DecayedCount(100, -1, 1000, 4), 100);
  CHECK_EQ(DecayedCount(kMaxCount, 0, int64_t{1} << 62, 1), 0);
  CHECK_EQ(DecayedCount(100, 0, 11, 0), 100);
}

TEST(NewKeysAreSafeForAsManySteps) {
  CHECK_EQ(IsSafe(BornMark(10), 10, 1), true);
  CHECK_EQ(IsSafe(BornMark(10), 11, 1), false);
  CHECK_EQ(IsSafe(BornMark(10), 14, 5), true);
  CHECK_EQ(IsSafe(BornMark(-1), 0, 5), false);
  CHECK_EQ(IsSafe(BornMark(int64_t{1} << 40), int64_t{1} << 40, 5), false);
}

TEST(TheLowestAreThoseThatASortPutsFirst) {
  std::mt19937_64 random(1);
  std::vector<EvictionCandidate> all;
  for (int64_t i = 0; i < 100000; ++i) {
    all.push_back({{random() % 50, random() % 3, random()}, i, i});
  }
  LowestKeys lowest(7001);
  for (size_t begin = 0; begin < all.size(); begin += 1000) {
    const EvictionOrder bound = lowest.bound();
    std::vector<EvictionCandidate> some;
    for (size_t i = begin; i < begin + 1000; ++i) {
      if (all[i].order < bound) some.push_back(all[i]);
    }
    lowest.Add(some);
  }

  std::vector<EvictionCandidate> found = lowest.Take();

  std::sort(all.begin(), all.end());
  std::sort(found.begin(), found.end());
  CHECK_EQ(found.size(), size_t{7001});
  for (size_t i = 0; i < found.size(); ++i) CHECK_EQ(found[i].key, all[i].key);
}

TEST(AShareOfTheBudgetIsTheSameForEveryNumberOfRanks) {
  for (const int64_t num_ranks : {1, 2, 3, 4, 6, 12}) {
    int64_t total = 0;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      Budget budget;
      budget.max_keys = 1003;
      budget.num_shares = 12;
      budget.rank = rank;
      budget.num_ranks = num_ranks;
      for (int64_t s = 0; s < budget.shares_of_rank(); ++s) {
        const int64_t share = s + rank * budget.shares_of_rank();
        CHECK_EQ(budget.MaxKeysOfShare(s, 0), 83 + (share < 7 ? 1 : 0));
        total += budget.MaxKeysOfShare(s, 0);
      }
      for (int64_t key = 0; key < 1000; ++key) {
        if (OwnerOfKey(key, num_ranks) != rank) continue;
        CHECK_EQ(budget.ShareOf(key) + rank * budget.shares_of_rank(), OwnerOfKey(key, 12));
      }
    }
    CHECK_EQ(total, 1003);
  }
}

TEST(AFollowerThatFallsTooFarBehindIsForgotten) {
  ChangeLog log;
  log.Follow(7, {0, 0});
  log.erased()->assign(100, 1);
  log.Follow(7, {0, 95});

  log.Limit(50);

  CHECK_EQ(log.Has(kSaves), false);
  CHECK_EQ(log.Has(7), true);
  CHECK_EQ(log.ErasedSince(log.MarkOf(7)).size(), size_t{5});
  log.Follow(kSaves, {0, 10});  // of a save that began before
  CHECK_EQ(log.Has(kSaves), false);
}

TEST(AnAdmissionByChanceIsGeometric) {
  Admission admission;
  admission.probability = 0.25;
  std::vector<int64_t> counts(5);
  for (int64_t key = 0; key < 100000; ++key) {
    ++counts[std::min<int64_t>(MinCountOf(admission, key), 4)];
  }
  CHECK_EQ(counts[0], 0);
  CHECK_NEAR(counts[1] / 1e5, 0.25, 0.005);
  CHECK_NEAR(counts[2] / 1e5, 0.1875, 0.005);
  CHECK_NEAR(counts[3] / 1e5, 0.140625, 0.005);
}

TEST(ThreadsTrainReadAndSaveATableThatIsFull) {
  TableOptions options;
  options.dim = 4;
  options.budget.max_keys = 500;
  options.budget.hands_out = HandsOut::kRows;
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  const ParallelFor threads = testing::ThreadedFor(4);

  threads(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      std::mt19937_64 random(thread);
      for (int64_t step = 0; step < 200; ++step) {
        const TableBatch batch(table.get());
        std::vector<int64_t> keys(64), rows(64);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 3000);
        const KeysToLocate request = {table->host(), keys.data(), 64, rows.data(), batch.number()};
        const Access access = thread == 0 ? Access::kRead : Access::kTrain;
        const Status located = LocateRowsCpu(&request, 1, access, step, SerialFor);
        if (!located.ok()) throw std::runtime_error(located.message());
        if (table->num_keys() > 500) throw std::runtime_error("more keys than the budget");
      }
    }
  });

  CHECK_EQ(table->num_keys() <= 500, true);
  CHECK_EQ(table->budget_counts().num_evicted > 1000, true);
  KeyedRows rows;
  CHECK_OK(table->ReadAll(&rows));
  CHECK_EQ(static_cast<int64_t>(rows.keys.size()), table->num_keys());
}

}  // namespace
}  // namespace group_embedding
