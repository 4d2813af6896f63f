// MessageMemory: the memory that the ranks of a host share, and the messages in it. Each rank
// writes into memory of its own, which all other ranks map:
//
//   | SharedMemory's own | Board: its newest message to each rank | messages and texts |
//
// A message posted to a rank is linked from the sender's Board. The receiver takes the list, reads
// the messages where they are, and marks them read; the sender then reuses their space.
//
// Thread safety: after Map, any thread may call WakeOthers, WakeThis, wake_count, WaitForNews and
// SetEnded at any time. HostExchange calls all other methods with its lock held.
//
// Errors: another rank's memory may hold anything. TakePosted checks each message before it is
// read.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "exchange/host/call_description.h"
#include "exchange/host/shared_memory.h"
#include "exchange/transport/free_space.h"

namespace group_embedding {

// The header of a message in the sender's memory. The name follows it, and then, from a multiple of
// 64 bytes on, the data.
struct Message {
  int64_t next;  // offset of the message posted before it to the same rank; 0: none
  int64_t bytes;
  int64_t name_bytes;
  uint64_t digest;              // of the call's description
  int64_t text_at, text_bytes;  // the description in the sender's memory
  std::atomic<uint32_t> is_read;

  char* name() { return reinterpret_cast<char*>(this + 1); }
  char* data();
};

// Allows the senders to reuse the space of messages. Null ones are skipped.
void MarkRead(const std::vector<Message*>& messages);

class MessageMemory {
 public:
  static constexpr int kMaxRanks = 1024;

  // Makes this rank's memory. Null on an error; *error says which.
  static std::unique_ptr<MessageMemory> Make(int rank, int num_ranks, Status* error);
  // This rank's address, for the other ranks' Map.
  const std::string& address() const { return memories_[rank_]->address(); }
  // Maps the memory of the other ranks. addresses: [num_ranks].
  Status Map(const std::vector<std::string>& addresses);

  // Makes a message of `bytes` bytes in this rank's memory. Null: there is no space for it.
  Message* NewMessage(const std::string& name, const CallDescription& description, int64_t bytes);
  // Gives a message of this rank to another rank.
  void Post(int to, Message* message);
  // Takes the messages that rank `from` has posted to this one, the newest first. False if its
  // memory holds anything else.
  bool TakePosted(int from, std::vector<Message*>* messages) const;
  // The description of the call for which rank `from` posted a message.
  std::string DescriptionOf(int from, const Message& message) const;
  // Frees the space of messages that their receivers have read.
  void FreeRead();

  // Tells the others that this rank has ended. A reason, if any, is set before.
  void SetEnded() { BoardOf(rank_)->has_ended.store(1, std::memory_order_release); }
  void SetReason(const std::string& reason);
  bool HasEnded(int rank) const {
    return BoardOf(rank)->has_ended.load(std::memory_order_acquire) != 0;
  }
  // ": " and why another rank has ended; empty: unknown.
  std::string ReasonOf(int rank) const;

  // Wakes ranks that wait: all other ranks, after messages or an end; this one, after its end.
  void WakeOthers() const;
  void WakeThis() const;
  // Counts calls of this rank that wait for others, which wake it only then.
  void AddWaiting(int change) { BoardOf(rank_)->num_waiting += change; }
  // The number of times that this rank was woken.
  uint32_t wake_count() const { return BoardOf(rank_)->wake_count.load(); }
  // Sleeps while the count is `seen`, for `most_seconds` at most.
  void WaitForNews(uint32_t seen, double most_seconds) const;

 private:
  // The beginning of a rank's memory.
  struct Board {
    std::atomic<uint32_t> wake_count;        // a futex: counts messages to this rank, and ends
    std::atomic<uint32_t> has_ended;         // whether this rank has
    int64_t reason_at, reason_bytes;         // why, set before `has_ended`; 0: unknown
    std::atomic<uint32_t> num_waiting;       // calls of this rank that wait
    std::atomic<int64_t> newest[kMaxRanks];  // offset of the newest message to each rank; 0: none
  };

  MessageMemory(int rank, int num_ranks)
      : rank_(rank), num_ranks_(num_ranks), memories_(num_ranks) {}
  Board* BoardOf(int rank) const;
  Message* MessageAt(int rank, int64_t offset) const;
  bool IsMessage(int rank, int64_t offset) const;
  int64_t OffsetOf(const CallDescription& description);
  int64_t Keep(const std::string& text);

  const int rank_, num_ranks_;
  std::vector<std::unique_ptr<SharedMemory>> memories_;  // [num_ranks]
  std::unique_ptr<FreeSpace> space_;                     // of this rank's memory
  std::deque<int64_t> sent_;  // offsets of messages that may not have been read
  std::unordered_map<uint64_t, int64_t> descriptions_;  // digest -> offset of the text, never freed
};

}  // namespace group_embedding
