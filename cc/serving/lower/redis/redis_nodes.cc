#include "serving/lower/redis/redis_nodes.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "serving/lower/redis/redis_errors.h"

namespace group_embedding {
namespace {

// Commands of one node that have no reply yet. The server works on one while another's reply is
// read, and the replies that wait there are few.
constexpr size_t kMostInFlight = 4;
constexpr size_t kMostIdle = 64;  // connections of a node
constexpr std::chrono::milliseconds kPause{10};
// A node of a cluster that hangs for so long leaves the rest of the time to the one that takes its
// place.
constexpr double kSecondsOfNode = 1;
constexpr int kMostAtOnce = 3;  // turns of a call without a pause, where nodes send it around

class WordCommands : public RedisBatch {
 public:
  WordCommands(const std::vector<std::vector<std::string>>& commands, const std::string& key,
               bool may_repeat, std::vector<RedisReply>* replies)
      : commands_(commands), slot_(RedisSlotOf(key)), may_repeat_(may_repeat), replies_(*replies) {
    replies_.assign(commands.size(), {});
  }

  int64_t size() const override { return static_cast<int64_t>(commands_.size()); }
  int SlotOf(int64_t) const override { return slot_; }
  void Append(int64_t command, std::string* bytes) const override {
    AppendRedisCommand(commands_[command], bytes);
  }
  Status Take(int64_t command, const RedisReply& header, RedisConnection* from,
              RedisDeadline deadline) override {
    return from->TakeRest(header, &replies_[command], deadline);
  }
  bool MayRepeat() const override { return may_repeat_; }

 private:
  const std::vector<std::vector<std::string>>& commands_;
  const int slot_;
  const bool may_repeat_;
  std::vector<RedisReply>& replies_;
};

}  // namespace

std::unique_ptr<RedisNodes> RedisNodes::Connect(const RedisOptions& options, RedisDeadline deadline,
                                                Status* error) {
  std::unique_ptr<RedisNodes> nodes(new RedisNodes(options));
  auto seeds = std::make_shared<RedisTopology>();
  seeds->nodes = options.addresses;
  nodes->topology_ = std::move(seeds);
  *error = nodes->Refresh(deadline);
  if (!error->ok()) return nullptr;
  return nodes;
}

std::unique_ptr<RedisConnection> RedisNodes::Open(const RedisAddress& address,
                                                  RedisDeadline deadline, bool may_reuse,
                                                  bool* is_fresh, Status* error) const {
  *is_fresh = false;
  while (may_reuse) {
    std::unique_ptr<RedisConnection> connection;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto& idle = idle_[address];
      if (idle.empty()) break;
      connection = std::move(idle.back());
      idle.pop_back();
    }
    if (connection->IsSilent()) return connection;
  }
  *is_fresh = true;
  return RedisConnection::Open(address, options_, deadline, error);
}

void RedisNodes::Keep(const RedisAddress& address,
                      std::unique_ptr<RedisConnection> connection) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& idle = idle_[address];
  if (idle.size() < kMostIdle) idle.push_back(std::move(connection));
}

Status RedisNodes::Run(RedisBatch* batch, RedisDeadline deadline) const {
  Status status = home_.Check();
  if (!status.ok()) return status.In("tier redis=" + options_.text() + ": ");
  Progress todo;
  for (int64_t i = 0; i < batch->size(); ++i) todo.commands.push_back(i);
  if (HasSuspect()) status = Refresh(deadline);  // else the nodes are as they were
  for (int turn = 0;; ++turn) {
    std::vector<NodeCommands> nodes = ByNode(*batch, todo);
    Progress left;
    RedisDeadline end = deadline;
    if (num_primaries() > 0 && batch->MayRepeat()) {
      end = std::min(end, RedisDeadlineIn(kSecondsOfNode));
    }
    status = RunNodes(batch, &nodes, turn == 0, end, &left);
    if (!status.ok() || left.commands.empty()) return status;
    if (std::chrono::steady_clock::now() >= deadline) return left.last;
    if (left.is_down || turn >= kMostAtOnce) std::this_thread::sleep_for(kPause);
    if (left.is_down || HasSuspect() || (left.has_moved && num_primaries() > 0)) {
      status = Refresh(deadline);
      if (!status.ok() && std::chrono::steady_clock::now() >= deadline) return left.last;
    }
    todo = std::move(left);
  }
}

Status RedisNodes::Run(const std::vector<std::vector<std::string>>& commands,
                       const std::string& key, bool may_repeat, RedisDeadline deadline,
                       std::vector<RedisReply>* replies) const {
  WordCommands batch(commands, key, may_repeat, replies);
  return Run(&batch, deadline);
}

std::vector<RedisNodes::NodeCommands> RedisNodes::ByNode(const RedisBatch& batch,
                                                         const Progress& progress) const {
  const auto now = topology();
  std::vector<NodeCommands> nodes;
  for (const int64_t command : progress.commands) {
    Redirect to;
    const auto redirect = progress.redirects.find(command);
    if (redirect != progress.redirects.end()) {
      to = redirect->second;
    } else if (now->node_of_slot.empty()) {
      to.address = now->nodes[0];
    } else {
      to.address = now->nodes[now->node_of_slot[batch.SlotOf(command)]];
    }
    const auto same = [&](const NodeCommands& node) {
      return node.asking == to.asking && node.address == to.address;
    };
    auto node = std::find_if(nodes.begin(), nodes.end(), same);
    if (node == nodes.end()) {
      nodes.emplace_back();
      node = nodes.end() - 1;
      node->address = to.address;
      node->asking = to.asking;
    }
    node->commands.push_back(command);
  }
  return nodes;
}

Status RedisNodes::RunNodes(RedisBatch* batch, std::vector<NodeCommands>* nodes, bool may_reuse,
                            RedisDeadline deadline, Progress* left) const {
  for (NodeCommands& node : *nodes) {
    Status status = Start(batch, &node, may_reuse, deadline, left);
    if (!status.ok()) return status;
  }
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (NodeCommands& node : *nodes) {
      if (node.connection == nullptr || node.num_taken == node.commands.size()) continue;
      Status status = TakeNext(batch, &node, deadline, left);
      if (!status.ok()) return status;
      goes_on = true;
    }
  }
  for (NodeCommands& node : *nodes) {
    if (node.connection != nullptr) Keep(node.address, std::move(node.connection));
  }
  return {};
}

Status RedisNodes::Start(RedisBatch* batch, NodeCommands* node, bool may_reuse,
                         RedisDeadline deadline, Progress* left) const {
  Status status;
  node->connection = Open(node->address, deadline, may_reuse, &node->is_fresh, &status);
  if (node->connection == nullptr) return Lose(*batch, node, status, left);
  while (node->num_sent < std::min(node->commands.size(), kMostInFlight)) {
    status = SendNext(batch, node, deadline);
    if (!status.ok()) return Lose(*batch, node, status, left);
  }
  return {};
}

Status RedisNodes::SendNext(RedisBatch* batch, NodeCommands* node, RedisDeadline deadline) const {
  thread_local std::string bytes;
  bytes.clear();
  if (node->asking) AppendRedisCommand({"ASKING"}, &bytes);
  batch->Append(node->commands[node->num_sent++], &bytes);
  return node->connection->Send(bytes, deadline);
}

Status RedisNodes::TakeNext(RedisBatch* batch, NodeCommands* node, RedisDeadline deadline,
                            Progress* left) const {
  const int64_t command = node->commands[node->num_taken];
  RedisReply header;
  Status status;
  if (node->asking) status = node->connection->Take(&header, deadline);
  if (status.ok()) status = node->connection->TakeHeader(&header, deadline);
  if (status.ok() && header.IsError()) {
    status = TakeError(command, *node, header.text, left);
    if (!status.ok()) return status;
  } else if (status.ok()) {
    status = batch->Take(command, header, node->connection.get(), deadline);
    const bool is_lost = node->connection->IsBroken();
    if (!status.ok() && !is_lost) return status.In("tier redis=" + node->address.text() + ": ");
  }
  if (!status.ok()) return Lose(*batch, node, status, left);
  ++node->num_taken;
  if (node->num_sent == node->commands.size()) return {};
  status = SendNext(batch, node, deadline);
  return status.ok() ? status : Lose(*batch, node, status, left);
}

// "MOVED 3999 HOST:PORT", "ASK 3999 HOST:PORT", where HOST may be empty: the same.
Status RedisNodes::TakeError(int64_t command, const NodeCommands& node, const std::string& error,
                             Progress* left) const {
  left->last = Status("tier redis=" + node.address.text() + ": " + AdvisedRedisError(error));
  const bool moved = RedisErrorIs(error, "MOVED "), asked = RedisErrorIs(error, "ASK ");
  if (!moved && !asked && !RedisErrorPasses(error)) return left->last;
  left->commands.push_back(command);
  left->is_down |= RedisErrorPasses(error);
  left->has_moved |= moved;
  if (!moved && !asked) return {};
  std::string address = error.substr(error.rfind(' ') + 1);
  if (address.compare(0, 1, ":") == 0) address = node.address.host + address;
  Redirect& redirect = left->redirects[command];
  redirect.asking = asked;
  return ReadRedisAddress(address, &redirect.address) ? Status() : left->last;
}

Status RedisNodes::Lose(const RedisBatch& batch, NodeCommands* node, const Status& why,
                        Progress* left) const {
  node->connection.reset();
  Suspect(node->address);
  const bool was_sent = node->num_sent > node->num_taken;
  left->last =
      Status("tier redis=" + node->address.text() + ": " + AdvisedRedisError(why.message()));
  left->commands.insert(left->commands.end(), node->commands.begin() + node->num_taken,
                        node->commands.end());
  left->is_down |= node->is_fresh;
  const bool may_repeat = batch.MayRepeat() || !was_sent;
  // A cluster puts another node in the place of one that is away; another address may answer, too.
  const bool may_be_elsewhere = num_primaries() > 0 || options_.addresses.size() > 1;
  if (may_repeat && (!node->is_fresh || may_be_elsewhere)) return {};
  return left->last;
}

}  // namespace group_embedding
