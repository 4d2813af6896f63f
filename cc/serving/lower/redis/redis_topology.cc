#include "serving/lower/redis/redis_topology.h"

#include <algorithm>

namespace group_embedding {
namespace {

uint16_t Crc16(const char* bytes, size_t count) {
  uint16_t crc = 0;  // XMODEM
  for (size_t i = 0; i < count; ++i) {
    crc ^= static_cast<uint16_t>(static_cast<unsigned char>(bytes[i]) << 8);
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>(crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc;
}

}  // namespace

int RedisSlotOf(const std::string& key) {
  const size_t open = key.find('{');
  const size_t close = open == key.npos ? key.npos : key.find('}', open);
  const bool has_tag = close != key.npos && close > open + 1;
  const char* begin = has_tag ? key.data() + open + 1 : key.data();
  return Crc16(begin, has_tag ? close - open - 1 : key.size()) % kRedisSlots;
}

Status ReadRedisTopology(const RedisReply& reply, const RedisAddress& address,
                         RedisTopology* topology) {
  topology->nodes.clear();
  topology->node_of_slot.assign(kRedisSlots, 0);
  int64_t num_slots = 0;
  for (const RedisReply& range : reply.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3 || parts[2].elements.size() < 2) return "a cluster without primaries";
    const int64_t first = parts[0].number, last = parts[1].number;
    if (first < 0 || last >= kRedisSlots || first > last) return "a cluster of other slots";
    RedisAddress node = {parts[2].elements[0].text, std::to_string(parts[2].elements[1].number)};
    if (node.host.empty() || node.host == "?") node.host = address.host;
    auto known = std::find(topology->nodes.begin(), topology->nodes.end(), node);
    const auto number = static_cast<uint16_t>(known - topology->nodes.begin());
    if (known == topology->nodes.end()) topology->nodes.push_back(node);
    std::fill_n(topology->node_of_slot.begin() + first, last - first + 1, number);
    num_slots += last - first + 1;
  }
  if (num_slots != kRedisSlots) {
    return "expected a cluster whose nodes have all slots, got " + std::to_string(num_slots) +
           " of 16384; see redis-cli --cluster check";
  }
  return {};
}

}  // namespace group_embedding
