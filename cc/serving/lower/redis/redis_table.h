// RedisTable: the keys of Redis that have the rows of one table, and what describes them.
//
//   group_embedding:rows:{FILL.PART}:TABLE -> a hash: key (16 hexadecimal digits) -> a row, and
//                                             "fill" and, once it is complete, "mark" -> FILL
//   group_embedding:base:{CONTENT}:TABLE   -> a hash: fill, format, dim, parts, rows, initial
//   group_embedding:contents:TABLE         -> a hash: content -> sequence, which rises
//
// Redis's time for a row is that of reads of memory which no cache has: of a bucket, its entry, the
// entry's key and the value. A key of 16 bytes takes as much memory as an entry, and jemalloc puts
// the two beside each other: Redis takes 10% to 12% less time than with the 8 bytes of a number.
//
// One hash has the rows of a table, or one of several: in a cluster each lies on some node. Every
// read asks for the hash's mark, too, in the same command. So a hash that was lost as a whole (a
// server that came back empty, memory that was made free) is an error, and no key of it seems to be
// absent; nor can one row be lost alone, as rows can that are keys of Redis.
//
// Each process fills hashes of its own, named by a random FILL, and makes them known when they are
// complete: processes that fill at the same time do not mix. A server that starts again, or a
// replica that takes its place, may lack the last rows, and have a former one of a key: a filling
// during which that happens does not become complete. Hashes that are being filled expire after a
// day, and so do old contents, which processes that read them prolong.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"
#include "serving/lower/lower_rows.h"
#include "serving/lower/redis/row_commands.h"

namespace group_embedding {

class RedisTable {
 public:
  struct Description {
    std::string fill;
    RowFormat format = RowFormat::kFloat32;
    int64_t dim = 0, num_parts = 0, num_rows = 0;
  };

  // `nodes`: outlives the table. All calls end by their deadlines.
  RedisTable(const RedisNodes* nodes, const LowerRowsId& id, const Description& description);

  // What Redis has for `id`, if it is complete; null if not, or on an error.
  static std::shared_ptr<const RedisTable> Find(const RedisNodes& nodes, const LowerRowsId& id,
                                                RedisDeadline deadline, Status* error);
  // Hashes to be filled, under names that nobody has.
  static std::shared_ptr<const RedisTable> Make(const RedisNodes& nodes, const LowerRowsId& id,
                                                RowFormat format, int64_t dim);

  const Description& description() const { return description_; }
  const std::vector<RedisPart>& parts() const { return parts_; }
  int64_t row_bytes() const { return RowBytes(description_.format, description_.dim); }

  // Makes the hashes. Should one be lost while it is filled, its "fill" is lost, too. `histories`:
  // of the servers, as RedisNodes says.
  Status Begin(RedisDeadline deadline, std::set<std::string>* histories) const;
  // Marks the hashes as complete, if they have so many rows and the servers no other histories than
  // at the beginning, and describes them.
  Status Complete(int64_t num_rows, const std::vector<char>& initial,
                  const std::set<std::string>& histories, RedisDeadline deadline) const;
  Status ReadInitial(RedisDeadline deadline, std::vector<char>* initial) const;
  // The table stays, and so does the content before it; older ones expire.
  Status Use(RedisDeadline deadline) const;
  // If the table expires: later.
  Status Prolong(RedisDeadline deadline) const;

 private:
  using Words = std::vector<std::string>;

  Status Ask(const std::string& key, const std::vector<Words>& commands, RedisDeadline deadline,
             std::vector<RedisReply>* replies) const;
  // `words` with each key of the table as the second word.
  Status ForAllKeys(const Words& words, RedisDeadline deadline) const;
  Status CheckParts(int64_t num_rows, RedisDeadline deadline) const;
  Status CheckHistories(const std::set<std::string>& expected, RedisDeadline deadline) const;
  Status MakeNewest(RedisDeadline deadline, std::vector<LowerRowsId>* old) const;

  const RedisNodes& nodes_;
  const LowerRowsId id_;
  const Description description_;
  std::vector<RedisPart> parts_;
};

}  // namespace group_embedding
