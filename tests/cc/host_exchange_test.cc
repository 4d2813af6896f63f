// Ranks, here threads of one process: what each writes, and what the others read, by memory, by
// connections, and on two hosts by both.
#include "exchange/host/host_exchange.h"

#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "exchange/host/shared_memory.h"
#include "exchange/transport/free_space.h"

namespace group_embedding {
namespace {

// What a call ended with: an error, or the texts that came from all ranks, its own left out.
struct Result {
  std::string error;
  std::vector<std::string> texts;
};

const LateWarning kNoWarning = {3600, [](const std::string&) {}};

// A rank's host: all ranks of one host reach each other by memory.
using HostOf = int (*)(int rank);
constexpr HostOf kOneHost = [](int) { return 0; };
constexpr HostOf kHostOfEach = [](int rank) { return rank; };
constexpr HostOf kHostOfTwo = [](int rank) { return rank / 2; };
constexpr HostOf kHosts[] = {kOneHost, kHostOfEach, kHostOfTwo};

class Host {
 public:
  explicit Host(int num_ranks, HostOf host_of = kOneHost, const LateWarning& late = kNoWarning) {
    for (int n = 0; n < num_ranks; ++n) {
      Status status;
      ranks_.push_back(HostExchange::Make(n, num_ranks, &status));
      CHECK_OK(status);
    }
    std::vector<std::vector<int>> sockets(num_ranks, std::vector<int>(num_ranks, -1));
    for (int n = 0; n < num_ranks; ++n) {
      for (int m = 0; m < num_ranks; ++m) {
        if (n != m && host_of(n) == host_of(m)) CHECK_OK(ranks_[n]->Map(m, ranks_[m]->address()));
        if (n >= m || host_of(n) == host_of(m)) continue;
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        sockets[n][m] = pair[0], sockets[m][n] = pair[1];
      }
    }
    for (int n = 0; n < num_ranks; ++n) CHECK_OK(ranks_[n]->Join(sockets[n], late));
  }
  ~Host() {
    for (const auto& rank : ranks_) rank->End("the test is over");
  }

  HostExchange& operator[](int rank) { return *ranks_[rank]; }

  // Begins a call of `rank`, which sends a text to each rank.
  std::future<Result> Call(int rank, const std::string& name, const std::vector<std::string>& texts,
                           const std::string& description = "") {
    std::vector<int64_t> bytes;
    for (const std::string& text : texts) bytes.push_back(static_cast<int64_t>(text.size()));
    Outgoing outgoing;
    const Status prepared =
        ranks_[rank]->Prepare(name, CallDescription(description), bytes, &outgoing);
    auto result = std::make_shared<std::promise<Result>>();
    if (!prepared.ok()) {
      result->set_value({prepared.message(), {}});
      return result->get_future();
    }
    for (size_t n = 0; n < texts.size(); ++n) {
      if (static_cast<int>(n) == rank) continue;
      std::memcpy(outgoing.data(static_cast<int>(n)), texts[n].data(), texts[n].size());
    }
    ranks_[rank]->Send(std::move(outgoing),
                       [=](const Status& ended, std::shared_ptr<const Inbox> inbox) {
                         Result read = {ended.message(), {}};
                         for (size_t n = 0; inbox != nullptr && n < texts.size(); ++n) {
                           if (static_cast<int>(n) == rank) continue;
                           const int from = static_cast<int>(n);
                           read.texts.emplace_back(inbox->data(from), inbox->bytes(from));
                         }
                         result->set_value(read);
                       });
    return result->get_future();
  }

 private:
  std::vector<std::shared_ptr<HostExchange>> ranks_;
};

TEST(EachRankReadsWhatTheOthersWrote) {
  for (const HostOf host_of : kHosts) {
    Host host(3, host_of);
    auto first = host.Call(0, "rows", {"", "0 to 1", ""});
    auto second = host.Call(1, "rows", {"1 to 0", "", "1 to 2"});
    auto third = host.Call(2, "rows", {std::string(3 << 20, '2'), "2 to 1", ""});
    CHECK_EQ(first.get().texts, (std::vector<std::string>{"1 to 0", std::string(3 << 20, '2')}));
    CHECK_EQ(second.get().texts, (std::vector<std::string>{"0 to 1", "2 to 1"}));
    CHECK_EQ(third.get().texts, (std::vector<std::string>{"", "1 to 2"}));
  }
}

TEST(CallsAreMatchedByNameInWhateverOrder) {
  for (const HostOf host_of : kHosts) {
    Host host(2, host_of);
    auto a0 = host.Call(0, "a", {"", "a of 0"}), b0 = host.Call(0, "b", {"", "b of 0"});
    auto b1 = host.Call(1, "b", {"b of 1", ""}), a1 = host.Call(1, "a", {"a of 1", ""});
    CHECK_EQ(a0.get().texts[0], "a of 1");
    CHECK_EQ(b0.get().texts[0], "b of 1");
    CHECK_EQ(a1.get().texts[0], "a of 0");
    CHECK_EQ(b1.get().texts[0], "b of 0");
  }
}

TEST(RanksThatDescribeACallOtherwiseAreToldInWhat) {
  for (const HostOf host_of : kHosts) {
    Host host(3, host_of);
    auto first = host.Call(0, "mean", {"", "a", "b"}, "the mean\ntensor 0: float32 (3, 1)");
    auto second = host.Call(1, "mean", {"c", "", "d"}, "the mean\ntensor 0: float32 (1, 3)");
    auto third = host.Call(2, "mean", {"e", "f", ""}, "the mean\ntensor 0: float32 (3, 1)");
    const std::string mine = "tensor 0: float32 (3, 1)", other = "tensor 0: float32 (1, 3)";
    for (auto* rank : {&first, &third}) {
      CHECK_CONTAINS(rank->get().error, "rank 1 has " + other + " where this rank has " + mine);
    }
    CHECK_CONTAINS(second.get().error, "rank 0 has " + mine + " where this rank has " + other);
    // And the next call is one of its own.
    auto next = host.Call(0, "mean", {"", "a", ""}), of_1 = host.Call(1, "mean", {"b", "", ""}),
         of_2 = host.Call(2, "mean", {"", "", ""});
    CHECK_EQ(next.get().texts[0], "b");
    CHECK_OK(of_1.get().error + of_2.get().error);
  }
}

TEST(CallsThatAreUnderWayAreListed) {
  for (const HostOf host_of : kHosts) {
    Host host(2, host_of);
    auto rows = host.Call(0, "rows", {"", "a"}, "the rows of table 'user'");
    CHECK_EQ(host[0].Waiting().size(), size_t{1});
    CHECK_EQ(host[0].Waiting()[0].key, "rows");
    CHECK_EQ(host[0].Waiting()[0].description, "the rows of table 'user'");
    CHECK_EQ(host[1].Waiting().size(), size_t{0});  // its rank has not made the call
    host.Call(1, "rows", {"b", ""}, "the rows of table 'user'").get();
    rows.get();
    CHECK_EQ(host[0].Waiting().size(), size_t{0});
  }
}

TEST(ManyCallsOnManyThreadsKeepTheirOrder) {
  for (const HostOf host_of : kHosts) {
    constexpr int kRanks = 3, kNames = 4, kCalls = 500;
    Host host(kRanks, host_of);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int name = 0; name < kNames; ++name) {
        threads.emplace_back([&host, &wrong, rank, name] {
          std::mt19937 random(rank * kNames + name);
          for (int call = 0; call < kCalls; ++call) {
            const std::string text = std::to_string(call) + std::string(random() % 5000, ' ');
            const std::vector<std::string> texts(kRanks, text);
            const Result result = host.Call(rank, std::to_string(name), texts).get();
            bool is_right = result.texts.size() == kRanks - 1;
            for (const std::string& came : result.texts) is_right &= std::stoi(came) == call;
            wrong += !is_right;
          }
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
  }
}

TEST(WhoEndsEndsTheCallsThatWaitForIt) {
  for (const HostOf host_of : kHosts) {
    Host host(3, host_of);
    auto waits = host.Call(0, "rows", {"", "", ""});
    auto own = host.Call(1, "rows", {"", "", ""});
    host[1].End("rank 2 died");
    CHECK_EQ(own.get().error, "the exchange has ended: rank 2 died");
    host[2].End("this process ends");
    CHECK_EQ(waits.get().error,
             "the exchange has ended: rank 2 takes part no more: this process ends");
    CHECK_EQ(host.Call(1, "more", {"", "", ""}).get().error, "the exchange has ended: rank 2 died");
  }
}

TEST(WhatARankSentBeforeItEndedIsRead) {
  for (const HostOf host_of : kHosts) {
    Host host(2, host_of);
    auto last = host.Call(1, "rows", {"the last", ""});
    host[1].End("this process ends");
    CHECK_EQ(host.Call(0, "rows", {"", ""}).get().texts[0], "the last");
    CHECK_EQ(host.Call(0, "rows", {"", ""}).get().error,
             "the exchange has ended: rank 1 takes part no more: this process ends");
  }
}

TEST(WhoWaitsLongIsToldForWhomOnceACall) {
  std::promise<std::string> told;
  std::atomic<int> times(0);
  Host host(3, kHostOfTwo, {0.2, [&](const std::string& warning) {
                              if (times++ == 0) told.set_value(warning);
                            }});
  auto late = host.Call(0, "rows", {"", "", ""});
  auto in_time = host.Call(2, "rows", {"", "", ""});
  const std::string warning = told.get_future().get();
  CHECK_CONTAINS(warning, "s in 'rows' for these ranks, which live but have not come there: 1;");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  host.Call(1, "rows", {"", "", ""});
  CHECK_OK(late.get().error);
  CHECK_OK(in_time.get().error);
  CHECK_EQ(times.load(), 2);  // one for each that waited
}

TEST(ASecondCallOfANameIsRefusedWhileOneIsUnderWay) {
  for (const HostOf host_of : kHosts) {
    Host host(2, host_of);
    auto first = host.Call(0, "rows", {"", "first"});
    CHECK_CONTAINS(host.Call(0, "rows", {"", "second"}).get().error,
                   "'rows': expected calls of one");
    auto other = host.Call(1, "rows", {"", ""});
    CHECK_EQ(other.get().texts[0], "first");
    CHECK_OK(first.get().error);
  }
}

TEST(MoreThanTheMemoryHoldsIsRefused) {
  for (const HostOf host_of : kHosts) {
    Host host(2, host_of);
    Outgoing outgoing;
    CHECK_CONTAINS(host[0].Prepare("rows", CallDescription(), {0, int64_t{1} << 40}, &outgoing),
                   "use smaller batches");
  }
}

TEST(AFileThatIsNoMemoryOfARankIsRefused) {
  Status status;
  const auto rank = HostExchange::Make(0, 2, &status);
  CHECK_CONTAINS(rank->Map(1, rank->address() + "1"), "rank 1: /proc/");
  CHECK_CONTAINS(rank->Map(1, "/proc/self/fd/nothing 1"), "No such file");
  CHECK_CONTAINS(rank->Join({-1, -1}, kNoWarning), "rank 1: expected a connection, or memory that");
  CHECK_CONTAINS(rank->Join({-1}, kNoWarning), "for each of 2 ranks, got 1");
}

TEST(MemoryThatIsGivenBackIsZeros) {
  Status status;
  const auto memory = SharedMemory::Make(&status);
  const auto other = SharedMemory::Map(memory->address(), &status);
  std::memset(memory->data() + 4096, 1, 3 * 4096);
  memory->GiveBack(4096 + 100, 2 * 4096);  // one whole page is in it
  CHECK_EQ(int{other->data()[2 * 4096 - 1]}, 1);
  CHECK_EQ(int{other->data()[2 * 4096]}, 0);
  CHECK_EQ(int{other->data()[3 * 4096 - 1]}, 0);
  CHECK_EQ(int{other->data()[3 * 4096]}, 1);
}

TEST(FreeSpaceIsUsedAgainAndGrowsTogether) {
  FreeSpace space(64, 64 + 4 * 64);
  const int64_t a = space.Take(1), b = space.Take(64), c = space.Take(100);
  CHECK_EQ(std::vector<int64_t>({a, b, c}), (std::vector<int64_t>{64, 128, 192}));
  CHECK_EQ(space.Take(1), int64_t{-1});
  CHECK_EQ(space.Give(a), int64_t{64});
  CHECK_EQ(space.Give(c), int64_t{128});
  CHECK_EQ(space.Take(129), int64_t{-1});
  CHECK_EQ(space.Give(b), int64_t{64});
  CHECK_EQ(space.Take(4 * 64), int64_t{64});
}

}  // namespace
}  // namespace group_embedding
