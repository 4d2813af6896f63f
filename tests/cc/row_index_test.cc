// What a table in host memory keeps of a key beside its row: the index, and counts, versions and
// clocks in 16 bytes.
#include "table/host/row_index.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "table/host/host_shards.h"
#include "table/host/host_table.h"
#include "table/host/row_clocks.h"
#include "table/host/row_infos.h"
#include "table/host/wide_counts.h"

namespace group_embedding {
namespace {

uint64_t Hash(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }
// Few different homes and two tags, so that searches are long and wrap around the end.
uint64_t CrowdedHash(int64_t key) {
  return (MixBits(key) & 1) | 0xffff0000 | (key % 7 == 0) * 0xf0000000;
}

// Rows have numbers of up to 20 bits, which do not fit into the first slots.
void CheckAgainstMap(HashOfKey hash_of, int64_t num_keys) {
  std::mt19937_64 random(1);
  std::vector<int64_t> free((1 << 20) - 1);
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int64_t>(i + 1);
  std::shuffle(free.begin(), free.end(), random);
  std::vector<PackedInfo> infos(1 << 20);
  RowIndex index(infos.data(), hash_of);
  std::unordered_map<int64_t, int64_t> map;
  for (int64_t i = 1; i <= num_keys; ++i) {
    const int64_t key = static_cast<int64_t>(random() % (2 * num_keys));
    const auto known = map.find(key);
    CHECK_EQ(index.Find(key, hash_of(key)), known == map.end() ? kNoRow : known->second);
    if (known == map.end()) {
      const int64_t row = free.back();
      free.pop_back();
      infos[row].key = key;
      index.Insert(row, hash_of(key));
      map[key] = row;
    } else if (i % 3 == 0) {
      index.Erase(known->second, hash_of(key));
      free.push_back(known->second);
      map.erase(known);
    }
  }

  CHECK_EQ(index.size(), static_cast<int64_t>(map.size()));
  for (int64_t key = 0; key < 2 * num_keys; ++key) {
    const auto known = map.find(key);
    CHECK_EQ(index.Find(key, hash_of(key)), known == map.end() ? kNoRow : known->second);
  }
  int64_t num_rows = 0;
  index.ForEach([&](int64_t row) {
    ++num_rows;
    CHECK_EQ(map.at(infos[row].key), row);
  });
  CHECK_EQ(num_rows, index.size());
}

TEST(AnIndexGrowsAndSplitsAndLosesNoKey) { CheckAgainstMap(Hash, 600000); }

TEST(AnIndexWithLongSearchesLosesNoKey) { CheckAgainstMap(CrowdedHash, 3000); }

// Keys of two buckets by turns.
uint64_t AlternateHash(int64_t key) {
  return (MixBits(key) & 0xffff) | (key % 2 == 0 ? 0 : 0x80000000);
}

TEST(ASearchEndsWhereKeysThatCameAndWentHavePassedAllBuckets) {
  // Given two buckets: the first is full, and a key of it is in the second
  std::vector<PackedInfo> infos(100);
  RowIndex index(infos.data(), AlternateHash);
  const auto insert = [&](int64_t key) {
    infos[key].key = key;
    index.Insert(key, AlternateHash(key));
  };
  for (int64_t key = 2; key <= 32; key += 2) insert(key);

  // When some keys of the first go, and the second is filled, so that a key of it is in the first
  for (int64_t key = 2; key <= 10; key += 2) index.Erase(key, AlternateHash(key));
  for (int64_t key = 1; key <= 29; key += 2) insert(key);

  // Then other keys are looked for once around
  CHECK_EQ(index.capacity(), 2 * IndexBucket::kSlots);
  for (int64_t key = 40; key < 100; ++key) CHECK_EQ(index.Find(key, AlternateHash(key)), kNoRow);
  for (int64_t key = 1; key <= 29; key += 2) CHECK_EQ(index.Find(key, AlternateHash(key)), key);
}

TEST(SmallIndexesWhoseKeysComeAndGoLoseNoKey) {
  for (int num_keys = 10; num_keys < 120; num_keys += 5) {
    std::mt19937_64 random(num_keys);
    std::vector<PackedInfo> infos(1000);
    RowIndex index(infos.data(), Hash);
    std::vector<int64_t> keys;
    for (int i = 0; i < 20000; ++i) {
      const int64_t key = static_cast<int64_t>(1 + random() % 999);
      const auto at = std::find(keys.begin(), keys.end(), key);
      CHECK_EQ(index.Find(key, Hash(key)), at == keys.end() ? kNoRow : key);
      if (at != keys.end() || static_cast<int>(keys.size()) >= num_keys) {
        const auto leaves = at != keys.end() ? at : keys.begin() + random() % keys.size();
        index.Erase(*leaves, Hash(*leaves));
        keys.erase(leaves);
      } else {
        infos[key].key = key;
        index.Insert(key, Hash(key));
        keys.push_back(key);
      }
    }
  }
}

TEST(ShardsGetUpToTwiceAsManyKeysAsOthersAndHalvesOfThemTheSame) {
  constexpr int64_t kKeys = 1 << 20;
  std::vector<int64_t> num_keys(HostShards::kNumShards);
  for (int64_t key = 0; key < kKeys; ++key) ++num_keys[HostShards::ShardIndex(Hash(key))];

  const auto [least, most] = std::minmax_element(num_keys.begin(), num_keys.end());
  CHECK_EQ(*most < 2.2 * *least && *most > 1.8 * *least, true);
  int64_t in_first_half = 0;
  for (int s = 0; s < HostShards::kNumShards / 2; ++s) in_first_half += num_keys[s];
  CHECK_EQ(in_first_half > 0.48 * kKeys && in_first_half < 0.52 * kKeys, true);
}

TEST(OldClocksKeepTheirPlaceAmongMarks) {
  // Given rows that are trained seldom, and followers that set their marks at other times.
  constexpr int64_t kRows = 500, kBatches = 5 * RowClocks::kRing;
  std::mt19937_64 random(2);
  RowClocks clocks;
  std::vector<uint16_t> codes(kRows, RowClocks::kNone);
  std::vector<int64_t> oracle(kRows, -1), marks = {0, 0, 0};
  const int64_t periods[] = {7, 20000, 150000};
  int64_t num_old = 0;

  for (int64_t batch = 1; batch <= kBatches; ++batch) {
    const int64_t now = clocks.BeginBatch(kRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) codes[row] = clocks.Freeze(codes[row]);
    });
    CHECK_EQ(now, batch);
    if (random() % 100 == 0) {
      const int64_t row = static_cast<int64_t>(random() % kRows);
      codes[row] = RowClocks::CodeInRing(now);
      oracle[row] = now;
    }
    for (size_t f = 0; f < marks.size(); ++f) {
      if (batch % periods[f] == 0) marks[f] = batch;
    }
    clocks.SetMarks(marks);
    if (batch % 1013 != 0) continue;

    // Then a row has changed since a mark if it was trained since.
    for (int64_t row = 0; row < kRows; ++row) {
      if (oracle[row] < 0) {
        CHECK_EQ(codes[row], RowClocks::kNone);
        continue;
      }
      const int64_t clock = clocks.ClockOf(codes[row]);
      for (const int64_t mark : marks) CHECK_EQ(clock >= mark, oracle[row] >= mark);
      if (batch - oracle[row] < RowClocks::kRing / 2) CHECK_EQ(clock, oracle[row]);
      num_old += batch - oracle[row] > RowClocks::kRing;
    }
  }
  CHECK_EQ(num_old > 10000, true);
}

TEST(AClockOfAFormerBatchIsKept) {
  RowClocks clocks;
  const auto nothing = [](int64_t, int64_t) {};
  while (clocks.now() < 2 * RowClocks::kRing) {
    if (clocks.now() == 70000) clocks.SetMarks({70000});
    clocks.BeginBatch(0, nothing);
  }

  const int64_t now = clocks.now();
  for (const int64_t clock : {now, now - 1000, now - RowClocks::kRing / 2}) {
    CHECK_EQ(clocks.ClockOf(clocks.CodeOf(clock)), clock);
  }
  CHECK_EQ(clocks.ClockOf(clocks.CodeOf(69999)), 69999);
  CHECK_EQ(clocks.ClockOf(clocks.CodeOf(5)), 69999);              // before the mark, as it was
  CHECK_EQ(clocks.ClockOf(clocks.CodeOf(70000)) >= 70000, true);  // and not before it
}

TEST(LargeCountsAndVersionsAreExact) {
  constexpr int64_t kRows = 200;
  std::vector<PackedInfo> packed(kRows);
  RowInfos infos(packed.data(), kRows);
  CHECK_OK(infos.Grow(kRows));
  infos.BeginBatch(kRows);
  const std::vector<int64_t> counts = {0, 1, 65534, 65535, 65536, kMaxCount};
  const std::vector<int64_t> versions = {
      -1, 0, 4294967293, 4294967294, 4294967295, 1764000000000000, INT64_MAX};

  for (int turn = 0; turn < 3; ++turn) {
    for (int64_t row = 1; row < kRows; ++row) {
      infos.Set(row, 1000 - row, counts[(row + turn) % counts.size()],
                versions[(row + 2 * turn) % versions.size()]);
    }
    for (int64_t row = 1; row < kRows; ++row) {
      const RowInfo info = infos.Info(row);
      CHECK_EQ(info.key, 1000 - row);
      CHECK_EQ(info.count, counts[(row + turn) % counts.size()]);
      CHECK_EQ(info.version, versions[(row + 2 * turn) % versions.size()]);
      CHECK_EQ(info.clock, 1);
    }
  }

  infos.SetNoKeys(3);
  CHECK_EQ(infos.IsKeys(3), false);
  CHECK_EQ(infos.IsKeys(0), false);
  CHECK_EQ(infos.Info(3).count, -1);
}

TEST(LargeCountsOfManyRowsAreExactWhileRowsGrow) {
  constexpr int64_t kRows = 60000, kFirst = kRows / 2, kFew = 100, kThreads = 3;
  WideCounts counts(kRows);
  CHECK_OK(counts.Grow(kFirst));
  const auto count_of = [](int64_t row) { return 70000 + row * row; };
  for (int64_t row = 0; row < kFew; ++row) counts.Set(row, count_of(row));
  CHECK_EQ(counts.bytes() < 64 * kFew, true);  // in a map

  std::atomic<int64_t> num_wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t row = t; row < kFirst; row += kThreads) {
        counts.Set(row, row);
        if (row % 5 == 0) counts.Erase(row);
        counts.Set(row, count_of(row));
        num_wrong += counts.Of(row) != count_of(row);
      }
    });
  }
  CHECK_OK(counts.Grow(kRows));
  for (std::thread& thread : threads) thread.join();
  for (int64_t row = kFirst; row < kRows; ++row) counts.Set(row, count_of(row));

  CHECK_EQ(num_wrong.load(), 0);
  CHECK_EQ(counts.bytes(), 8 * kRows);  // in an array
  for (int64_t row = 0; row < kRows; ++row) CHECK_EQ(counts.Of(row), count_of(row));
}

void Train(EmbeddingTable* table, std::vector<int64_t> keys) {
  const TableBatch batch(table);
  const KeysToLocate request = {table->host(), keys.data(), static_cast<int64_t>(keys.size()),
                                keys.data(), batch.number()};
  CHECK_OK(LocateRowsCpu(&request, 1, Access::kTrain, 7, SerialFor));
}

TEST(AKeyTakes24BytesBesideItsRowForAnyNumberOfKeys) {
  constexpr int64_t kDim = 8, kKeys = 1500000, kBatch = 50000;
  for (const bool has_filter : {false, true}) {
    TableOptions options;
    options.dim = kDim;
    if (has_filter) options.admission = {Admission::Kind::kCounter, 2};
    Status status;
    const auto table = MakeHostTable(options, nullptr, &status);
    CHECK_OK(status);
    for (int64_t first = 0; first < kKeys; first += kBatch) {
      std::vector<int64_t> keys(kBatch);
      for (int64_t i = 0; i < kBatch; ++i) {
        keys[i] = static_cast<int64_t>(static_cast<uint64_t>(first + i) * 0x9e3779b97f4a7c15);
      }
      for (int seen = 0; seen < (has_filter ? 2 : 1); ++seen) Train(table.get(), keys);
      const int64_t num_keys = table->num_keys();
      CHECK_EQ(num_keys, first + kBatch);
      const int64_t row_bytes = kDim * static_cast<int64_t>(sizeof(float));
      if (num_keys >= 200000) CHECK_EQ(table->memory_bytes() <= num_keys * (row_bytes + 24), true);
    }
  }
}

}  // namespace
}  // namespace group_embedding
