// Memory that a thread makes ready before tables need it.
#include "table/touch_ahead.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "table/host/host_table.h"
#include "table/large_pages.h"
#include "table/locate_rows.h"

namespace group_embedding {
namespace {

// Whether `what` becomes true within ten seconds.
bool Becomes(const std::function<bool()>& what) {
  for (int i = 0; i < 1000 && !what(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return what();
}

// Needs so many pages.
struct Needed : GrowingMemory {
  explicit Needed(int pages) : left(pages) {}
  bool TouchNextPage() override {
    is_in_use = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    is_in_use = false;
    return --left > 0;
  }
  std::atomic<int> left;
  std::atomic<bool> is_in_use{false};
};

TEST(AllWhoAskAreServed) {
  // Given memories that need some pages, and others that will
  TouchAhead& ahead = TouchAhead::Shared();
  Needed few(1), many(20), again(2);
  // When they ask, one of them twice
  for (Needed* memory : {&many, &few, &again, &many}) ahead.Ask(memory);
  // Then each gets its pages, also when it asks once more
  CHECK_TRUE(Becomes([&] { return few.left == 0 && many.left == 0 && again.left == 0; }));
  again.left = 3;
  ahead.Ask(&again);
  CHECK_TRUE(Becomes([&] { return again.left == 0; }));
  for (Needed* memory : {&many, &few, &again}) ahead.Forget(memory);
}

TEST(ForgottenMemoryIsNotUsed) {
  for (int i = 0; i < 50; ++i) {
    // Given memory of which pages are being touched
    auto memory = std::make_unique<Needed>(1 << 30);
    TouchAhead::Shared().Ask(memory.get());
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    // When it is forgotten, Then no page is in work, and none comes after
    TouchAhead::Shared().Forget(memory.get());
    CHECK_TRUE(!memory->is_in_use);
    const int left = memory->left;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(memory->left.load(), left);
  }
}

TEST(AForkedProcessWaitsForNothing) {
  // Given a process in which the thread runs
  Needed memory(1 << 30);
  TouchAhead::Shared().Ask(&memory);
  // When another is forked from it, and asks
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    TouchAhead::Shared().Ask(&memory);
    TouchAhead::Shared().Forget(&memory);
    _exit(0);
  }
  // Then that one goes on
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  TouchAhead::Shared().Forget(&memory);
}

// Trains as many keys, from `first` on.
void Train(EmbeddingTable* table, int64_t first, int64_t count) {
  std::vector<int64_t> keys(count), rows(count);
  std::iota(keys.begin(), keys.end(), first);
  const KeysToLocate request = {table->host(), keys.data(), count, rows.data(), 0};
  CHECK_OK(LocateRowsCpu(&request, 1, Access::kTrain, /*step=*/1, SerialFor));
}

std::unique_ptr<EmbeddingTable> MakeTable(int32_t dim) {
  TableOptions options;
  options.dim = dim;
  Status status;
  auto table = MakeHostTable(options, nullptr, &status);
  CHECK_OK(status);
  return table;
}

TEST(RowsOfTheNextCallHaveTheirMemory) {
  // Given a table of which a call of new keys takes eight large pages
  constexpr int64_t kKeys = 16384, kDim = 256;
  const auto table = MakeTable(kDim);
  Train(table.get(), 0, kKeys);
  Train(table.get(), kKeys, kKeys);
  // When the thread has had time
  const Table rows = table->rows();
  auto* const begin =
      static_cast<const char*>(rows.rows) + RoundUpToLargePages(2 * kKeys * kDim * 4);
  const auto is_there = [&] {
    std::vector<unsigned char> pages(8 * kLargePage / 4096);
    const int failed = mincore(const_cast<char*>(begin), 7 * kLargePage, pages.data());
    return failed == 0 && std::all_of(pages.begin(), pages.begin() + 7 * kLargePage / 4096,
                                      [](unsigned char page) { return (page & 1) != 0; });
  };
  // Then the rows of as many keys more are in memory
  CHECK_TRUE(Becomes(is_there));
}

TEST(SlotsMadeMeanwhileHaveMemoryForAllRows) {
  for (int i = 0; i < 10; ++i) {
    // Given tables for which the thread makes more rows ready, after a call of many new keys
    constexpr int64_t kKeys = 20000, kDim = 64;
    const auto table = MakeTable(kDim), other = MakeTable(kDim);
    for (EmbeddingTable* one : {other.get(), table.get()}) Train(one, 0, kKeys);
    for (EmbeddingTable* one : {table.get(), other.get()}) {
      // When an optimizer makes its slots
      void *wide, *narrow;
      CHECK_OK(one->Slot({"momentum", kDim, DataType::kFloat32, 0.5f}, &wide));
      CHECK_OK(one->Slot({"velocity", 1, DataType::kFloat32, 0.25f}, &narrow));
      // Then rows that the thread has made ready have them, too
      Train(one, kKeys, kKeys);
      CHECK_EQ(static_cast<const float*>(wide)[2 * kKeys * kDim - 1], 0.5f);
      CHECK_EQ(static_cast<const float*>(narrow)[2 * kKeys - 1], 0.25f);
    }
  }
}

}  // namespace
}  // namespace group_embedding
