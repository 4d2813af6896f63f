// A rank on another host, here the end of a connection that a test reads and writes by hand.
#include "exchange/host/message_network.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace group_embedding {
namespace {

constexpr uint64_t kMagic = 0x31303067736D4547;
constexpr int64_t kEnd = -1;

struct Frame {
  uint64_t magic = kMagic, digest = 7;
  int64_t bytes = 0, name_bytes = 0, text_bytes = 0;
};

std::string BytesOf(const Frame& frame, const std::string& body = "") {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + body;
}

// A message as rank 1 sends it: the name, the description and the data.
std::string MessageOf(const std::string& name, const std::string& text, const std::string& data) {
  Frame frame;
  frame.bytes = static_cast<int64_t>(data.size());
  frame.name_bytes = static_cast<int64_t>(name.size());
  frame.text_bytes = static_cast<int64_t>(text.size());
  return BytesOf(frame, name + text + data);
}

// The network of rank 0, and rank 1's end of the connection.
class Pair {
 public:
  Pair() {
    int sockets[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    other_ = sockets[1];
    network_ = std::make_unique<MessageNetwork>(std::vector<int>{-1, sockets[0]}, [this] {
      std::lock_guard<std::mutex> lock(mutex_);
      ++num_wakes_;
      is_woken_.notify_all();
    });
  }
  ~Pair() {
    network_ = nullptr;
    Hang();
  }

  MessageNetwork& network() { return *network_; }

  void Say(const std::string& bytes) {
    size_t said = 0;
    while (said < bytes.size()) {
      const ssize_t more = send(other_, bytes.data() + said, bytes.size() - said, MSG_NOSIGNAL);
      if (more <= 0) return;  // the network has closed the connection
      said += static_cast<size_t>(more);
    }
  }

  std::string Hear(size_t bytes) {
    std::string heard(bytes, '\0');
    size_t at = 0;
    while (at < bytes) {
      const ssize_t more = recv(other_, heard.data() + at, bytes - at, 0);
      if (more <= 0) return heard.substr(0, at);
      at += static_cast<size_t>(more);
    }
    return heard;
  }

  void Hang() {
    if (other_ >= 0) close(other_);
    other_ = -1;
  }

  // Waits for messages, or an end. False: something else was received.
  bool Take(size_t num_messages, std::vector<MessagePtr>* messages) {
    for (int seen = 0;;) {
      const bool has_ended = network_->HasEnded(1);
      std::vector<MessagePtr> more;
      if (!network_->TakePosted(1, &more)) return false;
      for (MessagePtr& message : more) messages->push_back(std::move(message));
      if (messages->size() >= num_messages || has_ended) return true;
      std::unique_lock<std::mutex> lock(mutex_);
      is_woken_.wait(lock, [&] { return num_wakes_ > seen; });
      seen = num_wakes_;
    }
  }

 private:
  int other_;
  std::mutex mutex_;
  std::condition_variable is_woken_;
  int num_wakes_ = 0;
  std::unique_ptr<MessageNetwork> network_;
};

void PostText(MessageNetwork* network, const std::string& name, const std::string& description,
              const std::string& data) {
  const CallDescription call(description);
  MessagePtr message = network->NewMessage(name, call, static_cast<int64_t>(data.size()));
  std::memcpy(message->data(), data.data(), data.size());
  network->Post(1, std::move(message), call);
}

TEST(AMessageIsSentWithItsDescriptionTheFirstTimeAlone) {
  Pair pair;
  PostText(&pair.network(), "rows", "the rows of table 'user'", "first");
  PostText(&pair.network(), "rows", "the rows of table 'user'", "second");
  Frame frame;
  frame.digest = CallDescription("the rows of table 'user'").digest;
  frame.bytes = 5, frame.name_bytes = 4, frame.text_bytes = 24;
  const std::string first = BytesOf(frame, "rowsthe rows of table 'user'first");
  CHECK_EQ(pair.Hear(first.size()), first);
  frame.bytes = 6, frame.text_bytes = 0;
  const std::string second = BytesOf(frame, "rowssecond");
  CHECK_EQ(pair.Hear(second.size()), second);
}

TEST(AMessageInPiecesOfAnySizeIsRead) {
  Pair pair;
  std::mt19937 random(3);
  std::string bytes = MessageOf("a", "what a does", std::string(100000, 'x'));
  bytes += MessageOf("b", "", "") + MessageOf("", "", "y");
  std::thread says([&] {
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + random() % 5000;
      pair.Say(bytes.substr(at, size));
      at += size;
    }
  });
  std::vector<MessagePtr> messages;
  CHECK_TRUE(pair.Take(3, &messages));
  says.join();
  CHECK_EQ(std::string(messages[0]->data(), messages[0]->bytes), std::string(100000, 'x'));
  CHECK_EQ(pair.network().DescriptionOf(1, *messages[0]), "what a does");
  CHECK_EQ(std::string(messages[1]->name(), messages[1]->name_bytes), "b");
  CHECK_EQ(messages[1]->bytes, int64_t{0});
  CHECK_EQ(std::string(messages[2]->data(), messages[2]->bytes), "y");
}

TEST(MoreThanASocketTakesIsWrittenOnceItIsRead) {
  Pair pair;
  const std::string large(20 << 20, 'z');
  PostText(&pair.network(), "", "", large);
  PostText(&pair.network(), "", "", "behind it");
  CHECK_EQ(pair.Hear(sizeof(Frame) + large.size()).substr(sizeof(Frame)), large);
  CHECK_EQ(pair.Hear(sizeof(Frame) + 9).substr(sizeof(Frame)), "behind it");
  const auto begin = std::chrono::steady_clock::now();
  pair.network().WaitUntilReceived(60);
  CHECK_TRUE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST(WaitingForARankThatReadsNothingEnds) {
  Pair pair;
  PostText(&pair.network(), "", "", std::string(20 << 20, 'z'));
  const auto begin = std::chrono::steady_clock::now();
  pair.network().WaitUntilReceived(0.3);
  CHECK_TRUE(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300));
  pair.Hang();
  pair.network().WaitUntilReceived(60);  // for none that has gone
}

TEST(WhatWasSentBeforeAnEndIsRead) {
  Pair pair;
  Frame end;
  end.bytes = kEnd, end.text_bytes = 18;
  pair.Say(MessageOf("a", "", "the last") + BytesOf(end, "this process ends."));
  pair.Hang();
  std::vector<MessagePtr> messages;
  CHECK_TRUE(pair.Take(1, &messages));
  CHECK_EQ(std::string(messages[0]->data(), messages[0]->bytes), "the last");
  CHECK_TRUE(pair.Take(2, &messages));  // until the end
  CHECK_TRUE(pair.network().HasEnded(1));
  CHECK_EQ(pair.network().ReasonOf(1), ": this process ends.");
}

TEST(AConnectionThatClosesIsAnEnd) {
  Pair pair;
  pair.Say(MessageOf("a", "", "whole") + MessageOf("b", "", "cut").substr(0, 41));
  pair.Hang();
  std::vector<MessagePtr> messages;
  CHECK_TRUE(pair.Take(2, &messages));
  CHECK_EQ(messages.size(), size_t{1});
  CHECK_EQ(pair.network().ReasonOf(1), ": its connection closed");
  PostText(&pair.network(), "", "", "for nobody");
  pair.network().SetEnded("this process ends");
  pair.network().WaitUntilReceived(60);
}

TEST(AnEndIsSentBehindTheMessages) {
  Pair pair;
  PostText(&pair.network(), "", "", "last");
  pair.network().SetEnded("it is done");
  Frame frame;
  frame.digest = CallDescription("").digest, frame.bytes = 4;
  Frame end;
  end.digest = 0, end.bytes = kEnd, end.text_bytes = 10;
  const std::string all = BytesOf(frame, "last") + BytesOf(end, "it is done");
  CHECK_EQ(pair.Hear(all.size()), all);
}

TEST(FramesThatCannotBeEndTheConnection) {
  for (int c = 0; c < 8; ++c) {
    // Given a rank of another version, or one that sends anything
    Frame frame;
    if (c == 0) frame.magic = kMagic + 1;
    if (c == 1) frame.bytes = INT64_MIN;
    if (c == 2) frame.bytes = INT64_MAX;
    if (c == 3) frame.name_bytes = -1;
    if (c == 4) frame.name_bytes = int64_t{1} << 40;
    if (c == 5) frame.text_bytes = -1;
    if (c == 6) frame.text_bytes = INT64_MAX;
    if (c == 7) frame.bytes = kEnd, frame.name_bytes = 1;
    Pair pair;
    // When its frame comes
    pair.Say(BytesOf(frame));
    // Then it is refused, and the connection ends
    std::vector<MessagePtr> messages;
    CHECK_TRUE(!pair.Take(1, &messages));
    CHECK_TRUE(pair.Hear(1).empty());
  }
}

TEST(FramesOfAnyWordsAreReadWithinTheirBounds) {
  static const int64_t kWords[] = {INT64_MIN, -2, -1, 0, 1, 5, 63, 64, 4096, INT64_MAX};
  for (int seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = MessageOf("rows", "their description", "some data");
    bytes += bytes;
    for (int n = random() % 3; n >= 0; --n) {
      const int64_t word = kWords[random() % (sizeof(kWords) / sizeof(kWords[0]))];
      std::memcpy(bytes.data() + random() % (bytes.size() / 8) * 8, &word, sizeof(word));
    }
    Pair pair;
    pair.Say(bytes);
    pair.Hang();
    std::vector<MessagePtr> messages;
    if (!pair.Take(100, &messages)) continue;
    for (const MessagePtr& message : messages) CHECK_TRUE(message->bytes >= 0);
  }
}

}  // namespace
}  // namespace group_embedding
