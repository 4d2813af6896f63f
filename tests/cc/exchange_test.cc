// Routing, packing and messages: the requests of a rank, the rows that owners read, and the rows
// that the rank receives, on one thread and on several.
#include <cstring>
#include <random>
#include <string>

#include "check.h"
#include "core/owner.h"
#include "exchange/gpu/peer_layout.h"
#include "exchange/host/changed_rows.h"
#include "exchange/host/messages.h"
#include "exchange/host/pack_rows.h"
#include "exchange/host/route_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

const Description kDescription = {"two tables", {false, false}};
const int64_t kDigest = static_cast<int64_t>(DigestOf(kDescription.text));

// Two tables, three features; the second table is looked up by two of them.
struct Case {
  std::vector<RoutedTable> tables = {{10, {}}, {5, {}}};
  std::vector<int64_t> row_splits = {0, 3, 3, 5, 8};
  std::vector<int64_t> ids = {7, 2, 7, /**/ 4, -1, /**/ 1, 4, 0};
  std::vector<float> weights = {1, 1, 1, 1, 1, 2, 1, 0};
  std::vector<Feature> features = {{0, 2, nullptr, 0, 0, Combiner::kSum},
                                   {2, 1, nullptr, 0, 1, Combiner::kMean},
                                   {3, 1, nullptr, 0, 1, Combiner::kMean}};
  InvalidIds invalid_ids;
  std::vector<int64_t> routed = std::vector<int64_t>(8);
  std::vector<TableRequest> requests;
  std::vector<SampleSums> sums;
  Fault fault;

  void Run(int64_t num_ranks, const ParallelFor& parallel_for) {
    const RouteInput input = {tables.data(),
                              2,
                              features.data(),
                              3,
                              {row_splits.data(), ids.data(), weights.data(), 4, 8},
                              invalid_ids,
                              num_ranks};
    requests = RouteIds(input, routed.data(), &sums, &fault, parallel_for);
  }
};

// Row r is on rank r mod ranks, as local row r / ranks: those around multiples, and any.
TEST(OwnersAreFoundWithoutDividing) {
  std::mt19937_64 random(1);
  for (int64_t num_ranks = 1; num_ranks <= 65; ++num_ranks) {
    const Owners owners({}, num_ranks);
    for (int i = 0; i < 1000; ++i) {
      const int64_t row = static_cast<int64_t>(random() >> (8 + random() % 56));
      const int64_t multiple = row / num_ranks * num_ranks;
      for (const int64_t id : {row, multiple, multiple + num_ranks - 1}) {
        CHECK_EQ(owners.Of(id).rank, id % num_ranks);
        CHECK_EQ(owners.Of(id).local_id, id / num_ranks);
      }
    }
  }
}

TEST(EachOwnerIsAskedOnceForEachOfItsRows) {
  Case two;
  two.Run(2, SerialFor);
  const Messages messages = WriteMessages(two.requests, two.fault, kDescription, false, 2);
  // The id of weight 0 is left out of a mean, and so is the negative one.
  CHECK_EQ(messages.counts, (std::vector<int64_t>{1, 1, 1, 1}));
  CHECK_EQ(messages.splits, (std::vector<int64_t>{11, 11}));
  CHECK_EQ(messages.words,
           (std::vector<int64_t>{0, -1, -1, 0, -1, kDigest, 0, 1, 1, /*2:*/ 1, /*4:*/ 2,  //
                                 0, -1, -1, 0, -1, kDigest, 0, 1, 1, /*7:*/ 3, /*1:*/ 0}));
}

TEST(RoutedIdsNameTheRowsThatComeBack) {
  Case two;
  two.Run(2, SerialFor);
  // Matrix of table 0: rows 2, 7; of table 1: rows 4, 1.
  CHECK_EQ(two.routed, (std::vector<int64_t>{1, 0, 1, 0, -1, 1, 0, -1}));
}

TEST(KeysAreAskedForAsTheyAreAndCounted) {
  Case two;
  two.tables[1] = {kAnyKey, {PlacementKind::kHash, 0}};
  two.Run(3, SerialFor);
  // All keys: the negative one, which none may leave out, and that of weight 0.
  const TableRequest& keys = two.requests[1];
  CHECK_EQ(keys.ids.size(), size_t{4});
  for (int64_t owner = 0; owner < 3; ++owner) {
    for (int64_t u = keys.first_row[owner]; u < keys.first_row[owner + 1]; ++u) {
      CHECK_EQ(OwnerOfKey(keys.ids[u], 3), owner);
      CHECK_EQ(keys.times[u], int64_t{keys.ids[u] == 4 ? 2 : 1});
    }
  }
  const Description description = {"keys", {false, true}};
  const Messages messages = WriteMessages(two.requests, two.fault, description, true, 3);
  const Requests received =
      ReadMessages(messages.words.data(), messages.splits.data(), 3, description);
  CHECK_OK(received.error);
  CHECK_EQ(received.ids[1], keys.ids);
  CHECK_EQ(received.times[1], keys.times);
  CHECK_TRUE(received.times[0].empty());
}

TEST(ATableOnOneRankIsAskedForThere) {
  Case two;
  two.tables[0].placement = {PlacementKind::kOneRank, 2};
  two.Run(3, SerialFor);
  CHECK_EQ(two.requests[0].first_row, (std::vector<int64_t>{0, 0, 0, 2}));
  CHECK_EQ(two.requests[0].ids, (std::vector<int64_t>{7, 2}));
}

TEST(KeysAreSpreadEvenlyWhateverTheyAre) {
  for (const int64_t step : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 40, int64_t{-12}}) {
    std::vector<int64_t> counts(3);
    for (int64_t k = 0; k < 30000; ++k) ++counts[OwnerOfKey(k * step, 3)];
    for (const int64_t count : counts) CHECK_TRUE(count > 9700 && count < 10300);
  }
}

TEST(RanksOfWhichEitherMayHaveAKeyShareKeys) {
  for (int64_t key = -500; key < 500; ++key) {
    CHECK_TRUE(MayShareKeys(OwnerOfKey(key, 3), 3, OwnerOfKey(key, 4), 4));
  }
  CHECK_TRUE(!MayShareKeys(0, 2, 1, 2));
  CHECK_TRUE(!MayShareKeys(0, 4, 1, 2));
}

TEST(ABadIdTravelsInEveryMessageAndReadsZeros) {
  Case two;
  two.ids[3] = 5;
  two.Run(2, SerialFor);
  CHECK_EQ(two.routed[3], int64_t{2});  // one past the rows of the matrix
  const Messages messages = WriteMessages(two.requests, two.fault, kDescription, true, 2);
  for (int64_t owner = 0; owner < 2; ++owner) {
    const int64_t size = messages.splits[owner];
    const int64_t* words = messages.words.data() + owner * messages.splits[0];
    const Requests requests = ReadMessages(words, &size, 1, kDescription);
    CHECK_OK(requests.error);
    CHECK_EQ(requests.fault_rank, int64_t{0});
    CHECK_TRUE(requests.fault.kind == FaultKind::kIdOutOfRange);
    CHECK_EQ(requests.fault.feature, 1);
    CHECK_EQ(requests.fault.sample, int64_t{0});
    CHECK_EQ(requests.fault.value, int64_t{5});
  }
}

TEST(OwnersReadTheRequestsOfAllRanksTableByTable) {
  const std::vector<int64_t> words = {0, -1, -1, 0, -1, kDigest, 0, 2, 1, 5, 6, 7,  // 5, 6 and 7
                                      0, -1, -1, 0, -1, kDigest, 0, 0, 0,           // nothing
                                      0, -1, -1, 0, -1, kDigest, 0, 1, 2, 8, 9, 4};
  const std::vector<int64_t> splits = {12, 9, 12};
  const Requests requests = ReadMessages(words.data(), splits.data(), 3, kDescription);
  CHECK_OK(requests.error);
  CHECK_EQ(requests.fault_rank, int64_t{-1});
  CHECK_EQ(requests.counts, (std::vector<int64_t>{2, 1, 0, 0, 1, 2}));
  CHECK_EQ(requests.ids[0], (std::vector<int64_t>{5, 6, 8}));
  CHECK_EQ(requests.ids[1], (std::vector<int64_t>{7, 9, 4}));
}

TEST(WordsThatAreNoMessagesAreRefused) {
  const std::vector<int64_t> words = {0, -1, -1, 0, -1, kDigest, 0, 3, 0, 1};
  for (const int64_t size : {3, 8, 9, 10}) {
    CHECK_TRUE(!ReadMessages(words.data(), &size, 1, kDescription).error.empty());
  }
  for (const int64_t bad : {int64_t{-1}, int64_t{1} << 62}) {
    const std::vector<int64_t> counts = {0, -1, -1, 0, -1, kDigest, 0, bad, 1};
    const std::vector<int64_t> description = {0, -1, -1, 0, -1, kDigest, bad, 0, 0};
    const int64_t size = 9;
    CHECK_TRUE(!ReadMessages(counts.data(), &size, 1, kDescription).error.empty());
    CHECK_TRUE(!ReadMessages(description.data(), &size, 1, kDescription).error.empty());
  }
}

TEST(RanksThatDisagreeAreToldInWhat) {
  Case two;
  two.Run(1, SerialFor);
  const Description ours = {"table 'a'\ntable 'b'", {false, false}};
  const Description theirs = {"table 'a'\ntable 'c'", {false, false}};
  for (const bool with_description : {true, false}) {
    const Messages messages = WriteMessages(two.requests, two.fault, theirs, with_description, 1);
    const std::string error =
        ReadMessages(messages.words.data(), messages.splits.data(), 1, ours).error;
    const char* said = with_description
                           ? "rank 0 has table 'c' where this rank has table 'b'"
                           : "rank 0 makes another one than this rank, whose is\ntable 'a'";
    CHECK_TRUE(error.find(said) != std::string::npos);
  }
}

TEST(ThreadsGiveTheSameRequests) {
  std::mt19937 random(7);
  std::vector<RoutedTable> tables;
  std::vector<int64_t> ids, row_splits = {0};
  std::vector<Feature> features;
  for (int32_t f = 0; f < 40; ++f) {
    const bool sums = f % 6 == 0;  // of every third table
    if (f % 2 == 0) tables.push_back({static_cast<int64_t>(1 + random() % 300), {}, sums});
    features.push_back({5 * f, 5, nullptr, 0, f / 2, Combiner::kSum});
    for (int s = 0; s < 5; ++s) {
      for (uint32_t i = random() % 9; i > 0; --i) ids.push_back(random() % tables.back().num_rows);
      row_splits.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  const int64_t num_ids = static_cast<int64_t>(ids.size());
  const RouteInput input = {tables.data(),
                            20,
                            features.data(),
                            40,
                            {row_splits.data(), ids.data(), nullptr, 200, num_ids},
                            {},
                            3};
  Fault fault;
  std::vector<SampleSums> sums, serial_sums;
  std::vector<int64_t> serial_ids(num_ids), threaded_ids(num_ids);
  const auto serial = RouteIds(input, serial_ids.data(), &serial_sums, &fault, SerialFor);
  const auto threaded =
      RouteIds(input, threaded_ids.data(), &sums, &fault, testing::ThreadedFor(4));
  for (int t = 0; t < 20; ++t) {
    CHECK_EQ(threaded[t].ids, serial[t].ids);
    CHECK_EQ(sums[t].rows, serial_sums[t].rows);
  }
  CHECK_EQ(threaded_ids, serial_ids);
}

// Two ranks, two tables, of which the second's rows travel in bfloat16.
struct Packed {
  std::vector<int64_t> counts = {2, 0, 1, 3};
  std::vector<int32_t> dims = {2, 3};
  std::vector<DataType> wire = {DataType::kFloat32, DataType::kBFloat16};
  RowParts parts = {counts.data(), dims.data(), wire.data(), 2, 2};
  std::vector<float> first = {1, 2, 3, 4, 5, 6}, second = {7, 8, 9, 10, 11, 12, 13, 14, 15};
  std::vector<int64_t> splits = std::vector<int64_t>(2);
  std::vector<float> words;

  void Pack(const std::vector<RowSlices>& slices, float scale) {
    PackedSplits(parts, splits.data());
    words.resize(splits[0] + splits[1]);
    PackRows(parts, slices.data(), scale, of_ranks().data(), testing::ThreadedFor(3));
  }

  std::vector<char*> of_ranks() { return PartsIn(parts, words.data()); }

  // [num_ranks, num_tables]
  std::vector<int64_t> Present() {
    std::vector<int64_t> present(4);
    CountPresentRows(parts, of_ranks().data(), present.data());
    return present;
  }

  void Unpack(const RowSlices* to, const ParallelFor& parallel_for) {
    UnpackRows(parts, of_ranks().data(), Present().data(), to, parallel_for);
  }
};

TEST(UnpackedRowsAreThoseThatWerePacked) {
  Packed all;
  all.Pack({{all.first.data(), DataType::kFloat32, true, nullptr, 3},
            {all.second.data(), DataType::kFloat32, true, nullptr, 3}},
           1.0f);
  // Rows and bits of rank 0: 16 + 16 bytes, and none; of rank 1: 16 + 16, and 18 and so 32 + 16.
  CHECK_EQ(all.splits, (std::vector<int64_t>{8, 20}));

  CHECK_EQ(all.Present(), (std::vector<int64_t>{2, 0, 1, 3}));
  std::vector<float> first(6), second(9);
  const RowSlices back[] = {{first.data(), DataType::kFloat32, true, nullptr, 3},
                            {second.data(), DataType::kFloat32, true, nullptr, 3}};
  all.Unpack(back, testing::ThreadedFor(3));
  CHECK_EQ(first, all.first);
  CHECK_EQ(second, all.second);
}

TEST(ATableWithoutAnyRowIsPacked) {
  Packed none;
  none.Pack({{nullptr, DataType::kFloat32, false, nullptr, 0},
             {nullptr, DataType::kFloat32, false, nullptr, 0}},
            1.0f);

  CHECK_EQ(none.Present(), (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST(RowsThatAreAbsentStaySo) {
  Packed some;
  std::vector<int64_t> first = {1, 2}, second = {1};
  some.Pack({{some.first.data(), DataType::kFloat32, false, first.data(), 2},
             {some.second.data(), DataType::kFloat32, false, second.data(), 1}},
            0.5f);

  std::vector<int64_t> first_back(2), second_back(1);
  CHECK_EQ(some.Present(), (std::vector<int64_t>{1, 0, 1, 1}));
  std::vector<float> first_rows(4), second_rows(3);
  const RowSlices back[] = {{first_rows.data(), DataType::kFloat32, false, first_back.data(), 2},
                            {second_rows.data(), DataType::kFloat32, false, second_back.data(), 1}};
  some.Unpack(back, SerialFor);
  CHECK_EQ(first_back, first);
  CHECK_EQ(second_back, second);
  CHECK_EQ(first_rows, (std::vector<float>{0.5, 1, 1.5, 2}));
  CHECK_EQ(second_rows, (std::vector<float>{3.5, 4, 4.5}));
}

TEST(RowsOfALargerArrayArePackedAndCopiedByTheirIds) {
  // Given: the rows that are packed, and a table in which they are somewhere.
  Packed rows, looked_up;
  rows.second = {7.001f, 8.003f, 9, 10, 11, 12, 13, 14.007f, 15};
  std::vector<float> first_table = {5, 6, 0, 0, 1, 2, 3, 4};
  std::vector<float> second_table = {13, 14.007f, 15, 7.001f, 8.003f, 9, 10, 11, 12};
  const std::vector<int64_t> first_ids = {2, 3, 0}, second_ids = {1, 2, 0};
  rows.Pack({{rows.first.data(), DataType::kFloat32, true, nullptr, 3},
             {rows.second.data(), DataType::kFloat32, true, nullptr, 3}},
            0.5f);

  // When: they are packed from there, and those of rank 1 copied.
  const std::vector<RowSlices> from = {
      {first_table.data(), DataType::kFloat32, true, nullptr, 3, first_ids.data()},
      {second_table.data(), DataType::kFloat32, true, nullptr, 3, second_ids.data()}};
  looked_up.Pack(from, 0.5f);
  std::vector<float> first(6), second(9), expected_first(6), expected_second(9);
  const RowSlices expected[] = {{expected_first.data(), DataType::kFloat32, true, nullptr, 3},
                                {expected_second.data(), DataType::kFloat32, true, nullptr, 3}};
  const RowSlices to[] = {{first.data(), DataType::kFloat32, true, nullptr, 3},
                          {second.data(), DataType::kFloat32, true, nullptr, 3}};
  const OwnRows own = {1, looked_up.parts, from.data(), 0.5f, looked_up.parts};
  CopyOwnRows(own, looked_up.counts.data(), to, testing::ThreadedFor(3));

  // Then: they are the same.
  CHECK_EQ(looked_up.words, rows.words);
  rows.Unpack(expected, SerialFor);
  CHECK_EQ((std::vector<float>(first.begin() + 4, first.end())),
           (std::vector<float>(expected_first.begin() + 4, expected_first.end())));
  CHECK_EQ(second, expected_second);
}

// What one rank sends and receives, by packing all of it, and with its own rows copied.
TEST(OwnRowsAreCopiedAsIfTheyHadTravelled) {
  for (const bool all : {true, false}) {
    Packed packed;
    packed.second = {7.001f, 8.003f, 9, 10, 11, 12, 13, 14.007f, 15};
    std::vector<int64_t> first = {0, 2}, second = {0, 2};
    const std::vector<RowSlices> from = {
        {packed.first.data(), DataType::kFloat32, all, first.data(), all ? 3 : 2},
        {packed.second.data(), DataType::kFloat32, all, second.data(), all ? 3 : 2}};
    packed.Pack(from, 0.5f);
    const std::vector<int64_t> expected_present = packed.Present();
    std::vector<float> first_rows(6), second_rows(9), expected_first(6), expected_second(9);
    std::vector<int64_t> indices(6), expected_indices(6);
    const RowSlices expected[] = {
        {expected_first.data(), DataType::kFloat32, all, expected_indices.data(), 3},
        {expected_second.data(), DataType::kFloat32, all, expected_indices.data() + 3, 3}};
    packed.Unpack(expected, SerialFor);

    const OwnRows own = {1, packed.parts, from.data(), 0.5f, packed.parts};
    std::vector<char*> others = packed.of_ranks();
    others[own.rank] = nullptr;
    std::vector<int64_t> present(4);
    CountPresentRows(packed.parts, others.data(), present.data());
    CountOwnRows(own, present.data() + 2);
    const RowSlices to[] = {{first_rows.data(), DataType::kFloat32, all, indices.data(), 3},
                            {second_rows.data(), DataType::kFloat32, all, indices.data() + 3, 3}};
    CopyOwnRows(own, present.data(), to, testing::ThreadedFor(3));
    UnpackRows(packed.parts, others.data(), present.data(), to, testing::ThreadedFor(3));

    CHECK_EQ(present, expected_present);
    CHECK_EQ(first_rows, expected_first);
    CHECK_EQ(second_rows, expected_second);
    CHECK_EQ(indices, expected_indices);
  }
}

// Rank 0 sends three tables' rows ahead to ranks 1 and 2: in float32, in bfloat16 and of an odd
// number of bytes. Then some change.
TEST(ChangedRowsCompleteThoseThatWereSentAhead) {
  const std::vector<int64_t> counts = {0, 0, 0, /**/ 70, 3, 33, /**/ 1, 0, 5};
  const std::vector<int32_t> dims = {2, 3, 1};
  const std::vector<DataType> wire = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  const RowParts parts = {counts.data(), dims.data(), wire.data(), 3, 3};
  const std::vector<int64_t> num_rows = {71, 3, 38};
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<float>> tables, outputs;
    std::vector<RowSlices> from, to;
    for (int t = 0; t < 3; ++t) {
      tables.emplace_back(num_rows[t] * dims[t], 1.0f);
      outputs.emplace_back(num_rows[t] * dims[t], -1.0f);
    }
    for (int t = 0; t < 3; ++t) {
      from.push_back({tables[t].data(), DataType::kFloat32, true, nullptr, num_rows[t]});
      to.push_back({outputs[t].data(), DataType::kFloat32, true, nullptr, num_rows[t]});
    }
    std::vector<float> ahead(WordsWithout(parts, 0));
    std::vector<char*> of_ranks = PartsWithout(parts, 0, ahead.data());
    CHECK_TRUE(of_ranks[0] == nullptr);
    PackRows(parts, from.data(), 1.0f, of_ranks.data(), SerialFor);
    // A bfloat16 has no bits for the last change.
    const uint32_t share = seed % 5;
    for (std::vector<float>& table : tables) {
      for (float& value : table) value = random() % 4 < share ? 2.5f : 1.0f;
    }
    tables[1][0] = 1.0001f;

    const std::vector<const char*> came(of_ranks.begin(), of_ranks.end());
    const ChangedRows changed(parts, from.data(), came.data(), testing::ThreadedFor(3));
    std::vector<std::vector<char>> messages(3);
    std::vector<char*> written(3, nullptr);
    std::vector<const char*> read(3, nullptr);
    for (int n = 1; n < 3; ++n) {
      messages[n].resize(changed.bytes(n));
      read[n] = written[n] = messages[n].data();
    }
    changed.Write(written.data(), testing::ThreadedFor(3));
    for (int n = 1; n < 3; ++n) {
      CHECK_TRUE(AreChangedRows(parts, n, read[n], changed.bytes(n)));
      CHECK_TRUE(!AreChangedRows(parts, n, read[n], changed.bytes(n) - 4));
    }
    UnpackChangedRows(parts, read.data(), came.data(), to.data(), testing::ThreadedFor(3));

    if (share == 0) CHECK_EQ(changed.bytes(1), int64_t{4 * (3 + 1 + 2)});  // the bits alone
    tables[1][0] = 1.0f;
    for (int t = 0; t < 3; ++t) CHECK_EQ(outputs[t], tables[t]);
  }
}

// Rows of 64 bytes of one table: what rank 0 asks rank 1 for are the bytes [0, 64) of its peer
// buffer, and what it asks rank 2 for the next 128; then come gradients of the rows that rank 1
// asked it for.
TEST(PeerBuffersHaveRowsAndThenGradientsOfEachRank) {
  const std::vector<int64_t> counts = {5, 1, 2, /**/ 3, 7, 0, /**/ 0, 4, 9};  // [asker, owner]

  const PeerLayout whole(counts, {64}, 3, 1.0), half(counts, {64}, 3, 0.5);

  CHECK_EQ(whole.rows_at, (std::vector<int64_t>{0, 0, 64, 0, 192, 192, 0, 0, 256}));
  CHECK_EQ(whole.gradients_at, (std::vector<int64_t>{192, 192, 384, 192, 256, 256, 256, 384, 384}));
  CHECK_EQ(whole.bytes, (std::vector<int64_t>{384, 512, 384}));
  CHECK_EQ(half.rows_at, (std::vector<int64_t>{0, 0, 32, 0, 96, 96, 0, 0, 128}));
  CHECK_EQ(half.bytes, (std::vector<int64_t>{192, 256, 192}));
}

// Each table's rows begin where a tensor may.
TEST(PartsInPeerBuffersAreAligned) {
  const std::vector<int64_t> counts = {0, 0, 3, 1, /**/ 1, 0, 0, 0};  // [asker, owner, table]

  const PeerLayout layout(counts, {12, 4}, 2, 1.0);

  CHECK_EQ(layout.rows_at, (std::vector<int64_t>{0, 0, 0, 64}));
  CHECK_EQ(layout.gradients_at, (std::vector<int64_t>{128, 128, 64, 192}));
  CHECK_EQ(layout.bytes, (std::vector<int64_t>{192, 192}));
}

}  // namespace
}  // namespace group_embedding
