// What other ranks send is read within its bounds, whatever it is: messages, packed rows and
// messages whose words are changed at random, under the sanitizers too.
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "exchange/host/changed_rows.h"
#include "exchange/host/host_exchange.h"
#include "exchange/host/messages.h"
#include "exchange/host/pack_rows.h"
#include "exchange/host/shared_memory.h"

namespace group_embedding {
namespace {

constexpr int kSeeds = 20000;

int64_t DrawWord(std::mt19937_64* random) {
  static const int64_t kWords[] = {INT64_MIN,
                                   -(int64_t{1} << 62),
                                   -1,
                                   0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   64,
                                   int64_t{1} << 31,
                                   int64_t{1} << 32,
                                   int64_t{1} << 61,
                                   int64_t{1} << 62,
                                   INT64_MAX};
  return kWords[(*random)() % (sizeof(kWords) / sizeof(kWords[0]))];
}

void ChangeSome(std::mt19937_64* random, std::vector<int64_t>* words) {
  for (int n = 1 + (*random)() % 3; n > 0 && !words->empty(); --n) {
    (*words)[(*random)() % words->size()] = DrawWord(random);
  }
}

// Two tables, the second of which has keys; what two ranks ask for.
Messages TwoMessages(const Description& description) {
  const std::vector<TableRequest> tables = {{{1, 2, 0}, {}, {0, 2, 3}},
                                            {{77, 78}, {5, 6}, {0, 1, 2}}};
  return WriteMessages(tables, Fault(), description, /*with_description=*/true, 2);
}

TEST(MessagesOfAnyWordsAreReadWithinTheirBounds) {
  // Given two messages, some of whose words, or the end, are changed
  const Description description = {"a table of rows and one of keys", {false, true}};
  const Messages good = TwoMessages(description);
  int num_read = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> words = good.words, splits = good.splits;
    if (random() % 4 != 0) ChangeSome(&random, &words);
    if (random() % 2 == 0) {
      splits[1] = random() % (splits[1] + 1);
      words.resize(splits[0] + splits[1]);
    }
    // When they are read, from memory that ends with them
    const std::vector<int64_t> exact(words);
    const Requests requests = ReadMessages(exact.data(), splits.data(), 2, description);
    if (!requests.error.empty()) continue;
    // Then there are as many numbers as was said, and none that nobody may say
    ++num_read;
    for (int t = 0; t < 2; ++t) {
      const int64_t count = requests.counts[t] + requests.counts[2 + t];
      CHECK_EQ(static_cast<int64_t>(requests.ids[t].size()), count);
      CHECK_EQ(static_cast<int64_t>(requests.times[t].size()), t == 0 ? 0 : count);
    }
    for (const int64_t times : requests.times[1]) CHECK_TRUE(times >= 1 && times <= kMaxTimes);
    CHECK_TRUE(requests.fault.kind <= FaultKind::kWeightRowsDiffer);
  }
  CHECK_TRUE(num_read > kSeeds / 50 && num_read < kSeeds / 2);
}

TEST(RowsThatClaimToBePresentAreOnlyThoseThereAre) {
  // Given rows of two tables for two ranks, packed, and bits of presence beyond the rows
  const std::vector<int64_t> counts = {1, 33, 2, 5};
  const std::vector<int32_t> dims = {3, 2};
  const std::vector<DataType> wire = {DataType::kFloat32, DataType::kFloat16};
  const RowParts parts = {counts.data(), dims.data(), wire.data(), 2, 2};
  std::vector<int64_t> splits(2);
  PackedSplits(parts, splits.data());
  for (int seed = 0; seed < kSeeds / 10; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> packed(splits[0] + splits[1]);
    for (uint32_t& word : packed) word = random();
    const std::vector<char*> of_ranks = PartsIn(parts, packed.data());
    // When they are unpacked into as many rows as are counted
    std::vector<int64_t> present(4);
    CountPresentRows(parts, of_ranks.data(), present.data());
    std::vector<std::vector<float>> rows(2);
    std::vector<std::vector<int64_t>> indices(2);
    std::vector<RowSlices> slices;
    for (int t = 0; t < 2; ++t) {
      const int64_t num_rows = present[t] + present[2 + t];
      CHECK_TRUE(num_rows <= counts[t] + counts[2 + t]);
      rows[t].assign(num_rows * dims[t], -1.0f);
      indices[t].assign(num_rows, -1);
      slices.push_back(
          {rows[t].data(), DataType::kFloat32, /*all=*/false, indices[t].data(), num_rows});
    }
    UnpackRows(parts, of_ranks.data(), present.data(), slices.data(), SerialFor);
    // Then each of them has been written
    for (const auto& of_table : indices) {
      for (const int64_t index : of_table) CHECK_TRUE(index >= 0);
    }
  }
}

TEST(ChangedRowsOfAnyBitsAreReadWithinTheirBounds) {
  // Given messages of changed rows, whose bits are drawn, and often their length, too
  const std::vector<int64_t> counts = {40, 0, 3, 33};
  const std::vector<int32_t> dims = {3, 5};
  const std::vector<DataType> wire = {DataType::kFloat32, DataType::kFloat16};
  const RowParts parts = {counts.data(), dims.data(), wire.data(), 2, 2};
  std::vector<float> ahead(WordsWithout(parts, -1), 1.0f);
  const std::vector<char*> came = PartsIn(parts, ahead.data());
  std::vector<float> first(43 * 3), second(33 * 5);
  const RowSlices to[] = {{first.data(), DataType::kFloat32, true, nullptr, 43},
                          {second.data(), DataType::kFloat32, true, nullptr, 33}};
  int num_read = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<uint32_t>> messages;
    for (int n = 0; n < 2; ++n) {
      messages.emplace_back(random() % 4 == 0 ? random() % 200 : 200);
      for (uint32_t& word : messages[n]) word = random() & random();
    }
    // When those are unpacked that have as many bytes as their bits say
    std::vector<const char*> read(2, nullptr);
    for (int n = 0; n < 2; ++n) {
      const char* message = reinterpret_cast<const char*>(messages[n].data());
      const int64_t words = static_cast<int64_t>(messages[n].size());
      for (int64_t bytes = 0; bytes <= 4 * words; bytes += 4) {
        if (AreChangedRows(parts, n, message, bytes)) {
          messages[n].resize(bytes / 4);
          messages[n].shrink_to_fit();
          read[n] = reinterpret_cast<const char*>(messages[n].data());
          ++num_read;
          break;
        }
      }
    }
    // Then nothing outside of them is read
    UnpackChangedRows(parts, read.data(), std::vector<const char*>(came.begin(), came.end()).data(),
                      to, SerialFor);
  }
  CHECK_TRUE(num_read > kSeeds / 2);
}

// Rank 1 as a program that has rank 0's address, and its own memory to write what it likes into.
struct HostilePeer {
  std::shared_ptr<HostExchange> rank;
  std::unique_ptr<SharedMemory> memory;

  HostilePeer() {
    Status status;
    rank = HostExchange::Make(0, 2, &status);
    memory = SharedMemory::Make(&status);
    CHECK_OK(rank->Map(1, memory->address()));
    CHECK_OK(rank->Join({-1, -1}, {3600, [](const std::string&) {}}));
  }
  ~HostilePeer() { rank->End("the test is over"); }

  // The offsets of the newest messages to each rank, from byte 32 of the board on.
  int64_t* newest() const {
    return reinterpret_cast<int64_t*>(memory->data() + SharedMemory::kReserved + 32);
  }
  // The first words of a message: next, bytes, name_bytes.
  int64_t* message(int64_t place) const {
    return reinterpret_cast<int64_t*>(memory->data() + place);
  }

  std::string Call() const {
    Outgoing outgoing;
    CHECK_OK(rank->Prepare("rows", CallDescription(), {0, 8}, &outgoing));
    std::promise<std::string> result;
    rank->Send(std::move(outgoing), [&](const Status& ended, std::shared_ptr<const Inbox> inbox) {
      result.set_value(inbox == nullptr
                           ? ended.message()
                           : std::string(inbox->data(1), std::min<int64_t>(inbox->bytes(1), 8)));
    });
    return result.get_future().get();
  }
};

TEST(AMessageThatLiesElsewhereEndsTheExchange) {
  constexpr int64_t kPlace = 1 << 20;
  const int64_t kCases[][4] = {
      // place, next, bytes, name_bytes
      {-64, 0, 0, 4},         {SharedMemory::kBytes, 0, 0, 4},
      {kPlace + 8, 0, 0, 4},  {kPlace, INT64_MIN, 0, 4},
      {kPlace, kPlace, 0, 4},  // for ever
      {kPlace, 0, -1, 4},     {kPlace, 0, SharedMemory::kBytes, 4},
      {kPlace, 0, 8, -1},     {kPlace, 0, 8, INT64_MAX},
  };
  for (const auto& [place, next, bytes, name_bytes] : kCases) {
    // Given another rank whose newest message is none
    HostilePeer peer;
    if (place % 8 == 0 && place > 0 && place < SharedMemory::kBytes) {
      const int64_t words[] = {next, bytes, name_bytes};
      std::memcpy(peer.message(place), words, sizeof(words));
    }
    peer.newest()[0] = place;
    // When this rank waits for it
    // Then the call ends with a sentence that names it
    CHECK_CONTAINS(peer.Call(), "expected messages of rank 1, got something else");
    CHECK_CONTAINS(peer.Call(), "the exchange has ended");
  }
}

TEST(AMessageWrittenByHandIsReadAsAnyOther) {
  // Given another rank's message, such as those above but right
  HostilePeer peer;
  constexpr int64_t kPlace = 1 << 20;
  // next, bytes, name_bytes, digest, text_at, text_bytes, is_read
  const int64_t words[] = {0, 8, 4, static_cast<int64_t>(CallDescription().digest), 0, 0, 0};
  std::memcpy(peer.message(kPlace), words, sizeof(words));
  std::memcpy(peer.memory->data() + kPlace + sizeof(words), "rows", 4);
  std::memcpy(peer.memory->data() + kPlace + 64, "it's me!", 8);
  peer.newest()[0] = kPlace;
  // When this rank makes the call, Then it reads the message
  CHECK_EQ(peer.Call(), "it's me!");
}

}  // namespace
}  // namespace group_embedding
