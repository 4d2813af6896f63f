#include "serving/lower/redis/row_commands.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "table/initial_values.h"

namespace group_embedding {
namespace {

constexpr int64_t kKeysOfOneRead = 512, kBytesOfOneWrite = 1 << 20;

std::string Strings(const std::vector<std::string>& words) {
  std::string bytes;
  for (const std::string& word : words) AppendRedisString(word.data(), word.size(), &bytes);
  return bytes;
}

void AppendCount(int64_t num_words, std::string* bytes) {
  *bytes += '*';
  *bytes += std::to_string(num_words);
  *bytes += "\r\n";
}

int64_t PartOf(int64_t key, int64_t num_parts) {
  const auto parts = static_cast<uint64_t>(num_parts);
  return static_cast<int64_t>(MixBits(static_cast<uint64_t>(key)) % parts);
}

}  // namespace

RedisPart::RedisPart(std::string name)
    : key(std::move(name)),
      read(Strings({"HMGET", key, kRedisMarkField})),
      write(Strings({"HSET", key})),
      erase(Strings({"HDEL", key})),
      slot(RedisSlotOf(key)) {}

KeysOfParts::KeysOfParts(const int64_t* keys, int64_t num_keys, int64_t num_parts, int64_t most) {
  const std::vector<int64_t> ends = Order(keys, num_keys, num_parts);
  for (int64_t part = 0, begin = 0; part < num_parts; ++part) {
    for (int64_t end; begin < ends[part]; begin = end) {
      end = std::min(begin + most, ends[part]);
      ranges_.push_back({part, begin, end});
    }
  }
}

std::vector<int64_t> KeysOfParts::Order(const int64_t* keys, int64_t num_keys, int64_t num_parts) {
  if (num_parts == 1) return {num_keys};
  std::vector<int64_t> parts(num_keys), ends(num_parts);
  for (int64_t i = 0; i < num_keys; ++i) ++ends[parts[i] = PartOf(keys[i], num_parts)];
  for (int64_t part = 1; part < num_parts; ++part) ends[part] += ends[part - 1];
  order_.resize(num_keys);
  std::vector<int64_t> next = ends;
  for (int64_t i = num_keys; i-- > 0;) order_[--next[parts[i]]] = i;
  return ends;
}

void RowCommands::AppendKey(int64_t at, std::string* bytes) const {
  constexpr char kDigits[] = "0123456789abcdef";
  char word[] = "$16\r\n0123456789abcdef\r\n";
  auto key = static_cast<uint64_t>(keys_[IndexOf(at)]);
  for (char* digit = word + 5 + 16; digit-- > word + 5; key >>= 4) *digit = kDigits[key & 15];
  bytes->append(word, sizeof(word) - 1);
}

ReadRowCommands::ReadRowCommands(const std::vector<RedisPart>& parts, const std::string& fill,
                                 const int64_t* keys, int64_t num_keys, bool* found,
                                 const RowPlaces& rows)
    : RowCommands(parts, keys, num_keys, kKeysOfOneRead), fill_(fill), found_(found), rows_(rows) {}

void ReadRowCommands::Append(int64_t command, std::string* bytes) const {
  const KeysOfParts::Range keys = range(command);
  AppendCount(keys.end - keys.begin + 3, bytes);
  *bytes += part(command).read;
  for (int64_t at = keys.begin; at < keys.end; ++at) AppendKey(at, bytes);
}

Status ReadRowCommands::Take(int64_t command, const RedisReply& header, RedisConnection* from,
                             RedisDeadline deadline) {
  const KeysOfParts::Range keys = range(command);
  const int64_t expected = keys.end - keys.begin + 1;
  if (header.type != '*' || header.number != expected) {
    return "expected " + std::to_string(expected) + " values, got another reply";
  }
  std::string mark(fill_.size(), '\0');
  bool is_there = false;
  Status status =
      from->TakeBytes(static_cast<int64_t>(mark.size()), &is_there, mark.data(), deadline);
  if (!status.ok()) return status;
  found_no_mark_ = !is_there || mark != fill_;
  if (found_no_mark_) {
    return "the rows are gone, as Redis came back without its data or has too little memory; run "
           "python -m group_embedding.serving load";
  }
  for (int64_t at = keys.begin; at < keys.end && status.ok(); ++at) {
    const int64_t i = IndexOf(at);
    status = from->TakeBytes(rows_.row_bytes, found_ + i, rows_[i], deadline);
  }
  return status;
}

WriteRowCommands::WriteRowCommands(const std::vector<RedisPart>& parts, const int64_t* keys,
                                   int64_t num_keys, int64_t row_bytes, const char* rows,
                                   int64_t* count)
    : RowCommands(parts, keys, num_keys, std::max<int64_t>(kBytesOfOneWrite / row_bytes, 1)),
      row_bytes_(row_bytes),
      rows_(rows),
      count_(count) {}

void WriteRowCommands::Append(int64_t command, std::string* bytes) const {
  const KeysOfParts::Range keys = range(command);
  AppendCount((rows_ == nullptr ? 1 : 2) * (keys.end - keys.begin) + 2, bytes);
  *bytes += rows_ == nullptr ? part(command).erase : part(command).write;
  for (int64_t at = keys.begin; at < keys.end; ++at) {
    AppendKey(at, bytes);
    if (rows_ != nullptr) AppendRedisString(rows_ + IndexOf(at) * row_bytes_, row_bytes_, bytes);
  }
}

Status WriteRowCommands::Take(int64_t, const RedisReply& header, RedisConnection*, RedisDeadline) {
  if (header.type != ':') return "expected a number of keys, got another reply";
  *count_ += header.number;
  return {};
}

}  // namespace group_embedding
