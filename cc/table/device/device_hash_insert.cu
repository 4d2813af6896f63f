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
    const size_t count = std::min<size_t>(at_once, chosen.size() - begin);
    Status status = InsertSome(rows, chosen.data() + begin, static_cast<int64_t>(count));
    if (!status.ok()) return status;
  }
  return {};
}

Status DeviceHash::InsertSome(const KeyedRows& rows, const size_t* chosen, int64_t count) {
  const cudaStream_t stream = streams_.own();
  std::vector<RowInfo> infos;
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = chosen[i];
    keys.push_back(rows.keys[at]);
    infos.push_back({rows.keys[at], rows.counts[at], rows.versions[at], clock_});
  }
  DeviceBuffer<int64_t> device_keys(keys.data(), count, stream), device_rows(count);
  const DeviceKeysToLocate request{this, device_keys.data(), count, device_rows.data()};
  DeviceBuffer<char> scratch(LocateRowsScratchBytes(&request, 1, Access::kTrain));
  // Copies rows for the snapshot as it goes.
  const Status inserted =
      InsertRowsCuda(this, device_keys.data(), count, device_rows.data(), scratch.data(), stream);
  if (!inserted.ok()) return inserted;
  for (const int64_t row : ToHost(device_rows.data(), count, stream)) {
    if (row < first_row()) return FullError("other batches hold rows that lost their keys");
  }
  auto scatter = [&](const char* from, int64_t bytes, char* to) {
    RequireCuda(
        ScatterRows(from, device_rows.data(), count, static_cast<int32_t>(bytes), to, stream));
    RequireCuda(cudaStreamSynchronize(stream));
  };
  auto scatter_chosen = [&](const std::vector<char>& from, int64_t bytes, char* to) {
    std::vector<char> host(count * bytes);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from.data() + chosen[i] * bytes, bytes, host.data() + i * bytes);
    }
    const DeviceBuffer<char> device(host.data(), count * bytes, stream);
    scatter(device.data(), bytes, to);
  };
  const DeviceBuffer<RowInfo> device_infos(infos.data(), count, stream);
  scatter(reinterpret_cast<const char*>(device_infos.data()), sizeof(RowInfo),
          reinterpret_cast<char*>(ref_.infos));
  scatter_chosen(rows.values, RowBytes(), ref_.rows);
  for (size_t s = 0; s < slots_.size(); ++s) {
    char* to = slot_arrays_[s]->data();
    if (s < rows.slots.size() && !rows.slots[s].empty()) {
      scatter_chosen(rows.slots[s], SlotBytes(s), to);
      continue;
    }
    const DeviceBuffer<char> initial(count * SlotBytes(s));
    RequireCuda(FillSlotArray({initial.data(), slots_[s].width, slots_[s].dtype, slots_[s].initial},
                              count, stream));
    scatter(initial.data(), SlotBytes(s), to);
  }
  return {};
}

}  // namespace group_embedding
