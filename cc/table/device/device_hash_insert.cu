// Rows that a caller gives, as of a checkpoint, are inserted in a DeviceHash.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/device_buffer.h"
#include "table/check_table.h"
#include "table/complete_rows.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"

namespace group_embedding {
namespace {

constexpr int64_t kKeysAtOnce = 1 << 20, kBytesAtOnce = int64_t{64} << 20;

}  // namespace

// If a key repeats, its last row is inserted.
Status DeviceHash::Insert(const KeyedRowsView& given, const ParallelFor&) {
  const Status wrong = CheckCounts(options(), given);
  if (!wrong.ok()) return wrong;
  KeyedRows rows;
  Status incomplete = CompleteRows(*this, given, &rows);
  if (incomplete.ok() && !has_tier_below() && !given.has_places) incomplete = FitIntoBudget(&rows);
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
  int64_t at_once = std::min(kKeysAtOnce, kBytesAtOnce / WidestBytes() + 1);
  if (HasBudgetOfBytes()) at_once = std::min(at_once, budget_->max_keys() / 16 + 1);
  for (size_t begin = 0; begin < chosen.size(); begin += at_once) {
    const size_t end = std::min(chosen.size(), begin + static_cast<size_t>(at_once));
    const Status status = InsertSome(rows, {chosen.begin() + begin, chosen.begin() + end});
    if (!status.ok()) return status;
  }
  return {};
}

// A key that finds no row is left as it was. All memory is allocated before a key has a row that is
// not written yet.
Status DeviceHash::InsertSome(const KeyedRows& rows, const std::vector<size_t>& chosen) {
  const cudaStream_t stream = streams_.own();
  const auto count = static_cast<int64_t>(chosen.size());
  std::vector<int64_t> keys, to(count, kNoRow);
  for (const size_t i : chosen) keys.push_back(rows.keys[i]);
  const DeviceBuffer<int64_t> device_keys(keys.data(), count, stream);
  const DeviceBuffer<int64_t> device_rows(to.data(), count, stream);
  const DeviceKeysToLocate request{this, device_keys.data(), count, device_rows.data()};
  const DeviceBuffer<char> scratch(LocateRowsScratchBytes(&request, 1, Access::kTrain));
  const DeviceBuffer<char> values(count * WidestBytes());
  std::vector<char> host_values(count * WidestBytes());
  // Copies rows for the snapshot as it goes.
  const Status status =
      InsertRowsCuda(this, device_keys.data(), count, device_rows.data(), scratch.data(), stream);
  to = ToHost(device_rows.data(), count, stream);
  std::vector<size_t> with_row;
  for (int64_t i = 0; i < count; ++i) {
    if (to[i] < first_row()) continue;
    to[with_row.size()] = to[i];
    with_row.push_back(chosen[i]);
  }
  to.resize(with_row.size());
  RequireCuda(cudaMemcpyAsync(device_rows.data(), to.data(), to.size() * sizeof(int64_t),
                              cudaMemcpyHostToDevice, stream));
  WriteGiven(rows, with_row, {device_rows.data(), values.data(), host_values.data()});
  if (!status.ok() || with_row.size() == chosen.size()) return status;
  return FullError("other batches hold rows that lost their keys");
}

int64_t DeviceHash::WidestBytes() const {
  int64_t bytes = std::max<int64_t>(RowBytes(), sizeof(RowInfo));
  for (size_t s = 0; s < slots_.size(); ++s) bytes = std::max(bytes, SlotBytes(s));
  return bytes;
}

// Writes what `rows` has for each i of `chosen`, one array after the other.
void DeviceHash::WriteGiven(const KeyedRows& rows, const std::vector<size_t>& chosen,
                            const GivenRows& to) {
  const cudaStream_t stream = streams_.own();
  const auto count = static_cast<int64_t>(chosen.size());
  if (count == 0) return;
  auto scatter = [&](int64_t bytes, void* array) {
    RequireCuda(ScatterRows(to.values, to.rows, count, static_cast<int32_t>(bytes),
                            static_cast<char*>(array), stream));
    RequireCuda(cudaStreamSynchronize(stream));
  };
  auto write = [&](int64_t bytes, void* array) {
    RequireCuda(
        cudaMemcpyAsync(to.values, to.host_values, count * bytes, cudaMemcpyHostToDevice, stream));
    scatter(bytes, array);
  };
  auto write_chosen = [&](const std::vector<char>& from, int64_t bytes, char* array) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from.data() + chosen[i] * bytes, bytes, to.host_values + i * bytes);
    }
    write(bytes, array);
  };
  for (int64_t i = 0; i < count; ++i) {
    const size_t from = chosen[i];
    const RowInfo info{rows.keys[from], rows.counts[from], rows.versions[from], clock_};
    std::memcpy(to.host_values + i * sizeof(info), &info, sizeof(info));
  }
  write(sizeof(RowInfo), ref_.infos);
  write_chosen(rows.values, RowBytes(), ref_.rows);
  for (size_t s = 0; s < slots_.size(); ++s) {
    char* array = slot_arrays_[s]->data();
    if (s < rows.slots.size() && !rows.slots[s].empty()) {
      write_chosen(rows.slots[s], SlotBytes(s), array);
      continue;
    }
    RequireCuda(FillSlotArray({to.values, slots_[s].width, slots_[s].dtype, slots_[s].initial},
                              count, stream));
    scatter(SlotBytes(s), array);
  }
}

}  // namespace group_embedding
