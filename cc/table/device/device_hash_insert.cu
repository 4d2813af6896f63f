// Rows that a caller gives, as of a checkpoint, are inserted in a DeviceHash.
#include <algorithm>
#include <unordered_map>

#include "core/device_buffer.h"
#include "table/check_table.h"
#include "table/complete_rows.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"

namespace group_embedding {
namespace {

constexpr int64_t kKeysAtOnce = 1 << 20;

}  // namespace

// If a key repeats, its last row is inserted.
Status DeviceHash::Insert(const KeyedRowsView& given, const ParallelFor&) {
  const Status wrong = CheckCounts(options(), given);
  if (!wrong.ok()) return wrong;
  KeyedRows rows;
  Status incomplete = CompleteRows(*this, given, &rows);
  if (incomplete.ok() && !has_tier_below()) incomplete = FitIntoBudget(&rows);
  if (!incomplete.ok()) return incomplete;
  std::unordered_map<int64_t, size_t> last;
  for (size_t i = 0; i < rows.keys.size(); ++i) last[rows.keys[i]] = i;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    if (last[rows.keys[i]] == i) chosen.push_back(i);
  }
  const Alone alone(*this);
  ++clock_;  // the next snapshot of changes has these rows
  // In a budget of bytes, counts of as many keys as the largest call has may have to find space.
  const int64_t at_once =
      HasBudgetOfBytes() ? std::min(kKeysAtOnce, budget_->max_keys() / 16 + 1) : kKeysAtOnce;
  for (size_t begin = 0; begin < chosen.size(); begin += at_once) {
    const size_t end = std::min(chosen.size(), begin + static_cast<size_t>(at_once));
    const Status status = InsertSome(rows, {chosen.begin() + begin, chosen.begin() + end});
    if (!status.ok()) return status;
  }
  return {};
}

// A key that finds no row is left as it was.
Status DeviceHash::InsertSome(const KeyedRows& rows, const std::vector<size_t>& chosen) {
  const cudaStream_t stream = streams_.own();
  const auto count = static_cast<int64_t>(chosen.size());
  std::vector<int64_t> keys;
  for (const size_t i : chosen) keys.push_back(rows.keys[i]);
  const std::vector<int64_t> none(count, kNoRow);
  const DeviceBuffer<int64_t> device_keys(keys.data(), count, stream);
  DeviceBuffer<int64_t> device_rows(none.data(), count, stream);
  const DeviceKeysToLocate request{this, device_keys.data(), count, device_rows.data()};
  DeviceBuffer<char> scratch(LocateRowsScratchBytes(&request, 1, Access::kTrain));
  // Copies rows for the snapshot as it goes.
  const Status status =
      InsertRowsCuda(this, device_keys.data(), count, device_rows.data(), scratch.data(), stream);
  const std::vector<int64_t> found = ToHost(device_rows.data(), count, stream);
  std::vector<size_t> with_row;
  std::vector<int64_t> rows_of_keys;
  for (int64_t i = 0; i < count; ++i) {
    if (found[i] < first_row()) continue;
    with_row.push_back(chosen[i]);
    rows_of_keys.push_back(found[i]);
  }
  if (!with_row.empty()) WriteGiven(rows, with_row, rows_of_keys);
  if (!status.ok() || with_row.size() == chosen.size()) return status;
  return FullError("other batches hold rows that lost their keys");
}

// Writes what `rows` has for each i of `chosen` to the rows `to`.
void DeviceHash::WriteGiven(const KeyedRows& rows, const std::vector<size_t>& chosen,
                            const std::vector<int64_t>& to) {
  const cudaStream_t stream = streams_.own();
  const auto count = static_cast<int64_t>(chosen.size());
  const DeviceBuffer<int64_t> device_rows(to.data(), count, stream);
  auto scatter = [&](const void* from, int64_t bytes, void* array) {
    RequireCuda(ScatterRows(static_cast<const char*>(from), device_rows.data(), count,
                            static_cast<int32_t>(bytes), static_cast<char*>(array), stream));
    RequireCuda(cudaStreamSynchronize(stream));
  };
  auto scatter_chosen = [&](const std::vector<char>& from, int64_t bytes, char* array) {
    std::vector<char> host(count * bytes);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from.data() + chosen[i] * bytes, bytes, host.data() + i * bytes);
    }
    const DeviceBuffer<char> device(host.data(), count * bytes, stream);
    scatter(device.data(), bytes, array);
  };
  std::vector<RowInfo> infos;
  for (const size_t i : chosen) {
    infos.push_back({rows.keys[i], rows.counts[i], rows.versions[i], clock_});
  }
  const DeviceBuffer<RowInfo> device_infos(infos.data(), count, stream);
  scatter(device_infos.data(), sizeof(RowInfo), ref_.infos);
  scatter_chosen(rows.values, RowBytes(), ref_.rows);
  for (size_t s = 0; s < slots_.size(); ++s) {
    char* array = slot_arrays_[s]->data();
    if (s < rows.slots.size() && !rows.slots[s].empty()) {
      scatter_chosen(rows.slots[s], SlotBytes(s), array);
      continue;
    }
    const DeviceBuffer<char> initial(count * SlotBytes(s));
    RequireCuda(FillSlotArray({initial.data(), slots_[s].width, slots_[s].dtype, slots_[s].initial},
                              count, stream));
    scatter(initial.data(), SlotBytes(s), array);
  }
}

}  // namespace group_embedding
