// RedisTopology: which node of a Redis Cluster has which keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "serving/lower/redis/redis_connection.h"

namespace group_embedding {

constexpr int kRedisSlots = 16384;

// The slot of a key: CRC16 of what is between its first { and the next }, or of all.
int RedisSlotOf(const std::string& key);

// One server without a cluster is one node without slots.
struct RedisTopology {
  std::vector<RedisAddress> nodes;     // the primaries
  std::vector<uint16_t> node_of_slot;  // [kRedisSlots], or empty
};

// Reads the reply to CLUSTER SLOTS of the node at `address`: for each range of slots its first, its
// last, and host and port of its primary and its replicas.
Status ReadRedisTopology(const RedisReply& reply, const RedisAddress& address,
                         RedisTopology* topology);

}  // namespace group_embedding
