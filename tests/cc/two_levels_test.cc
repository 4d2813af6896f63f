// Ranks of a host that ask the owners for each other: what a rank asks its proxies, what a proxy
// asks the owners, and whose fault it passes on.
#include <string>
#include <vector>

#include "check.h"
#include "core/owner.h"
#include "exchange/host/messages.h"
#include "exchange/host/route_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

const Description kDescription = {"rows and keys", {false, true}};

// Host a has ranks 0 and 1, host b ranks 2 and 3. In host a the proxy of ranks 0 and 2 is rank 0.
const Proxies kOfHostA = {2, {0, 1, 0, 1}};

// A batch with a feature of a table of rows and one of keys, an id in each sample.
struct Batches {
  std::vector<RoutedTable> tables = {{20, {}}, {kAnyKey, {PlacementKind::kHash, 0}}};
  std::vector<int64_t> row_splits, ids, routed;
  std::vector<Feature> features;
  std::vector<TableRequest> requests;
  std::vector<SampleSums> sums;
  Fault fault;

  Batches(const std::vector<int64_t>& rows, const std::vector<int64_t>& keys) : ids(rows) {
    const int64_t num_rows = static_cast<int64_t>(rows.size());
    const int64_t num_keys = static_cast<int64_t>(keys.size());
    ids.insert(ids.end(), keys.begin(), keys.end());
    for (int64_t s = 0; s <= num_rows + num_keys; ++s) row_splits.push_back(s);
    features = {{0, num_rows, nullptr, 0, 0, Combiner::kSum},
                {num_rows, num_keys, nullptr, 0, 1, Combiner::kSum}};
    routed.resize(ids.size());
  }

  void Run(const Proxies& proxies, const int64_t* times) {
    const int64_t num_ids = static_cast<int64_t>(ids.size());
    const RouteInput input = {tables.data(),
                              2,
                              features.data(),
                              2,
                              {row_splits.data(), ids.data(), nullptr, num_ids, num_ids},
                              {},
                              4,
                              proxies,
                              times};
    requests = RouteIds(input, routed.data(), &sums, &fault, SerialFor);
  }
};

// What proxy `index` receives of both ranks of host a.
Requests ReadAtProxy(int64_t index, const std::vector<Messages>& of_ranks) {
  std::vector<int64_t> words, splits;
  for (const Messages& messages : of_ranks) {
    const auto begin = messages.words.begin() + (index == 0 ? 0 : messages.splits[0]);
    words.insert(words.end(), begin, begin + messages.splits[index]);
    splits.push_back(messages.splits[index]);
  }
  return ReadMessages(words.data(), splits.data(), 2, kDescription);
}

Messages MessagesOf(Batches* batch) {
  batch->Run(kOfHostA, nullptr);
  return WriteMessages(batch->requests, batch->fault, kDescription, true, 2);
}

TEST(ProxiesAreAskedForIdsAsTheyAre) {
  // Given ids of all four owners, some twice
  Batches batch({7, 2, 4, 7, 6, 1}, {-5, -5});
  // When they are routed to the two proxies of the host
  batch.Run(kOfHostA, nullptr);
  // Then each is asked once for the unique ids of its owners
  CHECK_EQ(batch.requests[0].ids, (std::vector<int64_t>{2, 4, 6, 7, 1}));
  CHECK_EQ(batch.requests[0].first_row, (std::vector<int64_t>{0, 3, 5}));
  CHECK_EQ(batch.requests[1].ids, (std::vector<int64_t>{-5}));
  CHECK_EQ(batch.requests[1].times, (std::vector<int64_t>{2}));
  const int64_t proxy = kOfHostA.of[OwnerOfKey(-5, 4)];
  CHECK_EQ(batch.requests[1].first_row[proxy + 1] - batch.requests[1].first_row[proxy], 1);
  // and the batch names the rows that they will send
  CHECK_EQ(batch.routed, (std::vector<int64_t>{3, 0, 1, 3, 2, 4, 0, 0}));
}

TEST(AProxyAsksOnceForWhatItsRanksAsk) {
  // Given the requests of two ranks of a host, which share rows and keys
  const std::vector<int64_t> keys = {-5, 3, 8, 11, 40};
  Batches first({2, 6, 3}, {-5, -5, 3, 8}), second({6, 2, 10, 0}, {8, 11, 40, -5});
  const std::vector<Messages> of_ranks = {MessagesOf(&first), MessagesOf(&second)};
  std::vector<int64_t> found;
  for (int64_t index = 0; index < 2; ++index) {
    const Requests asked = ReadAtProxy(index, of_ranks);
    CHECK_OK(asked.error);
    // When a proxy routes them, with how often they came
    Batches proxy(asked.ids[0], asked.ids[1]);
    std::vector<int64_t> times(asked.ids[0].size(), 1);
    times.insert(times.end(), asked.times[1].begin(), asked.times[1].end());
    proxy.Run({}, times.data());
    // Then an owner is asked for its rows, once,
    if (index == 0) {
      CHECK_EQ(proxy.requests[0].first_row, (std::vector<int64_t>{0, 1, 1, 4, 4}));
      CHECK_EQ(proxy.requests[0].ids, (std::vector<int64_t>{0, /*2 6 10:*/ 0, 1, 2}));
    }
    for (int64_t owner = 0; owner < 4; ++owner) {
      const TableRequest& of_keys = proxy.requests[1];
      for (int64_t u = of_keys.first_row[owner]; u < of_keys.first_row[owner + 1]; ++u) {
        CHECK_EQ(OwnerOfKey(of_keys.ids[u], 4), owner);
        CHECK_EQ(kOfHostA.of[owner], index);
        // and told of all occurrences of a key.
        const int64_t key = of_keys.ids[u];
        CHECK_EQ(of_keys.times[u], int64_t{key == -5 ? 3 : key == 8 ? 2 : 1});
        found.push_back(key);
      }
    }
  }
  CHECK_EQ(found.size(), keys.size());
}

TEST(OccurrencesAreAddedUpToTheirLimit) {
  Batches batch({}, {9, 9});
  const std::vector<int64_t> times = {kMaxTimes, 5};
  batch.Run({}, times.data());
  CHECK_EQ(batch.requests[1].times, (std::vector<int64_t>{kMaxTimes}));
}

TEST(AFaultIsOfTheLowestRankThatHasOne) {
  // Given messages of two proxies, the first of which passes a fault of rank 3 on, the other one of
  // rank 1
  std::vector<int64_t> words, splits;
  for (const int64_t rank : {3, 1}) {
    Batches none({}, {});
    none.Run({}, nullptr);
    const Fault fault = {FaultKind::kIdOutOfRange, 0, rank, 99};
    const Messages one = WriteMessages(none.requests, fault, kDescription, true, 1, rank);
    words.insert(words.end(), one.words.begin(), one.words.end());
    splits.push_back(one.splits[0]);
  }
  // When an owner reads them
  const Requests requests = ReadMessages(words.data(), splits.data(), 2, kDescription);
  // Then the error is that of one level
  CHECK_OK(requests.error);
  CHECK_EQ(requests.fault_rank, int64_t{1});
  CHECK_EQ(requests.fault.sample, int64_t{1});
}

}  // namespace
}  // namespace group_embedding
