// Owners that send sums: what they are asked for, how it is sent, and the batch that a rank looks
// up in the sums that come.
#include "exchange/host/route_sums.h"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "exchange/host/messages.h"
#include "grouping/group_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

constexpr int64_t kNumSamples = 4, kNumIds = 8;

// Two tables, three features; the second table is looked up by two of them.
struct Case {
  std::vector<RoutedTable> tables = {{10, {}, /*sums=*/true}, {5, {}, /*sums=*/true}};
  std::vector<int64_t> row_splits = {0, 3, 3, 5, 8};
  std::vector<int64_t> ids = {7, 2, 7, /**/ 4, -1, /**/ 1, 4, 0};
  std::vector<float> weights = {1, 1, 1, 2, 1, 2, 6, 0};
  std::vector<Feature> features = {{0, 2, nullptr, 0, 0, Combiner::kSum},
                                   {2, 1, nullptr, 0, 1, Combiner::kMean},
                                   {3, 1, nullptr, 0, 1, Combiner::kMean}};
  std::vector<int64_t> routed = std::vector<int64_t>(kNumIds);
  std::vector<TableRequest> requests;
  std::vector<SampleSums> sums;
  RouteInput input;
  Fault fault;

  void Run(int64_t num_ranks, InvalidIds invalid_ids = {}) {
    input = {tables.data(),
             2,
             features.data(),
             3,
             {row_splits.data(), ids.data(), weights.data(), kNumSamples, kNumIds},
             invalid_ids,
             num_ranks};
    requests = RouteIds(input, routed.data(), &sums, &fault, SerialFor);
  }
};

// The terms of a sum that rank `rank` of two is asked for: "4x0.5" is row 4 times 0.5.
std::string TermsOf(const TableRequest& request, int64_t sum, int64_t rank) {
  int64_t at = request.first_id[rank];
  for (int64_t s = request.first_row[rank]; s < sum; ++s) at += request.sums[s].num_ids;
  std::string terms;
  for (int32_t i = 0; i < request.sums[sum].num_ids; ++i, ++at) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s%lldx%g", terms.empty() ? "" : "+",
                  static_cast<long long>(request.ids[at] * 2 + rank),
                  request.weights[at] * request.sums[sum].scale);
    terms += text;
  }
  return terms;
}

TEST(OwnersAreAskedForASumOfEachSample) {
  Case two;
  two.Run(2);
  const TableRequest &first = two.requests[0], &second = two.requests[1];
  // Sample 0 of the first table has rows 7, 2 and 7, sample 1 none.
  CHECK_EQ(two.sums[0].row_splits, (std::vector<int64_t>{0, 2, 2}));
  CHECK_EQ(first.first_row, (std::vector<int64_t>{0, 1, 2}));
  CHECK_EQ(TermsOf(first, two.sums[0].rows[0], 0), std::string("2x1"));
  CHECK_EQ(TermsOf(first, two.sums[0].rows[1], 1), std::string("7x1+7x1"));
  // The second: the mean of row 4, and that of rows 1 and 4 by the weights 2 and 6.
  CHECK_EQ(two.sums[1].row_splits, (std::vector<int64_t>{0, 1, 3}));
  CHECK_EQ(TermsOf(second, two.sums[1].rows[0], 0), std::string("4x1"));
  CHECK_EQ(TermsOf(second, two.sums[1].rows[1], 0), std::string("4x0.75"));
  CHECK_EQ(TermsOf(second, two.sums[1].rows[2], 1), std::string("1x0.25"));
}

TEST(AnIdOutsideReadsZerosOfItsMeanOrIsAFault) {
  Case two;
  two.ids[6] = 5;
  two.Run(2);
  CHECK_EQ(static_cast<int>(two.fault.kind), static_cast<int>(FaultKind::kIdOutOfRange));
  CHECK_EQ(two.fault.feature, 2);
  CHECK_EQ(two.fault.value, int64_t{5});
  Case ignored = two;
  ignored.fault = Fault();
  ignored.Run(2, {/*prune_negative=*/true, /*read_zeros=*/true});
  CHECK_TRUE(ignored.fault.kind == FaultKind::kNone);
  CHECK_EQ(TermsOf(ignored.requests[1], ignored.sums[1].rows[1], 1), std::string("1x0.25"));
}

TEST(SumsArriveAsTheyWereSent) {
  Case two;
  two.tables[0].sums = false;
  two.tables[1] = {kAnyKey, {PlacementKind::kHash, 0}, /*sums=*/true};
  two.Run(3);
  const Description description = {"keys", {false, true}, {false, true}};
  const Messages messages = WriteMessages(two.requests, two.fault, description, true, 3);
  const Requests received =
      ReadMessages(messages.words.data(), messages.splits.data(), 3, description);
  CHECK_OK(received.error);
  const TableRequest& sent = two.requests[1];
  CHECK_EQ(received.ids[0], two.requests[0].ids);
  CHECK_EQ(received.ids[1], sent.ids);
  CHECK_TRUE(received.times[1].empty());
  size_t id = 0;
  for (size_t s = 0; s < sent.sums.size(); ++s) {
    CHECK_EQ(received.sum_lengths[1][s], int64_t{sent.sums[s].num_ids});
    for (const size_t end = id + sent.sums[s].num_ids; id < end; ++id) {
      CHECK_EQ(received.factors[1][id], sent.sums[s].scale * sent.weights[id]);
    }
  }
  // Each of five keys is counted; that of weight 0 in a sum that no sample reads.
  CHECK_EQ(id, size_t{5});
  for (const int64_t row : two.sums[1].rows) CHECK_TRUE(sent.sums[row].scale > 0);
  for (int64_t n = 0; n < 3; ++n) {
    CHECK_EQ(received.counts[2 * n + 1], sent.first_row[n + 1] - sent.first_row[n]);
  }
}

TEST(ABatchOfSumsAndRowsIsInTheOrderOfFeatures) {
  Case two;
  two.tables[1].sums = false;
  two.Run(2);
  std::vector<int64_t> num_ids(3);
  CountRoutedIds(two.input, two.sums, num_ids.data());
  CHECK_EQ(num_ids, (std::vector<int64_t>{2, 2, 3}));
  const BatchLayout at = LayOutBatch(kNumSamples, 7, /*weighted=*/true);
  std::vector<double> aligned((at.size + 1) / 2);
  float* buffer = reinterpret_cast<float*>(aligned.data());
  WriteRoutedBatch(two.input, two.routed.data(), two.sums, num_ids.data(), buffer);
  const Batch batch = ViewBatch(buffer, kNumSamples, 7, /*weighted=*/true);
  CHECK_EQ(std::vector<int64_t>(batch.row_splits, batch.row_splits + 5),
           (std::vector<int64_t>{0, 2, 2, 4, 7}));
  CHECK_EQ(std::vector<int64_t>(batch.ids, batch.ids + 7),
           (std::vector<int64_t>{0, 1, /**/ 0, -1, /**/ 1, 0, -1}));
  CHECK_EQ(std::vector<float>(batch.weights, batch.weights + 7),
           (std::vector<float>{1, 1, /**/ 2, 1, /**/ 2, 6, 0}));
}

TEST(RequestsOfSumsOfAnyWordsAreReadWithinTheirBounds) {
  // Given messages of two tables with sums, some of whose words, or the end, are changed
  Case two;
  two.Run(2);
  const Description description = {"two tables", {false, false}, {true, true}};
  const Messages good = WriteMessages(two.requests, two.fault, description, true, 2);
  const int64_t drawn[] = {INT64_MIN,        -1,       0, 1, 2, 3, int64_t{1} << 31,
                           int64_t{1} << 62, INT64_MAX};
  int num_read = 0;
  for (int seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> words = good.words, splits = good.splits;
    for (int n = 1 + random() % 2; n > 0; --n) words[random() % words.size()] = drawn[random() % 9];
    if (random() % 2 == 0) {
      splits[1] = random() % (splits[1] + 1);
      words.resize(splits[0] + splits[1]);
    }
    // When they are read, from memory that ends with them
    const std::vector<int64_t> exact(words);
    const Requests requests = ReadMessages(exact.data(), splits.data(), 2, description);
    if (!requests.error.empty()) continue;
    // Then each sum has the ids that it says, and each id a factor
    ++num_read;
    for (int t = 0; t < 2; ++t) {
      int64_t num_ids = 0;
      for (const int64_t length : requests.sum_lengths[t]) num_ids += length;
      CHECK_EQ(static_cast<int64_t>(requests.ids[t].size()), num_ids);
      CHECK_EQ(static_cast<int64_t>(requests.factors[t].size()), num_ids);
      CHECK_EQ(static_cast<int64_t>(requests.sum_lengths[t].size()),
               requests.counts[t] + requests.counts[2 + t]);
    }
  }
  CHECK_TRUE(num_read > 200 && num_read < 15000);
}

}  // namespace
}  // namespace group_embedding
