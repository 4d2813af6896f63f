// Routing and packing: what a rank asks, what the owners read, and what comes back, on one thread
// and on several.
#include <cstring>
#include <random>

#include "check.h"
#include "exchange/pack_rows.h"
#include "exchange/route_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

// Two tables, three features; the second table is looked up by two of them.
struct Case {
  std::vector<int64_t> num_rows = {10, 5};
  std::vector<int64_t> row_splits = {0, 3, 3, 5, 8};
  std::vector<int64_t> ids = {7, 2, 7, /**/ 4, -1, /**/ 1, 4, 0};
  std::vector<float> weights = {1, 1, 1, 1, 1, 2, 1, 0};
  std::vector<Feature> features = {{0, 2, nullptr, 0, 0, Combiner::kSum},
                                   {2, 1, nullptr, 0, 1, Combiner::kMean},
                                   {3, 1, nullptr, 0, 1, Combiner::kMean}};
  InvalidIds invalid_ids;
  std::vector<int64_t> routed = std::vector<int64_t>(8);
  Route route;

  void Run(int64_t num_ranks, const ParallelFor& parallel_for) {
    const RouteInput input = {num_rows.data(),
                              2,
                              features.data(),
                              3,
                              {row_splits.data(), ids.data(), weights.data(), 4, 8},
                              invalid_ids,
                              num_ranks};
    RouteIds(input, &route, routed.data(), parallel_for);
  }
};

TEST(EachOwnerIsAskedOnceForEachOfItsRows) {
  Case two;
  two.Run(2, SerialFor);
  // The id of weight 0 is left out of a mean, and so is the negative one.
  CHECK_EQ(two.route.counts, (std::vector<int64_t>{1, 1, 1, 1}));
  CHECK_EQ(two.route.splits, (std::vector<int64_t>{8, 8}));
  CHECK_EQ(two.route.messages, (std::vector<int64_t>{0, -1, -1, 0, 1, 1, /*2:*/ 1, /*4:*/ 2,  //
                                                     0, -1, -1, 0, 1, 1, /*7:*/ 3, /*1:*/ 0}));
}

TEST(RoutedIdsNameTheRowsThatComeBack) {
  Case two;
  two.Run(2, SerialFor);
  // Matrix of table 0: rows 2, 7; of table 1: rows 4, 1.
  CHECK_EQ(two.routed, (std::vector<int64_t>{1, 0, 1, 0, -1, 1, 0, -1}));
}

TEST(ABadIdTravelsInEveryMessageAndReadsZeros) {
  Case two;
  two.ids[3] = 5;
  two.Run(2, SerialFor);
  CHECK_EQ(two.routed[3], int64_t{2});  // one past the rows of the matrix
  for (int64_t owner = 0; owner < 2; ++owner) {
    const int64_t size = two.route.splits[owner];
    const int64_t* words = two.route.messages.data() + owner * two.route.splits[0];
    const Requests requests = ReadMessages(words, &size, 1, 2);
    CHECK_TRUE(requests.valid);
    CHECK_EQ(requests.fault_rank, int64_t{0});
    CHECK_TRUE(requests.fault.kind == FaultKind::kIdOutOfRange);
    CHECK_EQ(requests.fault.feature, 1);
    CHECK_EQ(requests.fault.sample, int64_t{0});
    CHECK_EQ(requests.fault.value, int64_t{5});
  }
}

TEST(OwnersReadTheRequestsOfAllRanksTableByTable) {
  const std::vector<int64_t> words = {0, -1, -1, 0, 2, 1, 5, 6, 7,  // rank 0: 5, 6 and 7
                                      0, -1, -1, 0, 0, 0,           // rank 1: nothing
                                      0, -1, -1, 0, 1, 2, 8, 9, 4};
  const std::vector<int64_t> splits = {9, 6, 9};
  const Requests requests = ReadMessages(words.data(), splits.data(), 3, 2);
  CHECK_TRUE(requests.valid);
  CHECK_EQ(requests.fault_rank, int64_t{-1});
  CHECK_EQ(requests.counts, (std::vector<int64_t>{2, 1, 0, 0, 1, 2}));
  CHECK_EQ(requests.ids, (std::vector<int64_t>{5, 6, 8, 7, 9, 4}));
  CHECK_EQ(requests.totals, (std::vector<int64_t>{3, 3}));
}

TEST(WordsThatAreNoMessagesAreRefused) {
  const std::vector<int64_t> words = {0, -1, -1, 0, 3, 0, 1};
  for (const int64_t size : {5, 6, 7}) CHECK_TRUE(!ReadMessages(words.data(), &size, 1, 2).valid);
  const std::vector<int64_t> negative = {0, -1, -1, 0, -1, 1};
  const int64_t size = 6;
  CHECK_TRUE(!ReadMessages(negative.data(), &size, 1, 2).valid);
}

TEST(ThreadsGiveTheSameMessages) {
  std::mt19937 random(7);
  std::vector<int64_t> num_rows, ids, row_splits = {0};
  std::vector<Feature> features;
  for (int32_t f = 0; f < 40; ++f) {
    if (f % 2 == 0) num_rows.push_back(1 + random() % 300);
    features.push_back({5 * f, 5, nullptr, 0, f / 2, Combiner::kSum});
    for (int s = 0; s < 5; ++s) {
      for (uint32_t i = random() % 9; i > 0; --i) ids.push_back(random() % num_rows.back());
      row_splits.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  const int64_t num_ids = static_cast<int64_t>(ids.size());
  const RouteInput input = {num_rows.data(),
                            20,
                            features.data(),
                            40,
                            {row_splits.data(), ids.data(), nullptr, 200, num_ids},
                            {},
                            3};
  Route serial, threaded;
  std::vector<int64_t> serial_ids(num_ids), threaded_ids(num_ids);
  RouteIds(input, &serial, serial_ids.data(), SerialFor);
  RouteIds(input, &threaded, threaded_ids.data(), testing::ThreadedFor(4));
  CHECK_EQ(threaded.messages, serial.messages);
  CHECK_EQ(threaded_ids, serial_ids);
}

TEST(UnpackedRowsAreThoseThatWerePacked) {
  const std::vector<int64_t> counts = {2, 0, 1, 3};  // [2 ranks, 2 tables]
  const std::vector<int32_t> dims = {2, 3};
  const RowParts parts = {counts.data(), dims.data(), 2, 2, sizeof(float)};
  const std::vector<float> first = {1, 2, 3, 4, 5, 6}, second = {7, 8, 9, 10, 11, 12, 13, 14, 15};
  const void* matrices[] = {first.data(), second.data()};
  std::vector<int64_t> splits(2);
  std::vector<float> packed(15);
  PackedSplits(parts, splits.data());
  PackRows(parts, matrices, packed.data(), testing::ThreadedFor(3));
  CHECK_EQ(splits, (std::vector<int64_t>{4, 11}));
  CHECK_EQ(packed, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));

  std::vector<float> first_back(6), second_back(9);
  void* back[] = {first_back.data(), second_back.data()};
  UnpackRows(parts, packed.data(), back, testing::ThreadedFor(3));
  CHECK_EQ(first_back, first);
  CHECK_EQ(second_back, second);
}

}  // namespace
}  // namespace group_embedding
