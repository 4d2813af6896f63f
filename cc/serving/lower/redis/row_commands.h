// Commands that read and write rows in hashes of Redis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/lower/lower_rows.h"
#include "serving/lower/redis/redis_nodes.h"

namespace group_embedding {

// A field of a hash: that it is complete.
constexpr char kRedisMarkField[] = "mark";

// A hash of rows: its slot, and the beginnings of commands behind their number of words.
struct RedisPart {
  explicit RedisPart(std::string key);

  std::string key, read, write, erase;
  int slot = 0;
};

// Keys in the order of their parts, and how they are divided into commands.
class KeysOfParts {
 public:
  struct Range {
    int64_t part, begin, end;  // of the order
  };

  KeysOfParts(const int64_t* keys, int64_t num_keys, int64_t num_parts, int64_t most);

  const std::vector<Range>& ranges() const { return ranges_; }
  int64_t operator[](int64_t at) const { return order_.empty() ? at : order_[at]; }

 private:
  // Returns where each part ends in the order.
  std::vector<int64_t> Order(const int64_t* keys, int64_t num_keys, int64_t num_parts);

  std::vector<Range> ranges_;
  std::vector<int64_t> order_;  // empty: 0, 1, ...
};

class RowCommands : public RedisBatch {
 public:
  RowCommands(const std::vector<RedisPart>& parts, const int64_t* keys, int64_t num_keys,
              int64_t most)
      : keys_(keys),
        parts_(parts),
        in_parts_(keys, num_keys, static_cast<int64_t>(parts.size()), most) {}

  int64_t size() const override { return static_cast<int64_t>(in_parts_.ranges().size()); }
  int SlotOf(int64_t command) const override { return part(command).slot; }

 protected:
  const KeysOfParts::Range& range(int64_t command) const { return in_parts_.ranges()[command]; }
  const RedisPart& part(int64_t command) const { return parts_[range(command).part]; }
  int64_t IndexOf(int64_t at) const { return in_parts_[at]; }
  void AppendKey(int64_t at, std::string* bytes) const;

 private:
  const int64_t* const keys_;
  const std::vector<RedisPart>& parts_;
  const KeysOfParts in_parts_;
};

// Reads rows, and found [num_keys]. A part whose mark is not `fill` is
// an error.
class ReadRowCommands : public RowCommands {
 public:
  ReadRowCommands(const std::vector<RedisPart>& parts, const std::string& fill, const int64_t* keys,
                  int64_t num_keys, bool* found, const RowPlaces& rows);

  bool MayRepeat() const override { return true; }
  void Append(int64_t command, std::string* bytes) const override;
  Status Take(int64_t command, const RedisReply& header, RedisConnection* from,
              RedisDeadline deadline) override;
  // Whether a part has lost its rows.
  bool found_no_mark() const { return found_no_mark_; }

 private:
  const std::string& fill_;
  bool* const found_;
  const RowPlaces rows_;
  bool found_no_mark_ = false;
};

// Writes rows, or erases keys, where `rows` is null; counts the keys that came or went.
class WriteRowCommands : public RowCommands {
 public:
  WriteRowCommands(const std::vector<RedisPart>& parts, const int64_t* keys, int64_t num_keys,
                   int64_t row_bytes, const char* rows, int64_t* count);

  // How many keys were new would not be known.
  bool MayRepeat() const override { return false; }
  void Append(int64_t command, std::string* bytes) const override;
  Status Take(int64_t command, const RedisReply& header, RedisConnection* from,
              RedisDeadline deadline) override;

 private:
  const int64_t row_bytes_;
  const char* const rows_;
  int64_t* const count_;
};

}  // namespace group_embedding
