// MessageNetwork: messages between ranks of different hosts, over one TCP connection for each pair
// of ranks. A message is sent as
//
//   | Frame | name of the call | its description, the first time | data |
//
// Waiting: no method but WaitUntilReceived waits. The network's own thread writes what was posted,
// and reads received bytes straight into messages; it sleeps while nothing moves.
//
// Thread safety: any thread may call WaitUntilReceived at any time. HostExchange calls all other
// methods with its lock held.
//
// Errors: another rank may send anything. A frame that cannot be one ends its connection, and
// TakePosted is false. A connection that closes or fails is the end of its rank. A rank that hangs,
// or a link that is cut, is left to the watch over ranks (group_embedding/ranks/exchange/liveness).
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "exchange/host/message.h"

namespace group_embedding {

class MessageNetwork : public MessageTransport {
 public:
  // Takes over connected sockets, [num_ranks] of which -1: not by this network. wake: called by the
  // network's thread after messages and ends.
  MessageNetwork(const std::vector<int>& sockets, std::function<void()> wake);
  ~MessageNetwork() override;  // closes the connections

  MessagePtr NewMessage(const std::string& name, const CallDescription& description,
                        int64_t bytes) override;
  void Post(int to, MessagePtr message, const CallDescription& description) override;
  bool TakePosted(int from, std::vector<MessagePtr>* messages) override;
  std::string DescriptionOf(int from, const Message& message) override;
  void SetEnded(const std::string& reason) override;
  bool HasEnded(int from) override;
  std::string ReasonOf(int from) override;

  // Waits until the other hosts have received all that was posted, for `most_seconds` at most.
  // Connections that have ended are not waited for.
  void WaitUntilReceived(double most_seconds);

 private:
  // What comes before each message.
  struct Frame {
    uint64_t magic;   // kMagic: of this version
    uint64_t digest;  // of the call's description
    int64_t bytes;    // of the data; kEnd: the sender ends, and the text is why
    int64_t name_bytes, text_bytes;
  };
  static constexpr uint64_t kMagic = 0x31303067736D4547;  // "GEmsg001"
  static constexpr int64_t kEnd = -1;
  static constexpr int64_t kMaxBytes = int64_t{1} << 36;
  static constexpr int64_t kMaxTextBytes = int64_t{1} << 24;
  static constexpr size_t kMaxTexts = size_t{1} << 16, kMaxMessages = size_t{1} << 20;

  // Bytes in up to four places that are read or written one after the other.
  class Places {
   public:
    void Add(void* data, int64_t bytes);
    void Clear() { begin_ = end_ = 0; }
    bool IsDone() const { return begin_ == end_; }
    // Reads or writes what the socket takes without waiting. False: the connection has ended.
    bool Read(int socket);
    bool Write(int socket);

   private:
    void Advance(size_t bytes);
    msghdr Header();

    std::array<iovec, 4> places_;
    size_t begin_ = 0, end_ = 0;
  };

  struct Outgoing {
    Frame frame;
    MessagePtr message;                       // null: an end
    std::shared_ptr<const std::string> text;  // null: none
  };

  struct Connection {
    int socket = -1;  // -1: none
    // For the network's thread alone:
    std::deque<Outgoing> writing;  // the first one is under way
    Places to_write;
    bool waits_for_space = false;  // whether epoll reports that the socket takes more
    Frame frame;
    bool has_frame = false;
    MessagePtr message;
    std::string text;
    Places to_read;
    // Guarded by `mutex_`:
    std::deque<Outgoing> posted;
    std::unordered_set<uint64_t> sent_texts;  // digests
    std::vector<MessagePtr> received;
    std::unordered_map<uint64_t, std::string> texts;  // by digest
    std::string reason;
    bool has_ended = false, is_closed = false, is_wrong = false;
  };

  void Run();
  void TakeNewlyPosted();
  void Write(Connection* connection);
  void Read(Connection* connection);
  bool BeginBody(Connection* connection);
  void EndBody(Connection* connection);
  void Close(Connection* connection, const std::string& reason);
  void ReportSpace(Connection* connection, bool wanted);
  void Wake();  // the network's thread
  bool IsAllReceived();

  const std::function<void()> wake_;
  int epoll_ = -1, event_ = -1;
  std::mutex mutex_;
  std::vector<Connection> connections_;  // [num_ranks]
  bool is_over_ = false;
  std::atomic<int64_t> num_unsent_{0};  // messages and ends that were posted and not yet written
  std::thread thread_;
};

}  // namespace group_embedding
