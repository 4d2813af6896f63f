// Answers of a server that may not be Redis: the client's end of the protocol, without a network.
#include <algorithm>
#include <cstring>

#include "parts.h"
#include "serving/lower/redis/redis_connection.h"
#include "serving/lower/redis/redis_topology.h"

namespace group_embedding {
namespace {

// What the server says, in parts as they arrive.
Parts* answers = nullptr;
std::string arrived;

}  // namespace

// The socket of this program: in the place of redis_socket.cc.
RedisDeadline RedisDeadlineIn(double) { return RedisDeadline::max(); }
std::unique_ptr<RedisSocket> RedisSocket::Connect(const RedisAddress&, RedisDeadline, Status*) {
  return std::unique_ptr<RedisSocket>(new RedisSocket(-1));
}
RedisSocket::~RedisSocket() = default;
bool RedisSocket::IsSilent() const { return true; }
Status RedisSocket::Send(const char*, size_t, RedisDeadline) { return {}; }
Status RedisSocket::Receive(char* bytes, size_t most, size_t* count, RedisDeadline) {
  while (arrived.empty() && !answers->empty()) arrived = answers->Next();
  if (arrived.empty()) return "the server closed the connection";
  *count = std::min(most, arrived.size());
  std::memcpy(bytes, arrived.data(), *count);
  arrived.erase(0, *count);
  return {};
}

namespace {

size_t BytesOf(const RedisReply& reply) {
  size_t bytes = reply.text.size();
  for (const RedisReply& element : reply.elements) bytes += BytesOf(element);
  return bytes;
}

// As callers do: whole replies, or an array of rows of 16 bytes.
void TakeAll(RedisConnection* connection, bool takes_rows, size_t size) {
  const RedisDeadline never = RedisDeadline::max();
  while (!connection->IsBroken()) {
    RedisReply reply, rest;
    if (!takes_rows) {
      if (!connection->Take(&reply, never).ok()) return;
      EXPECT(BytesOf(reply) <= size);
      RedisTopology topology;
      if (!ReadRedisTopology(reply, {}, &topology).ok()) continue;
      for (const uint16_t node : topology.node_of_slot) EXPECT(node < topology.nodes.size());
      continue;
    }
    if (!connection->TakeHeader(&reply, never).ok()) return;
    if (reply.type != '*') {
      if (!connection->TakeRest(reply, &rest, never).ok()) return;
      continue;
    }
    bool found = false;
    char row[16];
    for (int64_t i = 0; i < reply.number; ++i) {
      if (!connection->TakeBytes(sizeof(row), &found, row, never).ok()) return;
    }
  }
}

}  // namespace
}  // namespace group_embedding

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace group_embedding;
  Parts parts(data, size);
  const uint8_t how = parts.Byte();
  answers = &parts;
  arrived.clear();
  RedisOptions options;
  if ((how & 2) != 0) options.password = "secret";
  if ((how & 4) != 0) options.database = 3;
  Status error;
  const auto connection = RedisConnection::Open({}, options, RedisDeadline::max(), &error);
  if (connection != nullptr) TakeAll(connection.get(), (how & 1) != 0, size);
  return 0;
}
