// MessageMemory: the memory that the ranks of a host share, and the messages in it. Each rank
// writes into memory of its own, which all other ranks map:
//
//   | SharedMemory's own | Board: its newest message to each rank | messages and texts |
//
// A message posted to a rank is linked from the sender's Board. The receiver takes the list, reads
// the messages where they are, and marks them read; the sender then reuses their space.
//
// Thread safety: after Map, any thread may call WakeOthers, WakeThis, wake_count and WaitForNews at
// any time. HostExchange calls all other methods with its lock held.
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
#include "exchange/host/message.h"
#include "exchange/host/shared_memory.h"
#include "exchange/transport/free_space.h"

namespace group_embedding {

class MessageMemory : public MessageTransport {
 public:
  static constexpr int kMaxRanks = 1 << 14;

  // Makes this rank's memory. Null on an error; *error says which.
  static std::unique_ptr<MessageMemory> Make(int rank, int num_ranks, Status* error);
  // This rank's address, for the other ranks' Map.
  const std::string& address() const { return memories_[rank_]->address(); }
  // Maps the memory of another rank of this host, given its address.
  Status Map(int rank, const std::string& address);
  bool IsMapped(int rank) const { return memories_[rank] != nullptr; }

  // Messages are made in this rank's memory.
  MessagePtr NewMessage(const std::string& name, const CallDescription& description,
                        int64_t bytes) override;
  void Post(int to, MessagePtr message, const CallDescription& description) override;
  bool TakePosted(int from, std::vector<MessagePtr>* messages) override;
  std::string DescriptionOf(int from, const Message& message) override;
  void SetEnded(const std::string& reason) override;
  bool HasEnded(int from) override {
    return BoardOf(from)->has_ended.load(std::memory_order_acquire) != 0;
  }
  std::string ReasonOf(int from) override;

  // Frees the space of messages that their receivers have read.
  void FreeRead();

  // Wakes ranks that wait: all other ranks, after messages or an end; this one, after its end, and
  // after messages of other hosts.
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
  std::vector<std::unique_ptr<SharedMemory>> memories_;  // [num_ranks] null: of another host
  std::unique_ptr<FreeSpace> space_;                     // of this rank's memory
  std::deque<int64_t> sent_;  // offsets of messages that may not have been read
  std::unordered_map<uint64_t, int64_t> descriptions_;  // digest -> offset of the text, never freed
};

}  // namespace group_embedding
