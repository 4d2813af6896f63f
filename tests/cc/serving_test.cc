// Tables of served models: readers while versions change, and rows in other formats.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "core/quantized_rows.h"
#include "core/row_format.h"
#include "fused/stored_lookup.h"
#include "served_case.h"
#include "serving/session/options.h"
#include "serving/session/two_slots.h"
#include "serving/table/pace.h"
#include "table/large_pages.h"

namespace group_embedding {
namespace {

// A reader of a key that is not there may probe the cell that another key takes meanwhile.
TEST(AKeyThatIsNotThereHasNoRowWhileOthersCome) {
  for (int round = 0; round < 30; ++round) {
    ServedIndex index(4000);
    std::atomic<bool> stop{false};
    std::atomic<int64_t> num_wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t key = t; !stop; ++key) {
          const int64_t absent = -1 - key % 5000;
          num_wrong += index.Find(absent, ServedIndex::HashOf(absent)) != ServedIndex::kNone;
        }
      });
    }
    for (int64_t key = 0; key < 4000; ++key) index.Set(key, key + 1);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(num_wrong.load(), 0);
  }
}

TEST(AnIndexAgreesWithAMapWhileItGrowsAndForgets) {
  ServedIndex index(0);
  std::map<int64_t, int64_t> map;
  std::mt19937_64 random(3);
  for (int64_t i = 0; i < 200'000; ++i) {
    const int64_t key = static_cast<int64_t>(random() % 60'000) - 30'000;
    const auto found = map.find(key);
    const int64_t expected = found == map.end() ? ServedIndex::kNone : found->second;
    CHECK_EQ(index.Find(key, ServedIndex::HashOf(key)), expected);
    if (i % 3 == 0) {
      CHECK_EQ(index.Erase(key), expected);
      map.erase(key);
    } else {
      CHECK_EQ(index.Set(key, i), expected);
      map[key] = i;
    }
    if (i % 1000 == 0) index.DropFormerParts();
    CHECK_EQ(index.size(), static_cast<int64_t>(map.size()));
  }
}

// Applies `num_versions` versions to tables of each kind while threads read all their keys, and
// checks that each reads rows of one version, that of its slot. Every tenth version is taken back
// first.
void ReadWhileVersionsChange(int64_t num_keys, int num_versions) {
  const std::vector<int64_t> keys = Numbers(num_keys);
  LargePageArena small_tables;
  std::unique_ptr<ServedTable> tables[] = {MakeTable(true, 0), MakeTable(false, num_keys),
                                           MakeTable(false, num_keys, &small_tables)};
  constexpr int kNumTables = 3;
  const std::vector<float> first(num_keys * kDim, 1.0f);
  const char* values = reinterpret_cast<const char*>(first.data());
  CHECK_OK(tables[0]->Load(keys.data(), num_keys, values, false));
  for (int t = 1; t < kNumTables; ++t) tables[t]->LoadAll(values);
  std::unique_ptr<Overlay> overlays[kNumTables][kNumSlots];
  float versions[kNumSlots] = {1, 1};
  TwoSlots slots;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> num_reads{0}, num_mixed{0};

  auto read = [&] {
    std::vector<int64_t> rows(num_keys);
    while (!stop || num_reads < 20) {
      const TwoSlots::Pin pin(&slots);
      for (int t = 0; t < kNumTables; ++t) {
        tables[t]->Locate(overlays[t][pin.slot()].get(), keys.data(), num_keys, rows.data());
        for (int64_t i = 0; i < num_keys; ++i) {
          // Key 7 is erased in every version, and reads the constant of keys without a row.
          const float expected =
              t == 0 && i == 7 && versions[pin.slot()] > 1 ? 0.0f : versions[pin.slot()];
          for (int j = 0; j < kDim; ++j) num_mixed += ValueAt(*tables[t], rows[i], j) != expected;
        }
      }
      ++num_reads;
    }
  };
  auto write = [&](float version) {
    const int current = slots.current(), next = 1 - current;
    slots.WaitUntilFree(next);
    for (int t = 0; t < kNumTables; ++t) {
      std::unique_ptr<Overlay>& overlay = overlays[t][next];
      tables[t]->Drop(std::move(overlay));
      tables[t]->Merge(overlays[t][current].get());
      RowChanges changes = AllRows(keys, version);
      if (t == 0) {
        changes.keys[7] = 1'000'000 + static_cast<int64_t>(version);  // a new key in its place
        changes.erased = {7, 1'000'000 + static_cast<int64_t>(version) - 5};
      }
      CHECK_OK(tables[t]->Stage(changes, &overlay));
    }
    versions[next] = version;
    slots.Switch(next);
  };

  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(read);
  for (int v = 2; v <= num_versions; ++v) {
    write(static_cast<float>(v));
    if (v % 10 > 0) continue;
    slots.WaitUntilFree(1 - slots.current());
    slots.Switch(1 - slots.current());
    write(static_cast<float>(v));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(num_mixed.load(), int64_t{0});
  CHECK_TRUE(num_reads >= 20);
  // Rows of earlier versions are used again: the base, the current overlay and the next one.
  for (int t = 1; t < kNumTables; ++t) {
    CHECK_TRUE(tables[t]->bytes() <= 3 * num_keys * kDim * 4);
  }
}

TEST(SmallTablesShareLargePages) {
  // Given three tables by row number of 160 KB
  constexpr int64_t kRows = 10'000;
  LargePageArena small_tables;
  std::vector<std::unique_ptr<ServedTable>> tables;
  std::vector<const char*> begins;
  for (int t = 0; t < 3; ++t) {
    tables.push_back(MakeTable(false, kRows, &small_tables));
    const std::vector<float> values(kRows * kDim, static_cast<float>(t));
    tables[t]->LoadAll(reinterpret_cast<const char*>(values.data()));
    // When the rows of their ends, and row numbers outside, are located
    const int64_t numbers[] = {0, kRows - 1, -3, kRows};
    int64_t rows[4];
    CHECK_EQ(tables[t]->Locate(nullptr, numbers, 4, rows), int64_t{0});
    // Then they have the values of their table, and others are no rows
    for (int i = 0; i < 2; ++i) CHECK_EQ(ValueAt(*tables[t], rows[i], 0), static_cast<float>(t));
    CHECK_EQ(rows[2], int64_t{-1});
    CHECK_TRUE(rows[3] > int64_t{1} << 48);
    begins.push_back(tables[t]->rows() + rows[0] * tables[t]->row_bytes());
  }
  // And all lie in one large page
  const auto [least, most] = std::minmax_element(begins.begin(), begins.end());
  CHECK_TRUE(*most - *least < kLargePage);
}

// Quantised rows begin with their scale, which a lookup reads before it knows whether an id is a
// row.
TEST(AnIdThatIsNoRowIsToldInEveryFormat) {
  LargePageArena arena;
  for (const auto& [word, format] : RowFormatWords()) {
    for (const int64_t max_rows : {0, 3}) {
      for (LargePageArena* small_tables : {static_cast<LargePageArena*>(nullptr), &arena}) {
        // Given a table by row number, empty or not, and an id that is none of its rows
        ServedTableOptions options;
        options.keyed = false;
        options.dim = kDim;
        options.format = format;
        options.max_rows = max_rows;
        options.small_tables = small_tables;
        Status status;
        const ServedTable served(options, nullptr, &status);
        CHECK_OK(status);
        const int64_t ids[] = {5}, splits[] = {0, 1};
        int64_t rows[1];
        served.Locate(nullptr, ids, 1, rows);
        // When it is looked up
        float output[kDim];
        const Table table = {served.rows(), int64_t{1} << 48, kDim, 0};
        const Feature feature = {0, 1, output, kDim, 0, Combiner::kSum};
        Group group = {};
        group.batch = {splits, rows, nullptr, 1, 1};
        group.tables = &table;
        group.features = &feature;
        group.num_tables = group.num_features = 1;
        const Fault fault = StoredLookupCpu(
            group, &format,
            [](int64_t count, int64_t, const auto& body) { body(int64_t{0}, count); });
        // Then the lookup says so
        CHECK_TRUE(fault.kind == FaultKind::kIdOutOfRange);
      }
    }
  }
}

TEST(ReadersSeeOneVersion) { ReadWhileVersionsChange(500, 60); }

TEST(Int8CoversARowWithinHalfAStep) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const float scale : {1e-30f, 1e-3f, 1.0f, 1e30f}) {
    for (const float offset : {0.0f, 100.0f}) {
      std::vector<float> row(65), found(65);
      for (float& x : row) x = scale * (normal(random) + offset);
      std::vector<char> bytes(RowBytes(RowFormat::kInt8, 65));
      EncodeRow(DataType::kFloat32, row.data(), 65, RowFormat::kInt8, bytes.data());
      DecodeRow(RowFormat::kInt8, bytes.data(), 65, found.data());
      const Int8Row view(bytes.data(), 65);
      for (int j = 0; j < 65; ++j) {
        CHECK_NEAR(found[j], row[j], 0.5001 * view.scale + 1e-6 * std::fabs(row[j]));
      }
    }
  }
}

TEST(E4M3RoundsToTheNearestOfItsNumbers) {
  for (int byte = 0; byte < 127; ++byte) {  // exact numbers stay as they are
    CHECK_EQ(static_cast<int>(E4M3FromFloat(kE4M3Values.of[byte])), byte);
    if (byte == 126) break;
    const float low = kE4M3Values.of[byte], high = kE4M3Values.of[byte + 1];
    CHECK_TRUE(low < high);
    CHECK_EQ(static_cast<int>(E4M3FromFloat(low + 0.49f * (high - low))), byte);
    CHECK_EQ(static_cast<int>(E4M3FromFloat(-(low + 0.51f * (high - low)))), 128 + byte + 1);
  }
  CHECK_EQ(kE4M3Values.of[126], 448.0f);
  CHECK_EQ(static_cast<int>(E4M3FromFloat(1e9f)), 126);
}

TEST(ARowWithNanDecodesToNan) {
  const std::vector<float> row = {1, NAN, 2};
  for (const RowFormat format : {RowFormat::kInt8, RowFormat::kFp8}) {
    std::vector<char> bytes(RowBytes(format, 3));
    std::vector<float> found(3);
    EncodeRow(DataType::kFloat32, row.data(), 3, format, bytes.data());
    DecodeRow(format, bytes.data(), 3, found.data());
    CHECK_TRUE(std::isnan(found[0]));
  }
}

// Works for `seconds` in steps, and tells how often the thread slept.
int64_t RestsIn(double seconds) {
  const auto rests = [] {
    rusage usage = {};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const int64_t before = rests();
  while (std::chrono::steady_clock::now() < end) Pace::Rest();
  return rests() - before;
}

TEST(LongWorkRestsWhileOthersAreBusyAndThenHurries) {
  CHECK_EQ(RestsIn(0.02), int64_t{0});  // a thread without a pace
  {
    const Pace pace([] { return false; });
    CHECK_EQ(RestsIn(0.02), int64_t{0});  // nobody else is busy
  }
  const Pace pace([] { return true; });
  CHECK_TRUE(RestsIn(0.1) >= 3);
  RestsIn(0.5);
  CHECK_EQ(RestsIn(0.02), int64_t{0});  // it has taken half a second
  const Pace next([] { return true; });
  CHECK_TRUE(RestsIn(0.1) >= 3);  // the work after it has its own time
}

TEST(OptionsAreChecked) {
  ServingOptions options;
  CHECK_OK(ReadOptions("", &options));
  CHECK_OK(ReadOptions(R"({"version": 7, "tags": ["a", "\u00e9"], "state": null})", &options));
  CHECK_EQ(*options.version, int64_t{7});
  CHECK_EQ(options.tags[1], "\xc3\xa9");
  CHECK_CONTAINS(ReadOptions(R"({"verison": 7})", &options), "got 'verison'");
  CHECK_CONTAINS(ReadOptions(R"({"version": "7"})", &options), "'version': expected");
  CHECK_CONTAINS(ReadOptions(R"({"quantize": "int4"})", &options), "got 'int4'");
  for (const char* damaged :
       {"{", "{\"tags\"", "[]", "{\"tags\": [}", "{} {}", "{\"state\": \"\\"}) {
    CHECK_TRUE(!ReadOptions(damaged, &options).ok());
  }
}

}  // namespace
}  // namespace group_embedding
