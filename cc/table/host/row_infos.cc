#include "table/host/row_infos.h"

#include "table/no_memory.h"

namespace group_embedding {

Status RowInfos::Grow(int64_t num_rows) {
  std::lock_guard<std::mutex> lock(wide_mutex_);
  Status status = wide_counts_.Grow(num_rows);
  if (status.ok() && wide_memory_ != nullptr) {
    status = wide_memory_->Grow(num_rows * static_cast<int64_t>(sizeof(int64_t)));
  }
  if (status.ok()) usable_rows_ = num_rows;
  return status;
}

void RowInfos::Freeze(int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    uint16_t code = ClockCode(row);
    const uint16_t frozen = clocks_.Freeze(code);
    if (frozen == code) continue;
    // Unless the row has been trained, or given back, meanwhile.
    __atomic_compare_exchange_n(&infos_[row].clock, &code, frozen, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  }
}

void RowInfos::SetWideCount(int64_t row, int64_t count) {
  if (count < PackedInfo::kWideCount) {
    infos_[row].count = static_cast<uint16_t>(count);
    wide_counts_.Erase(row);
  } else {
    wide_counts_.Set(row, count);
    infos_[row].count = PackedInfo::kWideCount;
  }
}

int64_t* RowInfos::WideVersions() {
  if (int64_t* versions = wide_versions_; versions != nullptr) return versions;
  std::lock_guard<std::mutex> lock(wide_mutex_);
  if (wide_memory_ == nullptr) {
    constexpr int64_t kBytes = sizeof(int64_t);
    auto memory = ReserveHostMemory(max_rows_ * kBytes);
    if (!memory->Grow(usable_rows_ * kBytes).ok()) throw NoMemory(usable_rows_ * kBytes);
    wide_memory_ = std::move(memory);
    wide_versions_ = reinterpret_cast<int64_t*>(wide_memory_->data());
  }
  return wide_versions_;
}

}  // namespace group_embedding
