// HostExchange: sends messages between the ranks of one host. Each rank writes messages into shared
// memory of its own, and the other ranks read them there without a copy.
//
//   rank 0 ── message to rank 1, named "rows" ──> rank 0's memory ... read by rank 1, then freed
//
// Thread safety: after Join, any thread may call any method at any time.
//
// Order: calls are matched by name. All ranks make the same calls of a name, one after the other:
// the next begins once the last has ended. Calls of different names may run together, begun in any
// order.
//
// Waiting: no method waits. A call ends once all ranks have made it. `done` is then called once, by
// the thread that finds out: a thread in Send or End, or the exchange's own. It must return
// quickly. The exchange's thread sleeps while nothing arrives. It warns, once per call, of a rank
// that is late.
//
// Errors: a call ends with an error sentence if this rank called End, if another rank has ended
// without making the call or describes it differently, if its memory does not hold a message, or if
// a call of the same name is running. The exchange does not notice a rank that died, hangs, or
// waits in another call. The watch over ranks (group_embedding/ranks/exchange/liveness) does: it
// reads Waiting and calls End. The memory is freed when all processes have ended, killed ones
// included.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "exchange/host/call_description.h"
#include "exchange/host/message_memory.h"
#include "exchange/host/pending_calls.h"

namespace group_embedding {

// The messages that a rank sends in one call: one per rank, null for itself.
struct Outgoing {
  std::string name;
  CallDescription description;
  std::vector<Message*> messages;

  char* data(int rank) const;  // [bytes]
};

class HostExchange;

// The exchange's thread calls `warn` with a sentence once a call has waited for other ranks for
// `seconds` to twice as many seconds.
struct LateWarning {
  double seconds;
  std::function<void(const std::string&)> warn;
};

// The messages that a rank received in one call. They stay in their senders' memory until the Inbox
// is destroyed.
class Inbox {
 public:
  Inbox(std::shared_ptr<const HostExchange> exchange, std::vector<Message*> messages)
      : exchange_(std::move(exchange)), messages_(std::move(messages)) {}
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  const char* data(int rank) const;  // null for this rank
  int64_t bytes(int rank) const;

 private:
  const std::shared_ptr<const HostExchange> exchange_;  // keeps the memory mapped
  const std::vector<Message*> messages_;
};

class HostExchange : public std::enable_shared_from_this<HostExchange> {
 public:
  // inbox: null if there is an error.
  using Done = std::function<void(const Status& error, std::shared_ptr<const Inbox> inbox)>;

  // Makes this rank's memory. Null on an error; *error says which.
  static std::shared_ptr<HostExchange> Make(int rank, int num_ranks, Status* error);

  // This rank's address, for the other ranks' Join.
  const std::string& address() const { return memory_->address(); }
  // Opens the memory of all ranks; called once. On success the exchange's thread runs, and keeps
  // the object alive until End.
  Status Join(const std::vector<std::string>& addresses, LateWarning late);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Allocates a message of bytes[n] bytes for each other rank n.
  // On success the caller fills `outgoing`, and then calls Send or Discard.
  Status Prepare(const std::string& name, const CallDescription& description,
                 const std::vector<int64_t>& bytes, Outgoing* outgoing);
  // Makes the call.
  void Send(const Outgoing& outgoing, Done done);
  // Frees prepared messages without sending them.
  static void Discard(const Outgoing& outgoing);

  // Ends this rank's part: running and future calls end with the error `reason`, and calls of other
  // ranks that wait for this rank end as well.
  void End(const std::string& reason);

  // The calls that wait for other ranks.
  std::vector<PendingCall> Waiting();

 private:
  // The calls of one name: messages that have arrived from each rank, and the waiting call, if any.
  struct Call {
    std::vector<std::deque<Message*>> arrived;
    Done done;
    CallDescription description;
    std::chrono::steady_clock::time_point begin;
    bool is_late = false;  // a warning was given
  };

  struct Ended {
    Done done;
    Status error;
    std::shared_ptr<const Inbox> inbox;
  };

  HostExchange(int rank, int num_ranks, std::unique_ptr<MessageMemory> memory)
      : rank_(rank),
        num_ranks_(num_ranks),
        memory_(std::move(memory)),
        has_ended_(static_cast<size_t>(num_ranks)) {}
  void Listen(const LateWarning& late);

  // With the lock held.
  void Collect();
  std::vector<Ended> FindEnded();
  bool HasEnded(Call* call, Ended* ended);
  // How the first rank with another description of a complete call differs; empty: none does.
  std::string DifferenceIn(const Call& call) const;
  // Warnings for calls that have waited longer than `seconds`, once per call.
  std::vector<std::string> FindLate(double seconds);

  const int rank_, num_ranks_;
  const std::unique_ptr<MessageMemory> memory_;  // says which of its methods need the lock
  std::mutex mutex_;                             // guards all members below
  std::unordered_map<std::string, Call> calls_;
  std::vector<bool> has_ended_;  // [num_ranks] whether a rank has
  std::string end_;              // why this rank has; empty: it has not
};

}  // namespace group_embedding
