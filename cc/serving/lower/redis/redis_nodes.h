// RedisNodes: one Redis server, or the nodes of a Redis Cluster, with connections that are kept
// open, and batches of commands that are pipelined to the nodes that have their keys.
//
// A node that is away is asked again through a new connection; keys of a cluster that have moved
// are followed (MOVED, ASK), and so is a replica that takes the place of its primary. All of it
// ends by the deadline of the call. Any number of threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/home_process.h"
#include "serving/lower/redis/redis_connection.h"
#include "serving/lower/redis/redis_topology.h"

namespace group_embedding {

// Commands, each of keys of one slot.
class RedisBatch {
 public:
  virtual ~RedisBatch() = default;

  virtual int64_t size() const = 0;
  virtual int SlotOf(int64_t command) const = 0;
  virtual void Append(int64_t command, std::string* bytes) const = 0;
  // Takes a reply that is no error; its first line was taken.
  virtual Status Take(int64_t command, const RedisReply& header, RedisConnection* from,
                      RedisDeadline deadline) = 0;
  // Whether commands may be sent again, where nobody knows if they were done.
  virtual bool MayRepeat() const = 0;
};

class RedisNodes {
 public:
  // Null: no address answers.
  static std::unique_ptr<RedisNodes> Connect(const RedisOptions& options, RedisDeadline deadline,
                                             Status* error);

  const RedisOptions& options() const { return options_; }
  int num_primaries() const;  // of a cluster; 0: it is none

  // Errors name the node.
  Status Run(RedisBatch* batch, RedisDeadline deadline) const;
  // Any commands of one slot each: their replies.
  Status Run(const std::vector<std::vector<std::string>>& commands, const std::string& key,
             bool may_repeat, RedisDeadline deadline, std::vector<RedisReply>* replies) const;
  // What identifies the histories of writes of all primaries: a server that starts again, or takes
  // the place of another, has one of its own.
  Status Histories(RedisDeadline deadline, std::set<std::string>* histories) const;

 private:
  // Commands for one node, and how far they are.
  struct NodeCommands {
    RedisAddress address;
    bool asking = false;  // ASKING comes first: the slot moves to this node
    std::vector<int64_t> commands;
    size_t num_sent = 0, num_taken = 0;
    bool is_fresh = false;
    std::unique_ptr<RedisConnection> connection;
  };
  struct Redirect {
    RedisAddress address;
    bool asking = false;
  };
  // What is left to do in one call.
  struct Progress {
    std::vector<int64_t> commands;  // to be sent again
    std::map<int64_t, Redirect> redirects;
    bool has_moved = false, is_down = false;
    Status last;  // why something is left
  };

  explicit RedisNodes(const RedisOptions& options) : options_(options) {}
  std::shared_ptr<const RedisTopology> topology() const;
  // Asks one node after the other, the suspect last.
  Status Refresh(RedisDeadline deadline) const;
  Status AskTopology(const RedisAddress& address, RedisDeadline deadline,
                     RedisTopology* topology) const;
  // One command, by a connection of its own, which is kept.
  Status AskNode(const RedisAddress& address, const std::vector<std::string>& words,
                 RedisDeadline deadline, RedisReply* reply) const;
  void Suspect(const RedisAddress& address) const;
  bool HasSuspect() const;

  std::unique_ptr<RedisConnection> Open(const RedisAddress& address, RedisDeadline deadline,
                                        bool may_reuse, bool* is_fresh, Status* error) const;
  void Keep(const RedisAddress& address, std::unique_ptr<RedisConnection> connection) const;

  std::vector<NodeCommands> ByNode(const RedisBatch& batch, const Progress& progress) const;
  Status RunNodes(RedisBatch* batch, std::vector<NodeCommands>* nodes, bool may_reuse,
                  RedisDeadline deadline, Progress* left) const;
  Status Start(RedisBatch* batch, NodeCommands* node, bool may_reuse, RedisDeadline deadline,
               Progress* left) const;
  Status SendNext(RedisBatch* batch, NodeCommands* node, RedisDeadline deadline) const;
  // An error ends the call.
  Status TakeNext(RedisBatch* batch, NodeCommands* node, RedisDeadline deadline,
                  Progress* left) const;
  Status TakeError(int64_t command, const NodeCommands& node, const std::string& error,
                   Progress* left) const;
  // The node's connection is lost. An error ends the call.
  Status Lose(const RedisBatch& batch, NodeCommands* node, const Status& why, Progress* left) const;

  const RedisOptions options_;
  const HomeProcess home_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::shared_ptr<const RedisTopology> topology_;
  // A node of a cluster that did not answer: another may have taken its place since.
  mutable std::optional<RedisAddress> suspect_;
  mutable std::map<RedisAddress, std::vector<std::unique_ptr<RedisConnection>>> idle_;
};

}  // namespace group_embedding
