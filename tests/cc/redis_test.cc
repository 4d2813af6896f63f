// The tier in Redis, as far as it needs no server: addresses, slots, and keys in parts.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "serving/lower/redis/redis_options.h"
#include "serving/lower/redis/redis_topology.h"
#include "serving/lower/redis/row_commands.h"

namespace group_embedding {
namespace {

TEST(AUrlSaysHowRedisIsReached) {
  // Given a URL with all that it may have
  RedisOptions options;
  const Status status = ReadRedisOptions(
      "rediss://us%3Aer:p%40ss%2C@one:1,[::1]:2,three/7?ssl_ca_certs=/a%20b&ssl_check_hostname="
      "false&ssl_certfile=c&ssl_keyfile=k",
      &options);
  // When it is read, Then each is in its place
  CHECK_TRUE(status.ok());
  CHECK_TRUE(options.tls && !options.check_hostname && options.database == 7);
  CHECK_TRUE(options.user == "us:er" && options.password == "p@ss,");
  CHECK_TRUE(options.ca_file == "/a b" && options.cert_file == "c" && options.key_file == "k");
  CHECK_TRUE(options.text() == "one:1,[::1]:2,three:6379");
}

TEST(SlotsAreThoseOfRedis) {
  // Given keys whose slots Redis's documents tell
  CHECK_TRUE(RedisSlotOf("123456789") == 0x31C3);
  // When a key has a tag, Then the tag alone has a slot; an empty one is none
  CHECK_TRUE(RedisSlotOf("x{123456789}y{z}") == 0x31C3);
  CHECK_TRUE(RedisSlotOf("{}123456789") != 0x31C3);
}

TEST(EveryKeyIsInOnePart) {
  // Given keys, some of them twice, none, or more than one command has
  for (const int64_t num_keys : {0, 1, 5000}) {
    std::vector<int64_t> keys(num_keys);
    for (int64_t i = 0; i < num_keys; ++i) keys[i] = i % 900 - 400;
    for (const int64_t num_parts : {1, 7, 1024}) {
      // When they are divided
      const KeysOfParts divided(keys.data(), num_keys, num_parts, 100);
      // Then each index comes once, in commands of at most 100, and a key is always in one part
      std::vector<int64_t> indices, part_of(1000, -1);
      for (const auto& [part, begin, end] : divided.ranges()) {
        CHECK_TRUE(end > begin && end - begin <= 100);
        for (int64_t at = begin; at < end; ++at) {
          indices.push_back(divided[at]);
          int64_t& known = part_of[keys[divided[at]] + 400];
          CHECK_TRUE(known == -1 || known == part);
          known = part;
        }
      }
      std::sort(indices.begin(), indices.end());
      std::vector<int64_t> all(num_keys);
      std::iota(all.begin(), all.end(), 0);
      CHECK_TRUE(indices == all);
    }
  }
}

TEST(AClusterWithHolesIsAnError) {
  // Given replies to CLUSTER SLOTS
  const auto number = [](int64_t n) { return RedisReply{':', n, "", {}}; };
  const auto text = [](const std::string& t) {
    return RedisReply{'$', static_cast<int64_t>(t.size()), t, {}};
  };
  const auto range = [&](int64_t first, int64_t last, const std::string& host) {
    const RedisReply node = {'*', 2, "", {text(host), number(7)}};
    return RedisReply{'*', 3, "", {number(first), number(last), node}};
  };
  const RedisAddress asked = {"asked", "1"};
  RedisTopology topology;
  // When all slots are there, Then every one has a node; one without a host is on the node's own
  RedisReply all = {'*', 2, "", {range(0, 99, ""), range(100, 16383, "other")}};
  CHECK_TRUE(ReadRedisTopology(all, asked, &topology).ok());
  CHECK_TRUE(topology.nodes[topology.node_of_slot[99]].text() == "asked:7");
  CHECK_TRUE(topology.nodes[topology.node_of_slot[100]].text() == "other:7");
  // And where some are not, or are none, it is an error
  for (const auto& [first, last] : {std::pair(101, 16383), {100, 16384}, {-1, 3}, {16383, 100}}) {
    all.elements[1] = range(first, last, "other");
    CHECK_TRUE(!ReadRedisTopology(all, asked, &topology).ok());
  }
}

}  // namespace
}  // namespace group_embedding
