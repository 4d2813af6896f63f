// How the ranks of one host send each other bytes: each writes messages into memory of its own,
// which the others read where they lie.
//
//   rank 0 ── message to rank 1, named "rows" ──> its memory ... read by rank 1, space for another
//
// Thread safety: every method may be called from any thread at any time, after Join.
//
// Order: calls are matched by name. All ranks make the same calls of one name, one after the other:
// the next may begin once the last has ended. Calls of different names may be under way together,
// begun in whatever order.
//
// Waiting: no method waits. A call ends when all ranks have made it: then its `done` is called,
// once, in the thread of whoever found out, the caller's or the exchange's own; it must not take
// long. The exchange's thread sleeps while there is nothing to do. Whoever waits long for a rank
// that lives is warned of it, once a call.
//
// Errors: a call ends with a sentence where it cannot end well: this rank's End was called, another
// rank has ended without making the call or describes it otherwise, its memory holds what is no
// message, or another call of this name is under way. What is not noticed here is a rank that dies
// or hangs, or waits in another call: the watch over the ranks
// (group_embedding/distributed/liveness), which asks for Waiting, calls End. Nothing is left of the
// memory when the processes are gone, killed ones included.
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

#include "exchange/host/pending_calls.h"
#include "exchange/host/shared_memory.h"
#include "exchange/transport/free_space.h"

namespace group_embedding {

struct Message;  // in shared memory

// What the calls of one op do, in a text that is the same on all ranks: they compare its digest in
// each call, and say in what two texts differ.
struct CallDescription {
  CallDescription() : CallDescription("") {}
  explicit CallDescription(std::string text);

  std::shared_ptr<const std::string> text;
  uint64_t digest;
};

// What a rank writes in one call, per rank; for itself there is nothing.
struct Outgoing {
  std::string name;
  CallDescription description;
  std::vector<Message*> messages;

  char* data(int rank) const;  // [bytes]
};

class HostExchange;

// How a rank is told that it waits for others: in a sentence, by the exchange's thread, once a call
// has waited for so many seconds, or up to twice as many.
struct LateWarning {
  double seconds;
  std::function<void(const std::string&)> warn;
};

// What a rank got in one call. The messages lie in the memory of their writers until it is
// destroyed.
class Inbox {
 public:
  Inbox(std::shared_ptr<const HostExchange> exchange, std::vector<Message*> messages)
      : exchange_(std::move(exchange)), messages_(std::move(messages)) {}
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  const char* data(int rank) const;  // null: of this rank itself
  int64_t bytes(int rank) const;

 private:
  const std::shared_ptr<const HostExchange> exchange_;  // keeps the memory mapped
  const std::vector<Message*> messages_;
};

class HostExchange : public std::enable_shared_from_this<HostExchange> {
 public:
  // `inbox` is null where there is an error.
  using Done = std::function<void(const std::string& error, std::shared_ptr<const Inbox> inbox)>;

  // This rank's part. Null: `error` says why.
  static std::shared_ptr<HostExchange> Make(int rank, int num_ranks, std::string* error);

  // What Join of the other ranks takes.
  const std::string& address() const { return memories_[rank_]->address(); }
  // Opens the memory of all ranks, once. Returns what went wrong; empty: nothing, and the
  // exchange's thread runs, which keeps the object alive until End.
  std::string Join(const std::vector<std::string>& addresses, LateWarning late);

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Makes space for bytes[n] bytes for each other rank n. Returns what went wrong; empty: nothing,
  // and `outgoing` is to be filled, and then sent or discarded.
  std::string Prepare(const std::string& name, const CallDescription& description,
                      const std::vector<int64_t>& bytes, Outgoing* outgoing);
  // Makes the call.
  void Send(const Outgoing& outgoing, Done done);
  // What was prepared is not sent.
  static void Discard(const Outgoing& outgoing);

  // This rank takes part no more: calls that are under way, and all to come, end with this
  // sentence; those of other ranks that wait for it end as well.
  void End(const std::string& reason);

  // The calls that are under way.
  std::vector<PendingCall> Waiting();

 private:
  struct Board;  // the beginning of a rank's memory

  // Of one name: messages of each rank that are to be read, and who waits for them.
  struct Call {
    std::vector<std::deque<Message*>> arrived;
    Done done;
    CallDescription description;
    std::chrono::steady_clock::time_point begin;
    bool is_late = false;  // and a warning said so
  };

  struct Ended {
    Done done;
    std::string error;
    std::shared_ptr<const Inbox> inbox;
  };

  HostExchange(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}
  Board* BoardOf(int rank) const;
  Message* MessageAt(int rank, int64_t place) const;
  void RingOthers() const;
  void Listen(const LateWarning& late);

  // With the lock held.
  void FreeRead();
  int64_t PlaceOf(const CallDescription& description);
  int64_t Keep(const std::string& text);
  void Post(int to, Message* message);
  void Collect();
  // Those that rank n has posted, the newest first; false where its memory has something else.
  bool TakePosted(int n, std::vector<Message*>* messages);
  bool IsMessage(int rank, int64_t place) const;
  std::vector<Ended> FindEnded();
  bool HasEnded(Call* call, Ended* ended);
  // In what the first rank that describes a complete call otherwise does so; empty: none does.
  std::string DifferenceIn(const Call& call) const;
  std::string ReasonOf(int rank) const;  // why another one takes part no more
  // Warnings for calls that have waited for so long, each once.
  std::vector<std::string> FindLate(double seconds);

  const int rank_, num_ranks_;
  std::vector<std::unique_ptr<SharedMemory>> memories_;  // [num_ranks]
  std::mutex mutex_;                                     // of all below
  std::unique_ptr<FreeSpace> space_;
  std::deque<int64_t> sent_;  // where messages are, until they are found to be read
  std::unordered_map<std::string, Call> calls_;
  std::unordered_map<uint64_t, int64_t> descriptions_;  // digest -> where the text is, for ever
  std::vector<bool> left_;                              // [num_ranks] which take part no more
  std::string end_;                                     // why this one does not
};

}  // namespace group_embedding
