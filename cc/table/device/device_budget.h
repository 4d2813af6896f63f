// DeviceBudget: the budget of a table in GPU memory. Its keys go where they are found, in the call
// that would exceed it, by one launch (make_places.h); the host learns later which went.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/status.h"
#include "table/change_log.h"
#include "table/device/device_memory.h"
#include "table/device/make_places.h"
#include "table/evicted_rows.h"
#include "table/table_options.h"

namespace group_embedding {

// Whether a table in GPU memory can keep a budget: each share has space for a key.
Status CheckDeviceBudget(const TableOptions& options);

// Whether the table lends rows to new keys that find no place in the budget: no other row has the
// values that they start as. The rows are free again once the batches in flight have ended; what
// was trained in them is lost. If no row is left to lend, a key reads the constant of keys without
// a row.
bool LendsRows(const TableOptions& options);

// Not thread-safe: the caller has the table's lock.
class DeviceBudget {
 public:
  // max_keys: of the table.
  DeviceBudget(const TableOptions& options, int64_t max_keys, int64_t first_row,
               int64_t reserved_rows);
  ~DeviceBudget();
  DeviceBudget(const DeviceBudget&) = delete;
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  Status Begin();
  Status Grow(int64_t num_rows);  // that the table has from now on
  int64_t bytes() const;
  int64_t max_keys() const { return max_keys_; }
  int64_t MaxKeysOfShare(int64_t share) const { return budget_.MaxKeysOfShare(share, max_keys_); }
  int64_t least_keys_of_share() const { return MaxKeysOfShare(budget_.shares_of_rank() - 1); }
  // The most rows of keys and, with a budget of keys, of rows to lend. Where other batches hold
  // rows of keys that go, or lent rows, new keys need more.
  int64_t max_rows() const { return MaxRowsWith(max_keys_); }
  int64_t MaxRowsWith(int64_t max_keys) const;
  bool lends() const { return lends_; }
  // A call with so many keys may lend rows to all of them.
  void LendTo(int64_t num_keys) { most_lent_ = std::max(most_lent_, num_keys); }
  // The keys that a budget of bytes has space for, once the table has more slots. Waits for the
  // device.
  Status SetMaxKeys(int64_t max_keys);
  // The most keys that go in a call with at most so many new ones.
  int64_t MostToGo(int64_t num_new) const;
  // So many rows may become free, of which a call with so many keys needs some.
  int64_t MostFree(int64_t num_keys) const {
    return std::min(MostToGo(num_keys) + num_keys, max_rows());
  }

  // The batches in flight, some of which are the call's own.
  void SetBatches(const std::multiset<int64_t>& batches, const std::vector<int64_t>& own);
  // Before the first ArgsOfCall: memory for keys that go, of a size that stays.
  Status ListEvicted();
  // Whether it has no more memory for these than with so many keys.
  bool CanHave(int64_t max_keys) const;
  // clock: of the call. oldest_batch: of all.
  PlacesArgs ArgsOfCall(int64_t num_keys, int64_t clock, int64_t oldest_batch) const;

  // Keys came or went otherwise than by such calls.
  void ForgetShares(cudaStream_t stream);
  // Keys that the host has taken out for others, and given ones that found no place.
  void CountOnHost(int64_t num_evicted, int64_t num_without_place);

  // Wait for the stream. ReadEvicted: appends the keys that went since the last call, which then
  // wait to be handed out.
  BudgetCounts Counts(cudaStream_t stream) const;
  void ReadEvicted(ChangeLog* changes, cudaStream_t stream);
  EvictedRows* handed_out() const { return handed_out_.get(); }  // null: keys are not handed out
  void MakePlaceForEvicted(int64_t num_keys);  // before they are added to handed_out()

 private:
  struct Evicted {
    std::unique_ptr<DeviceMemory> keys, counts, versions, rows;  // null: not handed out
  };

  int64_t EvictedSize() const;
  std::vector<ShareLimit> Limits() const;
  // The last keys that went, from the n-th on, to the host.
  template <typename T>
  std::vector<T> ToHostFrom(const DeviceMemory& memory, int64_t n, int64_t width,
                            cudaStream_t stream) const;
  std::vector<std::pair<DeviceMemory*, int64_t>> EvictedMemory() const;  // and bytes of a key

  const Budget budget_;
  const bool lends_;
  int64_t max_keys_;
  int64_t most_lent_ = 0;  // rows that a call may lend
  const int64_t first_row_, row_bytes_;
  int64_t evicted_size_ = 0;      // of the list of keys that went; 0: none went
  PlacesState* state_ = nullptr;  // in device memory, as are:
  int64_t *num_free_of_blocks_ = nullptr, *num_gone_of_blocks_ = nullptr;
  unsigned long long* of_shares_ = nullptr;  // [2 num_shares] new ones and those that went
  int64_t* keys_of_share_ = nullptr;
  ShareLimit* limits_ = nullptr;
  std::unique_ptr<DeviceMemory> tied_, free_, gone_;
  Evicted evicted_;
  std::unique_ptr<EvictedRows> handed_out_;
  int64_t num_evicted_on_host_ = 0, num_without_place_on_host_ = 0, num_missed_ = 0;
  int64_t num_blocks_ = 0;
  int64_t oldest_other_ = 0;  // batch in flight beside the call's own; 0: there is none
  bool is_shared_ = false;    // there was one, in some call
  int64_t num_read_ = 0;      // of the keys that went
};

}  // namespace group_embedding
