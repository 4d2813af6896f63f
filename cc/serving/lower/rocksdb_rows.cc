// RocksdbRows: the rows of one content in RocksDB, read and written.
#include <algorithm>
#include <utility>

#include "serving/lower/rocksdb_tier.h"

namespace group_embedding {
namespace {

constexpr int64_t kReadAtOnce = 256;  // between two looks at the clock

class RocksdbRows : public LowerRows {
 public:
  RocksdbRows(std::shared_ptr<const RocksdbTier> tier, const LowerRowsId& id, RocksdbMark mark,
              int64_t dim)
      : tier_(std::move(tier)),
        id_(id),
        mark_(mark),
        row_bytes_(RowBytes(static_cast<RowFormat>(mark.format), dim)) {
    tier_->CountIn(id_.content);
  }
  ~RocksdbRows() override { tier_->CountOut(id_.content); }

  std::string tier() const override { return tier_->Name(); }
  bool keeps_deadlines() const override { return false; }  // a disk may hang
  RowFormat format() const override { return static_cast<RowFormat>(mark_.format); }
  int64_t num_rows() const override { return mark_.num_rows; }

  Status Read(const int64_t* keys, int64_t num_keys, const Deadline& deadline, bool* found,
              const RowPlaces& rows) const override {
    for (int64_t begin = 0; begin < num_keys; begin += kReadAtOnce) {
      if (deadline.is_over()) return Late(deadline);
      const int64_t end = std::min(begin + kReadAtOnce, num_keys);
      Status status = tier_->GetRows(id_.content, keys, begin, end, found, rows);
      if (!status.ok()) return status.In("table '" + id_.table + "', ");
    }
    return {};
  }

  Status Write(const int64_t* keys, int64_t num_keys, const char* rows, bool may_replace,
               const Deadline&) override {
    int64_t replaced = 0;
    if (may_replace) {
      Status status = Count(keys, num_keys, &replaced);
      if (!status.ok()) return status;
    }
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    for (int64_t i = 0; i < num_keys; ++i) {
      const RocksdbKey key(id_.content, keys[i]);
      tier_->api().writebatch_put(batch.get(), key.bytes, sizeof(key), rows + i * row_bytes_,
                                  row_bytes_);
    }
    mark_.num_rows += num_keys - replaced;
    return tier_->Write(batch.get(), false);
  }

  Status Erase(const int64_t* keys, int64_t num_keys, const Deadline&) override {
    int64_t erased = 0;
    Status status = Count(keys, num_keys, &erased);
    if (!status.ok()) return status;
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    for (int64_t i = 0; i < num_keys; ++i) {
      const RocksdbKey key(id_.content, keys[i]);
      tier_->api().writebatch_delete(batch.get(), key.bytes, sizeof(key));
    }
    mark_.num_rows -= erased;
    return tier_->Write(batch.get(), false);
  }

  Status Complete(const std::vector<char>& initial, const Deadline&) override {
    std::map<uint64_t, RocksdbMark> marks;
    Status status = tier_->Flush();
    if (status.ok()) status = tier_->Marks(id_.table, &marks);
    if (!status.ok()) return status;
    for (const auto& [content, mark] : marks) {
      mark_.sequence = std::max(mark_.sequence, mark.sequence + 1);
    }
    const RocksdbKey mark(kMarks, id_.content);
    const std::string beside = std::string(mark.bytes, sizeof(mark)) + kInitial;
    std::string value(reinterpret_cast<const char*>(&mark_), sizeof(mark_));
    value += id_.table;
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    tier_->api().writebatch_put(batch.get(), beside.data(), beside.size(), initial.data(),
                                initial.size());
    tier_->api().writebatch_put(batch.get(), mark.bytes, sizeof(mark), value.data(), value.size());
    status = tier_->Write(batch.get(), true);
    // The content before this one may be asked for again.
    for (const auto& [content, other] : marks) {
      const bool is_old = content != id_.content && other.sequence < mark_.sequence - 1;
      if (status.ok() && is_old && !tier_->IsOpen(content)) {
        status = tier_->Remove(content);
      }
    }
    return status;
  }

  Status ReadInitial(const Deadline&, std::vector<char>* initial) const override {
    const RocksdbKey mark(kMarks, id_.content);
    bool found = false;
    std::string value;
    Status status = tier_->Get(std::string(mark.bytes, sizeof(mark)) + kInitial, &found, &value);
    initial->assign(value.begin(), value.end());
    return status;
  }

 private:
  Status Late(const Deadline& deadline) const {
    return Status("rows were not read within the request's " + deadline.Text())
        .In("table '" + id_.table + "', " + tier_->Where());
  }
  // How many of the keys have rows.
  Status Count(const int64_t* keys, int64_t num_keys, int64_t* count) const {
    const std::unique_ptr<bool[]> found(new bool[num_keys]);
    std::vector<char> rows(num_keys * row_bytes_);
    Status status = Read(keys, num_keys, Deadline::Never(), found.get(), {rows.data(), row_bytes_});
    *count = std::count(found.get(), found.get() + num_keys, true);
    return status;
  }

  const std::shared_ptr<const RocksdbTier> tier_;
  const LowerRowsId id_;
  RocksdbMark mark_;
  const int64_t row_bytes_;
};

}  // namespace

std::unique_ptr<LowerRows> MakeRocksdbRows(std::shared_ptr<const RocksdbTier> tier,
                                           const LowerRowsId& id, const RocksdbMark& mark,
                                           int64_t dim) {
  return std::make_unique<RocksdbRows>(std::move(tier), id, mark, dim);
}

}  // namespace group_embedding
