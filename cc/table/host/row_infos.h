// RowInfos: what is kept of rows beside their values (RowInfo), 16 bytes each. Counts and versions
// that do not fit into those are kept elsewhere.
//
// Thread safety: different rows may be written at a time, and BeginBatch beside that, under one
// lock with SetMarks and SetOfBatch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/status.h"
#include "table/host/packed_info.h"
#include "table/host/row_clocks.h"
#include "table/host/wide_counts.h"
#include "table/keyed_rows.h"
#include "table/memory.h"

namespace group_embedding {

class RowInfos {
 public:
  // infos: [max_rows], as far as they are usable; zeros where no row was used.
  RowInfos(PackedInfo* infos, int64_t max_rows)
      : infos_(infos), max_rows_(max_rows), wide_counts_(max_rows) {}

  const PackedInfo* data() const { return infos_; }
  // The bytes of a row, with those that are kept elsewhere of all rows.
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(PackedInfo)) + (wide_versions_ == nullptr ? 0 : 8);
  }
  // The bytes of all counts that are kept elsewhere.
  int64_t bytes_of_counts() const { return wide_counts_.bytes(); }
  // Before rows until `num_rows` are used.
  Status Grow(int64_t num_rows);

  int64_t KeyOf(int64_t row) const { return infos_[row].key; }
  bool IsKeys(int64_t row) const { return ClockCode(row) != PackedInfo::kNoKey; }
  // For the row of a key.
  int64_t CountOf(int64_t row) const {
    const uint16_t count = infos_[row].count;
    return count == PackedInfo::kWideCount ? wide_counts_.Of(row) : count;
  }
  int64_t VersionOf(int64_t row) const {
    const uint32_t version = infos_[row].version;
    return version == PackedInfo::kWideVersion ? wide_versions_.load()[row] : int64_t{version} - 1;
  }
  int64_t ClockOf(int64_t row) const { return clocks_.ClockOf(ClockCode(row)); }
  RowInfo Info(int64_t row) const {
    if (!IsKeys(row)) return {KeyOf(row), -1, -1, 0};
    return {KeyOf(row), CountOf(row), VersionOf(row), ClockOf(row)};
  }

  // The row belongs to no key, whatever key is kept of it.
  void SetNoKeys(int64_t row) { SetClockCode(row, PackedInfo::kNoKey); }
  // As if trained in the present batch.
  void Set(int64_t row, int64_t key, int64_t count, int64_t version) {
    infos_[row].key = key;
    SetTrained(row, count, version);
  }
  void SetTrained(int64_t row, int64_t count, int64_t version) {
    SetCount(row, count);
    SetVersion(row, version);
    SetTrainedNow(row);
  }
  void SetTrainedNow(int64_t row) { SetClockCode(row, RowClocks::CodeInRing(clocks_.now())); }
  // info.clock: of this batch or a former one.
  void SetOfBatch(int64_t row, const RowInfo& info) {
    Set(row, info.key, info.count, info.version);
    SetClockCode(row, clocks_.CodeOf(info.clock));
  }

  int64_t clock() const { return clocks_.now(); }
  // num_rows: that were ever used.
  int64_t BeginBatch(int64_t num_rows) {
    return clocks_.BeginBatch(num_rows, [this](int64_t begin, int64_t end) { Freeze(begin, end); });
  }
  void SetMarks(std::vector<int64_t> marks) { clocks_.SetMarks(std::move(marks)); }

 private:
  // While a row's clock is frozen, another thread may train the row.
  uint16_t ClockCode(int64_t row) const {
    return __atomic_load_n(&infos_[row].clock, __ATOMIC_RELAXED);
  }
  void SetClockCode(int64_t row, uint16_t code) {
    __atomic_store_n(&infos_[row].clock, code, __ATOMIC_RELAXED);
  }
  void Freeze(int64_t begin, int64_t end);

  void SetCount(int64_t row, int64_t count) {
    uint16_t& packed = infos_[row].count;
    if (count < PackedInfo::kWideCount && packed != PackedInfo::kWideCount) {
      packed = static_cast<uint16_t>(count);
    } else {
      SetWideCount(row, count);
    }
  }
  void SetVersion(int64_t row, int64_t version) {
    const uint64_t packed = static_cast<uint64_t>(version) + 1;
    infos_[row].version = packed < PackedInfo::kWideVersion ? static_cast<uint32_t>(packed)
                                                            : PackedInfo::kWideVersion;
    if (packed >= PackedInfo::kWideVersion) WideVersions()[row] = version;
  }

  // The rest is for few rows, or few tables.
  void SetWideCount(int64_t row, int64_t count);
  int64_t* WideVersions();

  PackedInfo* const infos_;
  const int64_t max_rows_;
  RowClocks clocks_;
  WideCounts wide_counts_;
  std::mutex wide_mutex_;  // of what follows, but for reading the pointer
  int64_t usable_rows_ = 0;
  std::unique_ptr<Memory> wide_memory_;
  std::atomic<int64_t*> wide_versions_{nullptr};  // [usable_rows]; null: no row has needed it
};

}  // namespace group_embedding
