// A table larger than its memory, with threads that train it and read a snapshot at a time.
#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "table/disk/disk_tiered_table.h"
#include "threads.h"

namespace group_embedding {
namespace {

constexpr int32_t kDim = 3;
constexpr int64_t kThreads = 4, kRowsInMemory = 600, kKeys = 3000, kBatch = 100;

std::unique_ptr<EmbeddingTable> MakeTable() {
  TableOptions options;
  options.name = "user";
  options.dim = kDim;
  options.max_bytes = kRowsInMemory * (sizeof(PackedInfo) + kDim * sizeof(float));
  Status status;
  auto table = MakeDiskTieredTable(options, DiskTierOptions(), nullptr, &status);
  CHECK_OK(status);
  return table;
}

// Adds 1 to the rows of some keys of thread `t`, which no other thread has.
void TrainOnce(EmbeddingTable* table, int64_t t, std::mt19937_64* random) {
  std::vector<int64_t> keys(kBatch), rows(kBatch);
  for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % kKeys) * kThreads + t;
  const int64_t batch = table->BeginBatch();
  const KeysToLocate request = {table->host(), keys.data(), kBatch, rows.data(), batch};
  CHECK_OK(LocateRowsCpu(&request, 1, Access::kTrain, 1, SerialFor));
  table->BeforeWrite(rows.data(), kBatch);
  float* values = static_cast<float*>(const_cast<void*>(table->rows().rows));
  for (const int64_t row : rows) values[row * kDim + 1] += 1;
  table->EndBatch(batch);
}

// {key: (how often it was trained, what its row has)}
std::map<int64_t, std::pair<int64_t, float>> ReadAll(Snapshot* snapshot) {
  KeyedRows rows;
  for (int64_t row = 0; row < snapshot->num_rows(); row += 50) snapshot->Read(row, row + 50, &rows);
  CHECK_OK(snapshot->status());
  std::map<int64_t, std::pair<int64_t, float>> content;
  const float* values = reinterpret_cast<const float*>(rows.values.data());
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    content[rows.keys[i]] = {rows.counts[i], values[i * kDim + 1]};
  }
  CHECK_EQ(content.size(), rows.keys.size());
  return content;
}

TEST(ThreadsTrainMoreRowsThanFitTheMemory) {
  const auto table = MakeTable();
  std::mt19937_64 random(1);
  for (int i = 0; i < 20; ++i) TrainOnce(table.get(), i % kThreads, &random);
  const auto before = ReadAll(table->TakeSnapshot(/*changes_only=*/false).get());
  auto snapshot = table->TakeSnapshot(/*changes_only=*/false);
  std::map<int64_t, std::pair<int64_t, float>> during;

  testing::ThreadedFor(kThreads + 1)(kThreads + 1, 0, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (t == kThreads) during = ReadAll(snapshot.get());
      std::mt19937_64 random(2 + t);
      for (int i = 0; t < kThreads && i < 30; ++i) TrainOnce(table.get(), t, &random);
    }
  });

  CHECK_EQ(during == before, true);
  snapshot.reset();
  const auto after = ReadAll(table->TakeSnapshot(/*changes_only=*/false).get());
  CHECK_EQ(static_cast<int64_t>(after.size()), table->num_keys());
  CHECK_TRUE(table->num_keys() > 3 * kRowsInMemory);
  for (const auto& [key, row] : after) CHECK_EQ(static_cast<float>(row.first), row.second);
}

}  // namespace
}  // namespace group_embedding
