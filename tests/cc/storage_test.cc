// The contract of a keyed table (table/embedding_table.h), of every storage that needs no GPU and
// of a plain table of the tests' own. All see a table through its interface alone.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "map_table.h"
#include "table/disk/disk_tiered_table.h"
#include "table/file/restore_table.h"
#include "table/file/save_table.h"
#include "table/host/host_table.h"
#include "threads.h"

namespace group_embedding {
namespace {

constexpr int32_t kDim = 4;
constexpr int64_t kMatrixRows = 8, kRowsInMemory = 16;

struct Storage {
  std::string name;
  std::function<std::unique_ptr<EmbeddingTable>(TableOptions, const float* matrix)> make;
};

std::unique_ptr<EmbeddingTable> Checked(std::unique_ptr<EmbeddingTable> table,
                                        const Status& status) {
  CHECK_OK(status);
  return table;
}

const std::vector<Storage>& Storages() {
  static const std::vector<Storage> storages = {
      {"host memory",
       [](const TableOptions& options, const float* matrix) {
         Status status;
         auto table = MakeHostTable(options, matrix, &status);
         return Checked(std::move(table), status);
       }},
      {"disk",
       [](TableOptions options, const float* matrix) {
         const int64_t row_bytes = sizeof(PackedInfo) + 2 * kDim * sizeof(float);
         if (options.max_bytes == 0) options.max_bytes = kRowsInMemory * row_bytes;
         Status status;
         auto table = MakeDiskTieredTable(options, DiskTierOptions(), matrix, &status);
         return Checked(std::move(table), status);
       }},
      {"map",
       [](const TableOptions& options, const float* matrix) {
         const int64_t max_keys = options.max_bytes == 0 ? 100000 : 10;
         return std::make_unique<testing::MapTable>(options, matrix, max_keys);
       }},
  };
  return storages;
}

// Element j of the row that a key starts as.
float StartOf(int64_t key, int32_t j) {
  return static_cast<float>(MatrixRow(key, kMatrixRows) * kDim + j);
}

std::unique_ptr<EmbeddingTable> Make(const Storage& storage, TableOptions options = {}) {
  std::vector<float> matrix(kMatrixRows * kDim);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i);
  options.name = "user";
  options.dim = kDim;
  options.initial = {Distribution::kMatrix, 0, 0, 0, kMatrixRows};
  return storage.make(options, matrix.data());
}

// Locates keys for the time of a body(rows), which may use them.
template <typename Body>
void WithRows(EmbeddingTable* table, std::vector<int64_t> keys, Access access, int64_t step,
              const Body& body) {
  const TableBatch batch(table);
  const KeysToLocate request = {table->host(), keys.data(), static_cast<int64_t>(keys.size()),
                                keys.data(), batch.number()};
  CHECK_OK(LocateRowsCpu(&request, 1, access, step, SerialFor));
  body(keys);
}

float* RowOf(EmbeddingTable* table, int64_t row) {
  return static_cast<float*>(const_cast<void*>(table->rows().rows)) + row * kDim;
}

void Train(EmbeddingTable* table, const std::vector<int64_t>& keys, int64_t step = -1) {
  WithRows(table, keys, Access::kTrain, step, [](const auto&) {});
}

// Writes a number into each column of each key's row.
void Write(EmbeddingTable* table, const std::vector<int64_t>& keys, float value) {
  WithRows(table, keys, Access::kRead, -1, [&](const std::vector<int64_t>& rows) {
    table->BeforeWrite(rows.data(), static_cast<int64_t>(rows.size()));
    for (const int64_t row : rows) std::fill_n(RowOf(table, row), kDim, value);
  });
}

// The last column of each key's row.
std::vector<float> Read(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<float> values(keys.size() * kDim), last;
  CHECK_OK(table->host()->ReadRows(keys.data(), static_cast<int64_t>(keys.size()), values.data(),
                                   SerialFor));
  for (size_t i = kDim - 1; i < values.size(); i += kDim) last.push_back(values[i]);
  return last;
}

std::vector<int64_t> CountsOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<KeyInfo> infos(keys.size());
  CHECK_OK(table->Describe(keys.data(), static_cast<int64_t>(keys.size()), infos.data()));
  std::vector<int64_t> counts;
  for (const KeyInfo& info : infos) counts.push_back(info.tier == kNoTier ? -1 : info.count);
  return counts;
}

// Trains other keys, so that a disk tier takes the rows of those before.
void CrowdOut(EmbeddingTable* table) {
  for (int64_t key = 1000; key < 1000 + 2 * kRowsInMemory; ++key) Train(table, {key});
}

std::vector<float> Floats(std::initializer_list<float> values) { return values; }
std::vector<int64_t> Keys(std::initializer_list<int64_t> keys) { return keys; }

// A test of every storage, whose name a failure says.
#define STORAGE_TEST(Name)                                          \
  static void Name##_of(const Storage& storage);                    \
  TEST(Name) {                                                      \
    for (const Storage& storage : Storages()) {                     \
      try {                                                         \
        Name##_of(storage);                                         \
      } catch (const std::exception& error) {                       \
        throw testing::Failure(storage.name + ": " + error.what()); \
      }                                                             \
    }                                                               \
  }                                                                 \
  static void Name##_of(const Storage& storage)

STORAGE_TEST(AKeyKeepsTheRowThatItsFirstTrainingMade) {
  const auto table = Make(storage);
  const std::vector<int64_t> keys = {0, -1, INT64_MIN, INT64_MAX, 5};

  Train(table.get(), keys, 3);
  CrowdOut(table.get());

  WithRows(table.get(), keys, Access::kTrain, 4, [&](const std::vector<int64_t>& rows) {
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK_TRUE(rows[i] >= table->first_row());
      CHECK_EQ(table->Info(rows[i]).key, keys[i]);
      for (int32_t j = 0; j < kDim; ++j)
        CHECK_EQ(RowOf(table.get(), rows[i])[j], StartOf(keys[i], j));
    }
  });
  CHECK_EQ(CountsOf(table.get(), keys), Keys({2, 2, 2, 2, 2}));
}

STORAGE_TEST(ReadingGivesNoRow) {
  const auto table = Make(storage);

  CHECK_EQ(Read(table.get(), {5, -1}), Floats({StartOf(5, 3), StartOf(-1, 3)}));

  CHECK_EQ(table->num_keys(), 0);
  CHECK_EQ(CountsOf(table.get(), {5, -1}), Keys({-1, -1}));
}

STORAGE_TEST(RepeatedKeysShareARowAndAreCountedEach) {
  const auto table = Make(storage);

  WithRows(table.get(), {5, 7, 5, 5}, Access::kTrain, 9, [&](const std::vector<int64_t>& rows) {
    CHECK_EQ(rows[0] == rows[2] && rows[2] == rows[3] && rows[1] != rows[0], true);
  });
  CrowdOut(table.get());

  CHECK_EQ(CountsOf(table.get(), {5, 7}), Keys({3, 1}));
}

STORAGE_TEST(WrittenRowsAreRead) {
  const auto table = Make(storage);
  Train(table.get(), {1, 2, 3});

  Write(table.get(), {1, 3}, 77);
  CrowdOut(table.get());

  CHECK_EQ(Read(table.get(), {3, 2, 1}), Floats({77, StartOf(2, 3), 77}));
}

STORAGE_TEST(AFilterAdmitsKeysOnceTheyWereSeenOftenEnough) {
  TableOptions options;
  options.admission = {Admission::Kind::kCounter, 3, 0, 0, 8};
  options.no_row_value = -5;
  const auto table = Make(storage, options);

  Train(table.get(), {8, 9, 8});
  CHECK_EQ(Read(table.get(), {8, 9}), Floats({-5, -5}));
  Train(table.get(), {8});

  CHECK_EQ(Read(table.get(), {8, 9}), Floats({StartOf(8, 3), -5}));
  CHECK_EQ(CountsOf(table.get(), {8, 9})[0], 3);
}

STORAGE_TEST(AnErasedKeyStartsAnewAndItsRowInheritsNothing) {
  const auto table = Make(storage);
  void* slot = nullptr;
  CHECK_OK(table->Slot({"accumulator", kDim, DataType::kFloat32, 0.5f}, &slot));
  int64_t row = kNoRow;
  WithRows(table.get(), {1}, Access::kTrain, 5, [&](const std::vector<int64_t>& rows) {
    row = rows[0];
    std::fill_n(RowOf(table.get(), row), kDim, 77.0f);
    std::fill_n(static_cast<float*>(slot) + row * kDim, kDim, 99.0f);
  });
  const std::vector<int64_t> erased = {1, 2};

  CHECK_EQ(table->Erase(erased.data(), 2), 1);

  WithRows(table.get(), {9}, Access::kTrain, 6, [&](const std::vector<int64_t>& rows) {
    CHECK_EQ(rows[0], row);
    CHECK_EQ(RowOf(table.get(), row)[3], StartOf(9, 3));
    CHECK_EQ(static_cast<float*>(slot)[row * kDim], 0.5f);
  });
  CHECK_EQ(Read(table.get(), {1}), Floats({StartOf(1, 3)}));
}

STORAGE_TEST(RowsOfABatchInFlightAreNotGivenAway) {
  const auto table = Make(storage);
  const int64_t key = 1;
  WithRows(table.get(), {key}, Access::kTrain, -1, [&](const std::vector<int64_t>& first) {
    table->Erase(&key, 1);
    WithRows(table.get(), {2}, Access::kTrain, -1,
             [&](const std::vector<int64_t>& second) { CHECK_TRUE(second[0] != first[0]); });
  });
}

STORAGE_TEST(EvictionsTakeOldAndSmallRows) {
  const auto table = Make(storage);
  Train(table.get(), {1, 2, 3}, 1);
  Train(table.get(), {2}, 5);
  Write(table.get(), {2, 1}, 1);
  Write(table.get(), {3}, 0.1f);

  CHECK_EQ(table->Evict({Eviction::Kind::kL2Weight, 0, 0.1f}, -1), 1);
  CHECK_EQ(table->Evict({Eviction::Kind::kGlobalStep, 3, 0}, 5), 1);

  CHECK_EQ(CountsOf(table.get(), {1, 2, 3}), Keys({-1, 2, -1}));
}

STORAGE_TEST(AFullTableSaysSoAndStaysUsable) {
  if (storage.name == "disk") return;  // rows that do not fit go to the disk
  TableOptions options;
  options.max_bytes = 10 * (kDim * sizeof(float) + sizeof(PackedInfo));
  const auto table = Make(storage, options);
  std::vector<int64_t> keys = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, more = {20};
  Train(table.get(), keys);

  const KeysToLocate request = {table->host(), more.data(), 1, more.data()};
  CHECK_CONTAINS(LocateRowsCpu(&request, 1, Access::kTrain, -1, SerialFor), "'user' is full");

  CHECK_EQ(table->num_keys(), 10);
  CHECK_EQ(table->Erase(keys.data(), 1), 1);
  Train(table.get(), {20});
  CHECK_EQ(Read(table.get(), {20}), Floats({StartOf(20, 3)}));
}

STORAGE_TEST(ASavedTableIsRestoredByEveryStorage) {
  const auto table = Make(storage);
  void* slot = nullptr;
  CHECK_OK(table->Slot({"accumulator", kDim, DataType::kFloat32, 0.5f}, &slot));
  Train(table.get(), {1, 2, 2, -3}, 7);
  Write(table.get(), {2}, 22);
  CrowdOut(table.get());
  const std::string path = "/tmp/storage_test." + std::to_string(getpid()) + ".rows";
  const auto snapshot = table->TakeSnapshot(/*changes_only=*/false);
  FileSum sum;
  CHECK_OK(WriteTable(HeaderOf(*table), snapshot.get(), path, LocalFiles(), &sum));

  for (const Storage& other : Storages()) {
    const auto restored = Make(other);
    CHECK_OK(restored->Slot({"accumulator", kDim, DataType::kFloat32, 0.5f}, &slot));
    Train(restored.get(), {44});
    SavedTable saved;
    saved.paths = {path};
    CHECK_OK(RestoreTable(saved, RestoreOptions(), restored.get()));

    CHECK_EQ(restored->num_keys(), table->num_keys());
    CHECK_EQ(CountsOf(restored.get(), {1, 2, -3, 44}), Keys({1, 2, 1, -1}));
    CHECK_EQ(Read(restored.get(), {2, -3}), Floats({22, StartOf(-3, 3)}));
  }
  unlink(path.c_str());
}

STORAGE_TEST(ATableTakesKeysOfTypesThatItsOwnHas) {
  constexpr KeyType kTypes[] = {KeyType::kUnknown, KeyType::kInt32, KeyType::kInt64,
                                KeyType::kUint32, KeyType::kUint64};
  const std::map<KeyType, std::vector<KeyType>> takes = {
      {KeyType::kInt32, {KeyType::kUnknown, KeyType::kInt32}},
      {KeyType::kInt64, {KeyType::kUnknown, KeyType::kInt32, KeyType::kInt64, KeyType::kUint32}},
      {KeyType::kUint32, {KeyType::kUnknown, KeyType::kUint32}},
      {KeyType::kUint64, {KeyType::kUnknown, KeyType::kUint32, KeyType::kUint64}}};
  const auto table = Make(storage);
  Train(table.get(), {1, 2});
  SavedTable saved;
  saved.paths = {"/tmp/storage_test." + std::to_string(getpid()) + ".keys"};
  for (const KeyType of_file : kTypes) {
    const auto snapshot = table->TakeSnapshot(/*changes_only=*/false);
    TableFileHeader header = HeaderOf(*table);
    header.key_type = of_file;
    FileSum sum;
    CHECK_OK(WriteTable(header, snapshot.get(), saved.paths[0], LocalFiles(), &sum));
    for (const auto& [of_table, taken] : takes) {
      TableOptions options;
      options.key_type = of_table;
      const auto restored = Make(storage, options);
      const Status status = RestoreTable(saved, RestoreOptions(), restored.get());
      const bool is_taken = std::find(taken.begin(), taken.end(), of_file) != taken.end();
      CHECK_EQ(status.ok(), is_taken);
      CHECK_EQ(restored->num_keys(), is_taken ? 2 : 0);
    }
  }
  unlink(saved.paths[0].c_str());
}

TEST(OneCallLocatesInTablesOfAllStorages) {
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (int i = 0; i < 2; ++i) {
    for (const Storage& storage : Storages()) tables.push_back(Make(storage));
  }
  std::vector<std::vector<int64_t>> keys, rows;
  std::vector<int64_t> batches;
  std::vector<KeysToLocate> requests;
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto first = static_cast<int64_t>(t);
    for (const auto& of : {Keys({first, 3, first}), Keys({3})}) keys.push_back(of);
    batches.push_back(tables[t]->BeginBatch());
  }
  rows = keys;
  for (size_t r = 0; r < keys.size(); ++r) {
    requests.push_back({tables[r / 2]->host(), keys[r].data(), static_cast<int64_t>(keys[r].size()),
                        rows[r].data(), batches[r / 2]});
  }

  const ParallelFor threads = testing::ThreadedFor(3);
  CHECK_OK(LocateRowsCpu(requests.data(), static_cast<int64_t>(requests.size()), Access::kTrain, 1,
                         threads));

  for (size_t r = 0; r < keys.size(); ++r) {
    EmbeddingTable* table = tables[r / 2].get();
    for (size_t i = 0; i < keys[r].size(); ++i) {
      CHECK_EQ(table->Info(rows[r][i]).key, keys[r][i]);
      CHECK_EQ(RowOf(table, rows[r][i])[1], StartOf(keys[r][i], 1));
    }
    CHECK_EQ(CountsOf(table, {3})[0], r / 2 == 3 ? 4 : 2);
  }
  for (size_t t = 0; t < tables.size(); ++t) tables[t]->EndBatch(batches[t]);
}

TEST(ThreadsLocateAtATime) {
  for (const Storage& storage : Storages()) {
    const auto table = Make(storage);
    testing::ThreadedFor(4)(4, 1000000, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < 200; ++i) {
          const std::vector<int64_t> keys = {i % 40, (i + t) % 40};
          WithRows(table.get(), keys, i % 2 ? Access::kTrain : Access::kRead, i,
                   [&](const auto&) {});
        }
      }
    });

    int64_t sum = 0;
    for (int64_t key = 0; key < 40; ++key)
      sum += std::max<int64_t>(CountsOf(table.get(), {key})[0], 0);
    CHECK_EQ(sum, 4 * 100 * 2);
  }
}

}  // namespace
}  // namespace group_embedding
