// Message: bytes that one rank sends another in a call. MessageTransport: what carries messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/host/call_description.h"

namespace group_embedding {

// The header of a message. The name of its call follows it, and then, from a multiple of 64 bytes
// on, the data.
struct Message {
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kMaxNameBytes = int64_t{1} << 20;  // a limit on what others send

  int64_t
      next;  // in shared memory: offset of the message posted before it to the same rank; 0: none
  int64_t bytes;
  int64_t name_bytes;
  uint64_t digest;              // of the call's description
  int64_t text_at, text_bytes;  // in shared memory: the description in the sender's memory
  std::atomic<uint32_t> is_read;

  // The bytes of a message before its data.
  static int64_t HeaderBytes(int64_t name_bytes);
  char* name() { return reinterpret_cast<char*>(this + 1); }                        // [name_bytes]
  char* data() { return reinterpret_cast<char*>(this) + HeaderBytes(name_bytes); }  // [bytes]
};

inline int64_t Message::HeaderBytes(int64_t name_bytes) {
  const int64_t bytes = static_cast<int64_t>(sizeof(Message)) + name_bytes;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Ends the use of a message in the way of its transport.
struct FreeMessage {
  void operator()(Message* message) const { free(message); }
  void (*free)(Message*) = nullptr;
};

using MessagePtr = std::unique_ptr<Message, FreeMessage>;

// Carries messages between this rank and some of the others.
//
// Thread safety: HostExchange calls all methods with its lock held.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;

  // Makes a message of `bytes` bytes. Null: there is no space for it.
  virtual MessagePtr NewMessage(const std::string& name, const CallDescription& description,
                                int64_t bytes) = 0;
  // Gives a message to another rank.
  virtual void Post(int to, MessagePtr message, const CallDescription& description) = 0;
  // Takes the messages that rank `from` has posted to this one, the oldest first. False if it sent
  // anything else.
  virtual bool TakePosted(int from, std::vector<MessagePtr>* messages) = 0;
  // The description of the call for which rank `from` posted a message; empty: unknown.
  virtual std::string DescriptionOf(int from, const Message& message) = 0;

  // Says to the others that this rank has ended, and why.
  virtual void SetEnded(const std::string& reason) = 0;
  // Whether rank `from` has. All that it posted before can then be taken.
  virtual bool HasEnded(int from) = 0;
  // ": " and why another rank has ended; empty: unknown.
  virtual std::string ReasonOf(int from) = 0;
};

}  // namespace group_embedding
