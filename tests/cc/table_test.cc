// Tables found by key: the index under growth and erasure, and threads that read, train, write and
// take snapshots of one table at a time.
#include <algorithm>
#include <cstring>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check.h"
#include "table/host/host_table.h"
#include "table/host/key_index.h"
#include "table/host/row_store.h"
#include "table/large_page_blocks.h"
#include "threads.h"

namespace group_embedding {
namespace {

// Few different homes, so that probes are long and clusters wrap around the end.
uint64_t CrowdedHash(int64_t key) {
  return MixBits(key) | ~uint64_t{0xffff} | (key % 7 == 0) * 0xfff0;
}
uint64_t Hash(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }

void CheckAgainstMap(uint64_t (*hash_of)(int64_t), int64_t num_keys, float max_load) {
  std::mt19937_64 random(1);
  KeyIndex index(max_load);
  std::unordered_map<int64_t, int64_t> map;
  for (int64_t i = 1; i <= num_keys; ++i) {
    const int64_t key = static_cast<int64_t>(random() % (2 * num_keys));
    KeyIndex::Entry* entry = index.Find(key, hash_of(key));
    CHECK_EQ(entry != nullptr, map.count(key) == 1);
    if (entry != nullptr && i % 3 == 0) {
      index.Erase(entry, hash_of);
      map.erase(key);
    } else {
      index.FindOrInsert(key, hash_of(key), hash_of)->state = i;
      map[key] = i;
    }
  }

  CHECK_EQ(index.size(), static_cast<int64_t>(map.size()));
  for (const auto& [key, state] : map) {
    const KeyIndex::Entry* entry = index.Find(key, hash_of(key));
    CHECK_EQ(entry == nullptr ? 0 : entry->state, state);
  }
}

TEST(IndexGrowsAndSplitsAndLosesNoKey) { CheckAgainstMap(Hash, 600000, 0.7f); }

TEST(IndexWithLongProbesLosesNoKey) { CheckAgainstMap(CrowdedHash, 3000, 0.7f); }

TEST(AFullStoreGivesAllItsRowsAndSaysHowManyTheyAre) {
  TableOptions options;
  options.name = "user";
  options.dim = 4;
  options.max_bytes = 10 * (4 * sizeof(float) + sizeof(PackedInfo));
  Status status;
  RowStore store(options, nullptr, &status);
  CHECK_OK(status);
  std::vector<int64_t> rows;

  CHECK_CONTAINS(store.Take(64, &rows), "table 'user' is full at 10 rows");

  CHECK_EQ(rows.size(), size_t{10});
}

TEST(ThreadsReadTrainWriteAndSaveAtATime) {
  TableOptions options;
  options.dim = 4;
  options.initial = {Distribution::kUniform, 0, 1, 1, 0};
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  const ParallelFor threads = testing::ThreadedFor(4);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * i % 7001);
  std::vector<int64_t> rows(keys.size());
  auto locate = [&](Access access, std::vector<int64_t>* to) {
    const KeysToLocate request = {table->host(), keys.data(), static_cast<int64_t>(keys.size()),
                                  to->data()};
    CHECK_OK(LocateRowsCpu(&request, 1, access, 1, SerialFor));
  };
  locate(Access::kTrain, &rows);
  const auto snapshot = table->TakeSnapshot(/*changes_only=*/false);
  KeyedRows saved;
  std::vector<std::vector<int64_t>> found(4, rows);

  threads(4, 1000000, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (t == 0) {
        for (int64_t row = 0; row < snapshot->num_rows(); row += 100) {
          snapshot->Read(row, row + 100, &saved);
        }
      } else if (t == 1) {
        table->BeforeWrite(rows.data(), static_cast<int64_t>(rows.size()));
        float* values = static_cast<float*>(const_cast<void*>(table->rows().rows));
        for (const int64_t row : rows) values[row * 4] = -1;
      } else {
        locate(t == 2 ? Access::kTrain : Access::kRead, &found[t]);
      }
    }
  });

  for (const auto& again : found) CHECK_EQ(again == rows, true);
  CHECK_EQ(static_cast<int64_t>(saved.keys.size()), table->num_keys());
  for (size_t i = 0; i < saved.keys.size(); ++i) {
    float values[4];
    std::memcpy(values, saved.values.data() + i * sizeof(values), sizeof(values));
    for (int j = 0; j < 4; ++j) {
      CHECK_EQ(values[j], InitialValue(options.initial, saved.keys[i], j));
    }
  }
}

TEST(ThreadsCountInABloomFilterThatIsSaved) {
  TableOptions options;
  options.dim = 4;
  options.admission = {Admission::Kind::kBloom, 100, 3001, 3, 2};
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  auto train = [&](int64_t first) {
    std::vector<int64_t> keys(2000), rows(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = first + static_cast<int64_t>(i);
    const KeysToLocate request = {table->host(), keys.data(), static_cast<int64_t>(keys.size()),
                                  rows.data()};
    CHECK_OK(LocateRowsCpu(&request, 1, Access::kTrain, 1, SerialFor));
  };
  train(0);
  const std::vector<char> expected = table->TakeSnapshot(false)->admission().counters;
  const auto snapshot = table->TakeSnapshot(/*changes_only=*/false);
  std::vector<char> saved;

  testing::ThreadedFor(4)(4, 1000000, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (t > 0) train(1000 * t);
      if (t == 0) saved = snapshot->admission().counters;
    }
  });

  CHECK_EQ(saved == expected, true);
}

TEST(ThreadsReadRowsWhileOthersTrain) {
  constexpr int kDim = 64;
  constexpr int64_t kNumKeys = 40000;  // 10 MB of rows: written past the cache
  TableOptions options;
  options.dim = kDim;
  options.initial = {Distribution::kUniform, 0, 1, 1, 0};
  options.no_row_value = -1;
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  std::vector<int64_t> keys(kNumKeys), others(kNumKeys), rows(kNumKeys);
  for (int64_t i = 0; i < kNumKeys; ++i) keys[i] = i * i % 7001, others[i] = 10000 + i;
  auto train = [&](const std::vector<int64_t>& some) {
    const KeysToLocate request = {table->host(), some.data(), kNumKeys, rows.data()};
    CHECK_OK(LocateRowsCpu(&request, 1, Access::kTrain, 1, SerialFor));
  };
  train(keys);
  keys[kNumKeys - 1] = -5;
  std::vector<std::vector<float>> read(3, std::vector<float>(kNumKeys * kDim));
  const ParallelFor threads = testing::ThreadedFor(4);

  threads(4, 1000000, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (t == 0) {
        train(others);
      } else {
        CHECK_OK(table->host()->ReadRows(keys.data(), kNumKeys, read[t - 1].data(), threads));
      }
    }
  });

  for (const auto& values : read) {
    for (int64_t i = 0; i < kNumKeys * kDim; ++i) {
      const int64_t key = keys[i / kDim];
      CHECK_EQ(values[i], key == -5 ? -1 : InitialValue(options.initial, key, i % kDim));
    }
  }
}

TEST(ThreadsHaveBlocksOfLargePagesToThemselves) {
  LargePageBlocks blocks;
  testing::ThreadedFor(4)(4, 1000000, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::mt19937_64 random(t);
      std::vector<std::pair<char*, int64_t>> mine;
      for (int i = 0; i < 300; ++i) {
        if (random() % 2 == 0 || mine.empty()) {
          const int64_t bytes = LargePageBlocks::kLeastBytes << random() % 5;
          mine.push_back({blocks.Take(bytes), bytes});
          std::memset(mine.back().first, static_cast<int>(bytes >> 16 | t << 6), bytes);
        } else {
          std::swap(mine[random() % mine.size()], mine.back());
          const auto [block, size] = mine.back();
          const char mark = static_cast<char>(size >> 16 | t << 6);
          CHECK_EQ(std::all_of(block, block + size, [&](char c) { return c == mark; }), true);
          blocks.Return(block, size);
          mine.pop_back();
        }
      }
      for (const auto& [block, size] : mine) blocks.Return(block, size);
    }
  });
  // All halves are one again, so that a page has gone back whole.
  char* half = blocks.Take(kLargePage / 2);
  char* other = blocks.Take(kLargePage / 2);
  CHECK_EQ(other - half, kLargePage / 2);
  blocks.Return(half, kLargePage / 2);
  blocks.Return(other, kLargePage / 2);
}

TEST(ThreadsInsertWhatNeedsNewLargePages) {
  constexpr int64_t kNumKeys = 300000, kDim = 8;
  TableOptions options;
  options.dim = kDim;
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  std::vector<int64_t> keys(kNumKeys);
  std::vector<float> values(kNumKeys * kDim);
  for (int64_t i = 0; i < kNumKeys; ++i) keys[i] = i * 7919;
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  KeyedRowsView given;
  given.num_keys = kNumKeys;
  given.keys = keys.data();
  given.values = reinterpret_cast<const char*>(values.data());

  CHECK_OK(table->Insert(given, testing::ThreadedFor(4)));

  CHECK_EQ(table->num_keys(), kNumKeys);
  std::vector<float> read(values.size());
  CHECK_OK(table->host()->ReadRows(keys.data(), kNumKeys, read.data(), testing::ThreadedFor(4)));
  CHECK_EQ(read == values, true);
}

TEST(ThreadsInsertTheLastRowOfEachKey) {
  TableOptions options;
  options.dim = 2;
  Status status;
  const auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  KeyedRows given;
  std::vector<float> values;
  std::unordered_map<int64_t, float> last;
  for (int64_t i = 0; i < 40000; ++i) {  // more than one part, and keys that repeat in another
    const int64_t key = i * i % 30011;
    const float value = last[key] = static_cast<float>(i);
    given.keys.push_back(key);
    values.insert(values.end(), 2, value);
  }
  const char* bytes = reinterpret_cast<const char*>(values.data());
  given.values.assign(bytes, bytes + values.size() * sizeof(float));

  CHECK_OK(table->Insert(given, testing::ThreadedFor(4)));

  CHECK_EQ(table->num_keys(), static_cast<int64_t>(last.size()));
  const float* rows = static_cast<const float*>(table->rows().rows);
  for (const auto& [key, value] : last) {
    int64_t row;
    table->Find(&key, 1, &row);
    CHECK_EQ(rows[2 * row], value);
    CHECK_EQ(rows[2 * row + 1], value);
    CHECK_EQ(table->Info(row).key, key);
  }
}

}  // namespace
}  // namespace group_embedding
