// Redis below host memory: LowerRows in the hashes of redis_table.h.
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "serving/lower/lower_rows.h"
#include "serving/lower/redis/redis_table.h"

namespace group_embedding {
namespace {

constexpr double kSecondsToConnect = 5;
constexpr double kSecondsToAnswer = 1;  // of a call without a deadline
constexpr std::chrono::minutes kProlongAfter{10};

RedisDeadline EndOf(const Deadline& deadline) {
  return deadline.is_never() ? RedisDeadlineIn(kSecondsToAnswer) : deadline.end;
}

class RedisTier : public LowerTier, public std::enable_shared_from_this<RedisTier> {
 public:
  explicit RedisTier(std::unique_ptr<RedisNodes> nodes) : nodes_(std::move(nodes)) {}

  std::unique_ptr<LowerRows> Find(const LowerRowsId& id, int64_t dim, const Deadline& deadline,
                                  Status* error) override;
  std::unique_ptr<LowerRows> Make(const LowerRowsId& id, RowFormat format, int64_t dim) override;

  const RedisNodes& nodes() const { return *nodes_; }

 private:
  const std::unique_ptr<RedisNodes> nodes_;
};

class RedisRows : public LowerRows {
 public:
  RedisRows(std::shared_ptr<const RedisTier> tier, const LowerRowsId& id,
            std::shared_ptr<const RedisTable> table)
      : tier_(std::move(tier)),
        id_(id),
        format_(table->description().format),
        num_rows_(table->description().num_rows),
        table_(std::move(table)) {}

  RowFormat format() const override { return format_; }
  int64_t num_rows() const override { return num_rows_; }

  std::string tier() const override { return "redis=" + tier_->nodes().options().text(); }
  bool keeps_deadlines() const override { return true; }

  Status Read(const int64_t* keys, int64_t num_keys, const Deadline& limit, bool* found,
              const RowPlaces& rows) const override {
    const RedisDeadline deadline = EndOf(limit);
    std::shared_ptr<const RedisTable> table = TableNow(deadline);
    for (;;) {
      ReadRowCommands read(table->parts(), table->description().fill, keys, num_keys, found, rows);
      Status status = tier_->nodes().Run(&read, deadline);
      // They may have been loaded again, in other hashes.
      if (!read.found_no_mark() || !FindAgain(&table, deadline)) return status.In(Where());
    }
  }

  Status Write(const int64_t* keys, int64_t num_keys, const char* rows, bool,
               const Deadline& deadline) override {
    return Run(keys, num_keys, rows, EndOf(deadline), &num_rows_);
  }

  Status Erase(const int64_t* keys, int64_t num_keys, const Deadline& deadline) override {
    int64_t num_erased = 0;
    Status status = Run(keys, num_keys, nullptr, EndOf(deadline), &num_erased);
    num_rows_ -= num_erased;
    return status;
  }

  Status Complete(const std::vector<char>& initial, const Deadline& limit) override {
    const RedisDeadline deadline = EndOf(limit);
    Status status = Begin(deadline);
    if (status.ok()) status = table_->Complete(num_rows_, initial, histories_, deadline);
    return status.In(Where());
  }

  Status ReadInitial(const Deadline& limit, std::vector<char>* initial) const override {
    const RedisDeadline deadline = EndOf(limit);
    return TableNow(deadline)->ReadInitial(deadline, initial).In(Where());
  }

 private:
  std::string Where() const { return "table '" + id_.table + "', "; }

  Status Begin(RedisDeadline deadline) {
    if (has_begun_) return {};
    has_begun_ = true;
    return table_->Begin(deadline, &histories_);
  }

  // Writes rows, or erases keys, where `rows` is null.
  Status Run(const int64_t* keys, int64_t num_keys, const char* rows, RedisDeadline deadline,
             int64_t* count) {
    WriteRowCommands write(table_->parts(), keys, num_keys, table_->row_bytes(), rows, count);
    Status status = Begin(deadline);
    if (status.ok()) status = tier_->nodes().Run(&write, deadline);
    return status.In(Where());
  }

  // The hashes to read. Where another process has made the content an old one, they would expire
  // under this one; whoever may not prolong them, or cannot now, reads all the same.
  std::shared_ptr<const RedisTable> TableNow(RedisDeadline deadline) const {
    const auto now = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    const std::shared_ptr<const RedisTable> table = table_;
    if (now < prolong_at_) return table;
    prolong_at_ = now + kProlongAfter;
    lock.unlock();
    Status tried = table->Prolong(deadline);
    return table;
  }

  bool FindAgain(std::shared_ptr<const RedisTable>* table, RedisDeadline deadline) const {
    Status status;
    const auto found = RedisTable::Find(tier_->nodes(), id_, deadline, &status);
    if (found == nullptr || found->row_bytes() != (*table)->row_bytes()) return false;
    if (found->description().fill == (*table)->description().fill) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    table_ = *table = found;
    return true;
  }

  const std::shared_ptr<const RedisTier> tier_;
  const LowerRowsId id_;
  const RowFormat format_;
  int64_t num_rows_;
  bool has_begun_ = false;
  std::set<std::string> histories_;  // of the servers, when it began
  mutable std::mutex mutex_;         // of what follows, once the rows are read
  mutable std::shared_ptr<const RedisTable> table_;
  mutable std::chrono::steady_clock::time_point prolong_at_ =
      std::chrono::steady_clock::now() + kProlongAfter;
};

std::unique_ptr<LowerRows> RedisTier::Find(const LowerRowsId& id, int64_t dim,
                                           const Deadline& limit, Status* error) {
  const RedisDeadline deadline = EndOf(limit);
  const auto table = RedisTable::Find(*nodes_, id, deadline, error);
  *error = error->In("table '" + id.table + "', ");
  if (table == nullptr || table->description().dim != dim) return nullptr;
  Status used = table->Use(deadline);  // a user who may only read cannot say so, and need not
  return std::make_unique<RedisRows>(shared_from_this(), id, table);
}

std::unique_ptr<LowerRows> RedisTier::Make(const LowerRowsId& id, RowFormat format, int64_t dim) {
  auto table = RedisTable::Make(*nodes_, id, format, dim);
  return std::make_unique<RedisRows>(shared_from_this(), id, std::move(table));
}

}  // namespace

std::shared_ptr<LowerTier> OpenRedisTier(const std::string& where, Status* error) {
  static std::mutex mutex;
  static auto* open = new std::map<std::string, std::weak_ptr<RedisTier>>;
  RedisOptions options;
  *error = ReadRedisOptions(where, &options);
  if (!error->ok()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::shared_ptr<RedisTier> tier = (*open)[where].lock()) return tier;
  auto nodes = RedisNodes::Connect(options, RedisDeadlineIn(kSecondsToConnect), error);
  if (nodes == nullptr) return nullptr;
  auto tier = std::make_shared<RedisTier>(std::move(nodes));
  (*open)[where] = tier;
  return tier;
}

}  // namespace group_embedding
