#include "serving/lower/redis/redis_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <utility>

namespace group_embedding {
namespace {

constexpr int64_t kPartsOfPrimary = 16, kMostParts = 1024;
constexpr char kDay[] = "86400";
constexpr char kFillField[] = "fill";
constexpr char kNames[] = "group_embedding:";

std::string Hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}
int64_t Number(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

std::string TableKey(const LowerRowsId& id) {
  return kNames + ("base:{" + Hexadecimal(id.content)) + "}:" + id.table;
}
std::string ContentsKey(const std::string& table) { return kNames + ("contents:" + table); }
std::string PartKey(const std::string& table, const std::string& fill, int64_t part) {
  return kNames + ("rows:{" + fill) + "." + std::to_string(part) + "}:" + table;
}

// False: it describes nothing.
bool Describe(const std::vector<RedisReply>& fields, RedisTable::Description* description) {
  if (fields.size() != 5 || fields[1].IsNull()) return false;
  const int64_t format = Number(fields[1].text);
  description->fill = fields[0].text;
  description->dim = Number(fields[2].text);
  description->num_parts = Number(fields[3].text);
  description->num_rows = Number(fields[4].text);
  description->format = static_cast<RowFormat>(format);
  const bool has_parts = description->num_parts > 0 && description->num_parts <= kMostParts;
  const bool is_format = format >= 0 && format < static_cast<int64_t>(RowFormatWords().size());
  return is_format && has_parts && !description->fill.empty() && description->num_rows >= 0;
}

}  // namespace

RedisTable::RedisTable(const RedisNodes* nodes, const LowerRowsId& id,
                       const Description& description)
    : nodes_(*nodes), id_(id), description_(description) {
  for (int64_t part = 0; part < description.num_parts; ++part) {
    parts_.emplace_back(PartKey(id.table, description.fill, part));
  }
}

std::shared_ptr<const RedisTable> RedisTable::Find(const RedisNodes& nodes, const LowerRowsId& id,
                                                   RedisDeadline deadline, Status* error) {
  std::vector<RedisReply> replies;
  const std::string key = TableKey(id);
  const Words ask = {"HMGET", key, kFillField, "format", "dim", "parts", "rows"};
  *error = nodes.Run({ask}, key, true, deadline, &replies);
  Description description;
  if (!error->ok() || !Describe(replies[0].elements, &description)) return nullptr;
  auto table = std::make_shared<RedisTable>(&nodes, id, description);
  for (const RedisPart& part : table->parts()) {
    *error = nodes.Run({{"HGET", part.key, kRedisMarkField}}, part.key, true, deadline, &replies);
    if (!error->ok() || replies[0].text != description.fill) return nullptr;
  }
  return table;
}

std::shared_ptr<const RedisTable> RedisTable::Make(const RedisNodes& nodes, const LowerRowsId& id,
                                                   RowFormat format, int64_t dim) {
  std::random_device random;
  Description description;
  description.fill = Hexadecimal(uint64_t{random()} << 32 | random());
  description.format = format;
  description.dim = dim;
  description.num_parts =
      std::clamp<int64_t>(nodes.num_primaries() * kPartsOfPrimary, 1, kMostParts);
  return std::make_shared<RedisTable>(&nodes, id, description);
}

Status RedisTable::Ask(const std::string& key, const std::vector<Words>& commands,
                       RedisDeadline deadline, std::vector<RedisReply>* replies) const {
  return nodes_.Run(commands, key, true, deadline, replies);
}

Status RedisTable::ForAllKeys(const Words& words, RedisDeadline deadline) const {
  std::vector<std::string> keys = {TableKey(id_)};
  for (const RedisPart& part : parts_) keys.push_back(part.key);
  std::vector<RedisReply> replies;
  for (const std::string& key : keys) {
    Words command = words;
    command.insert(command.begin() + 1, key);
    Status status = Ask(key, {command}, deadline, &replies);
    if (!status.ok()) return status;
  }
  return {};
}

Status RedisTable::Begin(RedisDeadline deadline, std::set<std::string>* histories) const {
  Status status = nodes_.Histories(deadline, histories);
  std::vector<RedisReply> replies;
  for (const RedisPart& part : parts_) {
    const Words make = {"HSET", part.key, kFillField, description_.fill};
    if (status.ok()) status = Ask(part.key, {make, {"EXPIRE", part.key, kDay}}, deadline, &replies);
    if (!status.ok()) return status;
  }
  return status;
}

Status RedisTable::CheckParts(int64_t num_rows, RedisDeadline deadline) const {
  std::vector<RedisReply> replies;
  int64_t num_found = 0;
  for (const RedisPart& part : parts_) {
    const std::vector<Words> ask = {{"HGET", part.key, kFillField}, {"HLEN", part.key}};
    Status status = Ask(part.key, ask, deadline, &replies);
    if (!status.ok()) return status;
    num_found += replies[0].text == description_.fill ? replies[1].number - 1 : -1;
  }
  if (num_found == num_rows) return {};
  return "tier redis=" + nodes_.options().text() + ": expected " + std::to_string(num_rows) +
         " rows, got " + std::to_string(num_found) +
         ", as Redis lost some while they were written; load them again";
}

Status RedisTable::CheckHistories(const std::set<std::string>& expected,
                                  RedisDeadline deadline) const {
  std::set<std::string> found;
  Status status = nodes_.Histories(deadline, &found);
  if (!status.ok()) return status;
  if (std::includes(expected.begin(), expected.end(), found.begin(), found.end())) return {};
  return "tier redis=" + nodes_.options().text() +
         ": a server has started again, or a replica has taken its place, while rows were written, "
         "of which it may lack some; load them again";
}

Status RedisTable::Complete(int64_t num_rows, const std::vector<char>& initial,
                            const std::set<std::string>& histories, RedisDeadline deadline) const {
  Status status = CheckParts(num_rows, deadline);
  std::vector<RedisReply> replies;
  for (const RedisPart& part : parts_) {
    if (!status.ok()) return status;
    const Words mark = {"HSET", part.key, kRedisMarkField, description_.fill};
    status = Ask(part.key, {mark}, deadline, &replies);
  }
  // A server that comes later and has a mark has the rows that were written before it.
  if (status.ok()) status = CheckHistories(histories, deadline);
  const std::string key = TableKey(id_);
  const Words fields = {kFillField, description_.fill,
                        "format",   std::to_string(static_cast<int>(description_.format)),
                        "dim",      std::to_string(description_.dim),
                        "parts",    std::to_string(description_.num_parts),
                        "rows",     std::to_string(num_rows),
                        "initial",  std::string(initial.begin(), initial.end())};
  Words describe = {"HSET", key};
  describe.insert(describe.end(), fields.begin(), fields.end());
  if (status.ok()) status = Ask(key, {describe}, deadline, &replies);
  return status.ok() ? Use(deadline) : status;
}

Status RedisTable::ReadInitial(RedisDeadline deadline, std::vector<char>* initial) const {
  std::vector<RedisReply> replies;
  const std::string key = TableKey(id_);
  Status status = Ask(key, {{"HGET", key, "initial"}}, deadline, &replies);
  if (status.ok()) initial->assign(replies[0].text.begin(), replies[0].text.end());
  return status;
}

Status RedisTable::Use(RedisDeadline deadline) const {
  std::vector<LowerRowsId> old;
  Status status = ForAllKeys({"PERSIST"}, deadline);
  if (status.ok()) status = MakeNewest(deadline, &old);
  for (const LowerRowsId& id : old) {
    if (!status.ok()) return status;
    const auto table = Find(nodes_, id, deadline, &status);
    if (table != nullptr) status = table->ForAllKeys({"EXPIRE", kDay}, deadline);
  }
  return status;
}

// `old`: all but the last content and the one before it, which are known no more.
Status RedisTable::MakeNewest(RedisDeadline deadline, std::vector<LowerRowsId>* old) const {
  const std::string key = ContentsKey(id_.table), own = Hexadecimal(id_.content);
  std::vector<RedisReply> replies;
  Status status = Ask(key, {{"HINCRBY", key, "sequence", "1"}}, deadline, &replies);
  if (!status.ok()) return status;
  const Words enter = {"HSET", key, own, std::to_string(replies[0].number)};
  status = Ask(key, {enter, {"HGETALL", key}}, deadline, &replies);
  if (!status.ok()) return status;
  std::vector<std::pair<int64_t, std::string>> others;
  const std::vector<RedisReply>& all = replies[1].elements;
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    if (all[i].text == own || all[i].text == "sequence") continue;
    others.emplace_back(Number(all[i + 1].text), all[i].text);
  }
  std::sort(others.rbegin(), others.rend());
  Words forget = {"HDEL", key};
  for (size_t i = 1; i < others.size(); ++i) {
    old->push_back({id_.table, std::strtoull(others[i].second.c_str(), nullptr, 16)});
    forget.push_back(others[i].second);
  }
  return old->empty() ? Status() : Ask(key, {forget}, deadline, &replies);
}

Status RedisTable::Prolong(RedisDeadline deadline) const {
  const std::string key = TableKey(id_);
  std::vector<RedisReply> replies;
  Status status = Ask(key, {{"TTL", key}}, deadline, &replies);
  if (!status.ok() || replies[0].number < 0) return status;
  return ForAllKeys({"EXPIRE", kDay}, deadline);
}

}  // namespace group_embedding
