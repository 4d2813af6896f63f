// Rows of the next batch come from disk ahead of it, piece by piece, while the device computes this
// batch. A piece waits for none of that: streams are taken to use rows of batches in flight alone,
// as of the mark that PrefetchAhead sets (device_streams.h). These rows stay in memory.
//
// Rows are brought by a call that locates keys or by a thread that waits for the mark: the one that
// has the mutex. The rows count as located just before the oldest batch in flight began: a batch
// that comes instead of the next one may send them back to disk.
#include <algorithm>
#include <exception>

#include "core/trace.h"
#include "table/device/device_table.h"
#include "table/disk/disk_tiered_hash.h"

namespace group_embedding {
namespace {

class AfterMark {
 public:
  explicit AfterMark(DeviceStreams* streams) : streams_(*streams) { streams_.BeginAfterMark(); }
  ~AfterMark() { streams_.EndAfterMark(); }
  AfterMark(const AfterMark&) = delete;
  AfterMark& operator=(const AfterMark&) = delete;

 private:
  DeviceStreams& streams_;
};

}  // namespace

void DiskTieredHash::PrefetchAhead(const std::vector<DeviceKeys>& keys, cudaStream_t stream) {
  ahead_ = nullptr;
  if (snapshot_ != nullptr || !disk_->failed().ok() || disk_->store().num_keys() == 0) return;
  streams_.Use(stream);
  cudaStream_t own = streams_.own();
  streams_.Follow(&own, stream);  // the memory of the keys is the own stream's
  try {
    ahead_.reset(new KeysAhead{{keys, streams_.own(), stream},
                               batches_.empty() ? ++clock_ : *batches_.begin() - 1});
  } catch (const std::exception&) {  // without memory the rows are left to the lookup
  }
  streams_.Mark();
}

bool DiskTieredHash::IsPrefetching() const {
  return ahead_ != nullptr && snapshot_ == nullptr && !streams_.IsUsedSinceMark();
}

bool DiskTieredHash::PrefetchSome() {
  bool are_more = false;
  if (IsPrefetching()) {
    try {
      are_more = PrefetchNext(ahead_.get());
    } catch (const std::exception&) {  // the lookup meets it, too
    }
  }
  if (!are_more) ahead_ = nullptr;
  return are_more;
}

bool DiskTieredHash::PrefetchNext(KeysAhead* ahead) {
  const AfterMark after(&streams_);
  if (!ahead->is_sought) {
    ahead->missing = Missing(ahead->keys, RefAt(ahead->held_since));
    ahead->is_sought = true;
    return !ahead->missing.empty();
  }
  const size_t num_missing = ahead->missing.size();
  const auto count = std::min<size_t>(RowsOnDisk::kAtOnce, num_missing - ahead->num_prefetched);
  FoundOnDisk found;
  Status status = disk_->Find(ahead->missing.data() + ahead->num_prefetched,
                              static_cast<int64_t>(count), &found);
  if (status.ok()) {
    status = TakeIn(found, static_cast<int64_t>(found.keys.size()), 0, ahead->held_since);
  }
  ahead->num_prefetched += count;
  return status.ok() && ahead->num_prefetched < num_missing;
}

bool HasRowsToPrefetch(const DeviceHash& table) {
  const std::lock_guard<std::mutex> lock(table.mutex());
  return table.IsPrefetching();
}

void AwaitRowsToPrefetch(const DeviceHash& table) { table.AwaitMark(); }

bool PrefetchFromDisk(DeviceHash* table) {
  const Stage stage("bring rows from disk");
  const std::lock_guard<std::mutex> lock(table->mutex());
  return table->PrefetchSome();
}

}  // namespace group_embedding
