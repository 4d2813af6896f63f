// HostExchange: sends messages between the ranks of a job, from host memory to host memory. A rank
// writes messages for ranks of its own host into shared memory, where they read them without a
// copy; those for ranks of other hosts travel over TCP.
//
//   rank 0 ── message to rank 1, named "rows" ──> rank 0's memory ... read by rank 1, then freed
//          ── message to rank 2, named "rows" ──> connection to rank 2's host
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
// included, and so are connections closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "exchange/host/call_description.h"
#include "exchange/host/message_memory.h"
#include "exchange/host/message_network.h"
#include "exchange/host/pending_calls.h"

namespace group_embedding {

// The messages that a rank sends in one call: one per rank, null for itself.
struct Outgoing {
  std::string name;
  CallDescription description;
  std::vector<MessagePtr> messages;

  char* data(int rank) const { return messages[rank]->data(); }  // [bytes]
};

class HostExchange;

// The exchange's thread calls `warn` with a sentence once a call has waited for other ranks for
// `seconds` to twice as many seconds.
struct LateWarning {
  double seconds;
  std::function<void(const std::string&)> warn;
};

// The messages that a rank received in one call. They stay, also in their senders' memory, until
// the Inbox is destroyed.
class Inbox {
 public:
  Inbox(std::shared_ptr<const HostExchange> exchange, std::vector<MessagePtr> messages)
      : exchange_(std::move(exchange)), messages_(std::move(messages)) {}

  const char* data(int rank) const;  // null for this rank
  int64_t bytes(int rank) const;
  std::string NameOf(int rank) const;  // see HostExchange

 private:
  const std::shared_ptr<const HostExchange> exchange_;  // keeps the memory mapped
  const std::vector<MessagePtr> messages_;
};

// What a rank has sent, and how long its calls waited for others, since it joined.
struct ExchangeUse {
  std::vector<int64_t> sent_bytes;  // [num_ranks], to each rank
  double wait_seconds = 0;          // from when a call was made until all ranks had made it
};

class HostExchange : public std::enable_shared_from_this<HostExchange> {
 public:
  // inbox: null if there is an error.
  using Done = std::function<void(const Status& error, std::shared_ptr<const Inbox> inbox)>;

  // Makes this rank's memory. Null on an error; *error says which. numbers: [num_ranks] of the
  // exchange's ranks in the job, if it is of some of these; empty: it is of all.
  static std::shared_ptr<HostExchange> Make(int rank, int num_ranks, Status* error,
                                            std::vector<int> numbers = {});

  // This rank's address, for Map of the other ranks of its host.
  const std::string& address() const { return memory_->address(); }
  // Opens the memory of another rank of this host; before Join.
  Status Map(int rank, const std::string& address) {
    return memory_->Map(rank, address).In(NameOf(rank) + ": ");
  }
  // Begins; called once. sockets: [num_ranks] a connection to each rank that messages reach by the
  // network, which the exchange takes over and closes; -1: by memory that was mapped. On success
  // the exchange's thread runs, and keeps the object alive until End.
  Status Join(const std::vector<int>& sockets, LateWarning late);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  // "rank 3": a rank of the exchange in messages, by its number in the job.
  std::string NameOf(int rank) const { return "rank " + std::to_string(NumberOf(rank)); }

  // Allocates a message of bytes[n] bytes for each other rank n.
  // On success the caller fills `outgoing`, and then calls Send or destroys it.
  Status Prepare(const std::string& name, const CallDescription& description,
                 const std::vector<int64_t>& bytes, Outgoing* outgoing);
  // Makes the call.
  void Send(Outgoing outgoing, Done done);

  // Ends this rank's part: running and future calls end with the error `reason`, and calls of other
  // ranks that wait for this rank end as well.
  void End(const std::string& reason);
  // Waits until the other hosts have received all that this rank sent, for `most_seconds` at most:
  // before a process ends, with which its connections do.
  void WaitUntilReceived(double most_seconds);

  // The calls that wait for other ranks.
  std::vector<PendingCall> Waiting();
  ExchangeUse Use();

 private:
  // The calls of one name: messages that have arrived from each rank, and the waiting call, if any.
  struct Call {
    std::vector<std::deque<MessagePtr>> arrived;
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

  HostExchange(int rank, int num_ranks, std::vector<int> numbers,
               std::unique_ptr<MessageMemory> memory)
      : rank_(rank),
        num_ranks_(num_ranks),
        numbers_(std::move(numbers)),
        memory_(std::move(memory)),
        transports_(static_cast<size_t>(num_ranks), memory_.get()),
        has_ended_(static_cast<size_t>(num_ranks)) {
    use_.sent_bytes.resize(num_ranks);
  }
  void Listen(const LateWarning& late);
  int NumberOf(int rank) const { return numbers_.empty() ? rank : numbers_[rank]; }

  // With the lock held.
  void SetEnded(const std::string& reason);
  void Collect();
  std::vector<Ended> FindEnded();
  bool HasEnded(Call* call, Ended* ended);
  // How the first rank with another description of a complete call differs; empty: none does.
  std::string DifferenceIn(const Call& call) const;
  // Warnings for calls that have waited longer than `seconds`, once per call.
  std::vector<std::string> FindLate(double seconds);

  const int rank_, num_ranks_;
  const std::vector<int> numbers_;
  const std::unique_ptr<MessageMemory> memory_;  // says which of its methods need the lock
  std::unique_ptr<MessageNetwork> network_;      // null: all ranks are of this host
  std::vector<MessageTransport*> transports_;    // [num_ranks] by which a rank is reached
  std::mutex mutex_;                             // guards all members below
  std::unordered_map<std::string, Call> calls_;
  std::vector<bool> has_ended_;  // [num_ranks] whether a rank has
  ExchangeUse use_;
  std::string end_;  // why this rank has; empty: it has not
};

}  // namespace group_embedding
