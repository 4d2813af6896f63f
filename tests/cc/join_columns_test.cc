// Tables whose columns are spread over ranks: what all ranks are asked for, and the joined rows.
#include "exchange/host/join_columns.h"

#include <numeric>
#include <vector>

#include "check.h"
#include "exchange/host/route_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

constexpr Placement kByColumns = {PlacementKind::kColumns, 0};

// One feature of two samples, of a table by columns over three ranks.
struct Case {
  RoutedTable table = {10, kByColumns};
  std::vector<int64_t> row_splits = {0, 3, 5};
  std::vector<int64_t> ids = {7, 2, 7, /**/ 2, 12};
  std::vector<float> weights = {1, 2, 3, 4, 5};
  std::vector<Feature> features = {{0, 2, nullptr, 0, 0, Combiner::kSum}};
  std::vector<int64_t> routed = std::vector<int64_t>(5);
  std::vector<SampleSums> sums;
  Fault fault;

  TableRequest Run() {
    const InvalidIds invalid_ids = {/*prune_negative=*/true, /*read_zeros=*/true};
    const RouteInput input = {
        &table,      1, features.data(), 1, {row_splits.data(), ids.data(), weights.data(), 2, 5},
        invalid_ids, 3};
    return RouteIds(input, routed.data(), &sums, &fault, SerialFor)[0];
  }
};

TEST(AllRanksAreAskedForTheSameRows) {
  Case three;
  const TableRequest request = three.Run();
  CHECK_EQ(request.ids, (std::vector<int64_t>{7, 2, 7, 2, 7, 2}));
  CHECK_EQ(request.first_row, (std::vector<int64_t>{0, 2, 4, 6}));
  // Ids name the joined rows, of which there are two: the last id reads zeros.
  CHECK_EQ(three.routed, (std::vector<int64_t>{0, 1, 0, 1, 2}));
}

TEST(AllRanksAreAskedForTheSameSums) {
  Case three;
  three.table.sums = true;
  const TableRequest request = three.Run();
  CHECK_EQ(request.ids, (std::vector<int64_t>{7, 2, 7, 2, 7, 2, 7, 2, 7, 2, 7, 2}));
  CHECK_EQ(request.weights, (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
  CHECK_EQ(request.first_id, (std::vector<int64_t>{0, 4, 8, 12}));
  CHECK_EQ(request.first_row, (std::vector<int64_t>{0, 2, 4, 6}));
  CHECK_EQ(request.sums.size(), size_t{6});
  for (int s = 0; s < 6; ++s) CHECK_EQ(request.sums[s].num_ids, s % 2 == 0 ? 3 : 1);
  // A sample reads one joined sum.
  CHECK_EQ(three.sums[0].row_splits, (std::vector<int64_t>{0, 1, 2}));
  CHECK_EQ(three.sums[0].rows, (std::vector<int64_t>{0, 1}));
}

TEST(PartsAreJoinedAndSplit) {
  const std::vector<float> parts = {1, 2, 5, 6, /**/ 3, 4, 7, 8};
  const std::vector<float> expected = {1, 2, 3, 4, /**/ 5, 6, 7, 8};
  std::vector<float> rows(8), split(8);
  JoinColumns({2, 2, 2}, parts.data(), rows.data(), SerialFor);
  CHECK_EQ(rows, expected);
  SplitColumns({2, 2, 2}, rows.data(), split.data(), SerialFor);
  CHECK_EQ(split, parts);
}

TEST(ThreadsJoinWhatOneDoes) {
  const JoinedRows sizes = {3, 101, 5};
  std::vector<float> parts(3 * 101 * 5), serial(parts.size()), threaded(parts.size());
  std::iota(parts.begin(), parts.end(), 0.0f);
  JoinColumns(sizes, parts.data(), serial.data(), SerialFor);
  JoinColumns(sizes, parts.data(), threaded.data(), testing::ThreadedFor(4));
  CHECK_EQ(threaded, serial);
  SplitColumns(sizes, serial.data(), threaded.data(), testing::ThreadedFor(4));
  CHECK_EQ(threaded, parts);
}

}  // namespace
}  // namespace group_embedding
