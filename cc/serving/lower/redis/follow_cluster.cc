// How RedisNodes knows its nodes: which they are, which does not answer, and what has happened to
// them.
#include <algorithm>
#include <utility>

#include "serving/lower/redis/redis_errors.h"
#include "serving/lower/redis/redis_nodes.h"

namespace group_embedding {

int RedisNodes::num_primaries() const {
  const auto now = topology();
  return now->node_of_slot.empty() ? 0 : static_cast<int>(now->nodes.size());
}

std::shared_ptr<const RedisTopology> RedisNodes::topology() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return topology_;
}

Status RedisNodes::Refresh(RedisDeadline deadline) const {
  std::vector<RedisAddress> known = topology()->nodes;
  known.insert(known.end(), options_.addresses.begin(), options_.addresses.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto answers = [&](const RedisAddress& node) { return !(suspect_ && node == *suspect_); };
    std::stable_partition(known.begin(), known.end(), answers);
  }
  Status status;
  for (size_t i = 0; i < known.size(); ++i) {
    if (std::find(known.begin(), known.begin() + i, known[i]) != known.begin() + i) continue;
    auto found = std::make_shared<RedisTopology>();
    // One that takes no connections leaves time for the others.
    const auto now = std::chrono::steady_clock::now();
    const size_t shares = std::min<size_t>(known.size() - i, 3);
    const RedisDeadline end = now + (std::max(deadline, now) - now) / shares;
    status = AskTopology(known[i], end, found.get());
    if (!status.ok()) status = AdvisedRedisError(status.message());
    status = status.In("tier redis=" + known[i].text() + ": ");
    if (!status.ok()) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    topology_ = std::move(found);
    suspect_.reset();
    return {};
  }
  return status;
}

Status RedisNodes::AskTopology(const RedisAddress& address, RedisDeadline deadline,
                               RedisTopology* topology) const {
  RedisReply reply;
  Status status = AskNode(address, {"CLUSTER", "SLOTS"}, deadline, &reply);
  if (!status.ok()) return status;
  if (RedisErrorIs(reply.text, "NOAUTH") || RedisErrorPasses(reply.text)) {
    return reply.text;
  }
  topology->nodes = {address};
  if (reply.IsError()) return {};  // it is no cluster, or does not tell
  return ReadRedisTopology(reply, address, topology);
}

Status RedisNodes::AskNode(const RedisAddress& address, const std::vector<std::string>& words,
                           RedisDeadline deadline, RedisReply* reply) const {
  Status status;
  bool is_fresh = false;
  std::unique_ptr<RedisConnection> connection = Open(address, deadline, false, &is_fresh, &status);
  std::string bytes;
  AppendRedisCommand(words, &bytes);
  if (status.ok()) status = connection->Send(bytes, deadline);
  if (status.ok()) status = connection->Take(reply, deadline);
  if (status.ok()) Keep(address, std::move(connection));
  return status;
}

Status RedisNodes::Histories(RedisDeadline deadline, std::set<std::string>* histories) const {
  static const std::string field = "master_replid:";
  Status status = num_primaries() > 0 ? Refresh(deadline) : Status();
  if (!status.ok()) return status;
  const auto now = topology();
  for (const RedisAddress& address : now->nodes) {
    RedisReply reply;
    status = AskNode(address, {"INFO", "replication"}, deadline, &reply);
    if (status.ok() && reply.IsError()) status = reply.text;
    if (!status.ok())
      return "tier redis=" + address.text() + ": " + AdvisedRedisError(status.message());
    const size_t begin = reply.text.find(field);
    if (begin == reply.text.npos) continue;  // a server of another kind, which does not tell
    histories->insert(reply.text.substr(begin, reply.text.find('\r', begin) - begin));
  }
  return {};
}

void RedisNodes::Suspect(const RedisAddress& address) const {
  if (num_primaries() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  suspect_ = address;
}

bool RedisNodes::HasSuspect() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return suspect_.has_value();
}

}  // namespace group_embedding
