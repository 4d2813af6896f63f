#include "table/host/row_store.h"

#include <algorithm>
#include <new>

#include "core/rows.h"
#include "table/host/row_index.h"
#include "table/large_pages.h"
#include "table/memory_left.h"
#include "table/no_memory.h"

namespace group_embedding {
namespace {

constexpr int64_t kMostAhead = 2 * kLargePage;
constexpr char kTooLittle[] = "too little memory is left";

// values[0, count) = value, in the type that `dtype` names.
void Fill(float value, DataType dtype, int64_t count, void* values) {
  ForDataType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::fill_n(static_cast<T*>(values), count, FromFloat<T>(value));
  });
}

}  // namespace

RowStore::RowStore(const TableOptions& options, const void* matrix, Status* error)
    : options_(options),
      row_bytes_(options.dim * SizeOf(options.dtype)),
      first_row_(options.initial.matrix_rows + 1),
      max_bytes_(options.max_bytes > 0 ? options.max_bytes : PhysicalBytes()),
      reserved_rows_(std::min(
          max_bytes_ / (row_bytes_ + static_cast<int64_t>(sizeof(PackedInfo))) + first_row_,
          RowIndex::kMaxRows)),
      rows_{ReserveHostMemory(reserved_rows_ * row_bytes_)},
      packed_infos_{ReserveHostMemory(reserved_rows_ * static_cast<int64_t>(sizeof(PackedInfo)))},
      infos_(reinterpret_cast<PackedInfo*>(packed_infos_.data()), reserved_rows_) {
  *error = GrowTo(first_row_);
  if (!error->ok()) return;
  num_rows_ = first_row_;
  const int64_t matrix_rows = options.initial.matrix_rows;
  if (matrix_rows > 0) std::memcpy(Row(0), matrix, matrix_rows * row_bytes_);
  Fill(options.no_row_value, options.dtype, options.dim, Row(matrix_rows));
}

int64_t RowStore::BytesPerRow(const std::vector<SlotOptions>& more) const {
  int64_t bytes = row_bytes_ + infos_.bytes();
  for (size_t s = 0; s < slots_.size(); ++s) bytes += slot_row_bytes(s);
  return bytes + BytesOfNewSlots(slots_, more);
}

int64_t RowStore::max_rows(const std::vector<SlotOptions>& more) const {
  return std::min({max_bytes_ / BytesPerRow(more), reserved_rows_ - first_row_, limit_});
}

void RowStore::LimitRows(int64_t max_rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = max_rows;
}

Status RowStore::GrowTo(int64_t num_rows) {
  if (num_rows <= usable_rows_) return {};
  const int64_t max_rows = first_row_ + this->max_rows();
  Status status;
  if (num_rows > max_rows) {
    status = std::to_string(max_rows - first_row_) + " rows of " + std::to_string(BytesPerRow()) +
             " bytes (dim " + std::to_string(options_.dim) + ", " + std::to_string(slots_.size()) +
             " slots) fill the " + std::to_string(max_bytes_) + " bytes it may use";
  } else {
    // Few are ahead, as memory may be gone once they are written to.
    const int64_t ahead = std::min(usable_rows_ / 4, kMostAhead / BytesPerRow());
    status = GrowArrays(std::min(max_rows, std::max(num_rows + 1024, usable_rows_ + ahead)));
    // Where so many more do not fit, those that are needed may.
    if (!status.ok()) status = GrowArrays(num_rows);
    if (!status.ok()) status = WhatIsLeft(num_rows - usable_rows_, status);
  }
  if (status.ok()) return {};
  return CannotGrow(options_.name, "is full at " + std::to_string(num_rows_.load() - first_row_) +
                                       " rows: " + status.message());
}

Status RowStore::GrowArrays(int64_t num_rows) {
  const int64_t more = (num_rows - usable_rows_) * BytesPerRow();
  if (num_rows * BytesPerRow() > kLargePage && !HasMemoryFor(more)) return kTooLittle;
  Status status;
  ForArrays([&](Array* array, int64_t bytes) {
    if (status.ok()) status = array->memory->Grow(num_rows * bytes);
  });
  if (status.ok()) status = infos_.Grow(num_rows);
  if (status.ok()) status = ReserveFree(num_rows);
  if (status.ok()) usable_rows_ = num_rows;
  return status;
}

// Says how many bytes the table wants, and how many are left.
Status RowStore::WhatIsLeft(int64_t more_rows, const Status& status) const {
  return "it wants " + std::to_string(more_rows * BytesPerRow()) + " bytes for " +
         std::to_string(more_rows) + " rows more of " + std::to_string(BytesPerRow()) +
         " bytes, and " + FindMemoryLeft().InWords() + " (" + status.message() + ")";
}

Status RowStore::ReserveFree(int64_t num_rows) {
  try {
    free_.reserve(num_rows);
    return {};
  } catch (const std::bad_alloc&) {
    return "the system gave no more memory";
  }
}

char* RowStore::TakeUntouchedPage(int64_t begin, int64_t end) {
  char* page = nullptr;
  ForArrays([&](Array* array, int64_t bytes) {
    const int64_t at = std::max(array->touched_bytes, RoundUpToLargePages(begin * bytes));
    const bool is_soon = at < end * bytes + kLargePage / 2;
    if (page != nullptr || !is_soon || at + kLargePage > array->memory->bytes()) return;
    page = array->data() + at;
    array->touched_bytes = at + kLargePage;
  });
  return page;
}

void RowStore::EndCall() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rows_ahead_ = num_rows() - rows_before_call_;
    rows_before_call_ = num_rows();
    if (rows_ahead_ == 0) return;
  }
  TouchAhead::Shared().Ask(this);
}

bool RowStore::TouchNextPage() {
  char* page;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t end = std::min(num_rows() + rows_ahead_, first_row_ + max_rows());
    // Where there is no memory, the call that needs it says so.
    page = GrowTo(end).ok() ? TakeUntouchedPage(num_rows(), end) : nullptr;
  }
  if (page != nullptr) TouchLargePages(page, kLargePage);
  return page != nullptr;
}

void RowStore::FreeRetired() {
  const int64_t oldest = batches_.empty() ? clock() + 1 : *batches_.begin();
  while (!retired_.empty() && retired_.front().clock < oldest) {
    free_.push_back(retired_.front().row);
    retired_.pop_front();
  }
}

int64_t RowStore::NumFree() {
  std::lock_guard<std::mutex> lock(mutex_);
  FreeRetired();
  const int64_t never_used = first_row_ + max_rows() - num_rows();
  return static_cast<int64_t>(free_.size()) + std::max<int64_t>(never_used, 0);
}

Status RowStore::Take(int64_t count, std::vector<int64_t>* rows) {
  Status status;
  char* untouched = nullptr;
  int64_t begin, end;  // of those that are new
  rows->reserve(rows->size() + count);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    FreeRetired();
    for (; count > 0 && !free_.empty(); --count) {
      rows->push_back(free_.back());
      free_.pop_back();
    }
    begin = num_rows_.load(std::memory_order_relaxed);
    status = GrowTo(std::min(begin + count, first_row_ + max_rows()));
    end = std::min(begin + count, usable_rows_);
    num_rows_.store(end, std::memory_order_release);
    if (status.ok()) status = GrowTo(begin + count);  // which fails, if those are not all
    if (begin < end) untouched = TakeUntouchedPage(begin, end);
  }
  // Without the lock, as memory that is new takes time.
  if (untouched != nullptr) TouchLargePages(untouched, kLargePage);
  for (int64_t row = begin; row < end; ++row) {
    infos_.SetNoKeys(row);
    rows->push_back(row);
  }
  return status;
}

void RowStore::Return(int64_t row) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(row);
}

void RowStore::Retire(int64_t row) {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_.push_back({row, clock()});
  infos_.SetNoKeys(row);
}

void RowStore::Release(const std::vector<int64_t>& rows, const std::vector<int64_t>& own) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool others = std::any_of(batches_.begin(), batches_.end(), [&](int64_t batch) {
    return std::find(own.begin(), own.end(), batch) == own.end();
  });
  for (const int64_t row : rows) {
    if (others) {
      retired_.push_back({row, clock()});
    } else {
      free_.push_back(row);
    }
  }
}

void RowStore::RetireSince(int64_t clock, int64_t row) {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_.push_front({row, clock});  // before those that must wait for younger batches
  infos_.SetNoKeys(row);
}

void RowStore::Start(int64_t row, int64_t key, int64_t count, int64_t version) {
  StartWithoutKey(row, key);
  infos_.Set(row, key, count, version);
}

void RowStore::StartWithoutKey(int64_t row, int64_t key) {
  const InitialValues& initial = options_.initial;
  if (initial.matrix_rows > 0) {
    std::memcpy(Row(row), Row(MatrixRow(key, initial.matrix_rows)), row_bytes_);
  } else {
    ForDataType(options_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* values = reinterpret_cast<T*>(Row(row));
      for (int32_t j = 0; j < options_.dim; ++j) {
        values[j] = FromFloat<T>(InitialValue(initial, key, j));
      }
    });
  }
  StartSlots(row);
}

void RowStore::StartAllButValues(int64_t row, int64_t key, int64_t count, int64_t version) {
  StartSlots(row);
  infos_.Set(row, key, count, version);
}

void RowStore::StartSlots(int64_t row) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    Fill(slots_[s].initial, slots_[s].dtype, slots_[s].width, SlotRow(s, row));
  }
}

void RowStore::StartOfBatch(int64_t row, const RowInfo& info) {
  std::lock_guard<std::mutex> lock(mutex_);
  infos_.SetOfBatch(row, info);
}

void RowStore::SetMarks(std::vector<int64_t> marks) {
  std::lock_guard<std::mutex> lock(mutex_);
  infos_.SetMarks(std::move(marks));
}

Status RowStore::Slot(const SlotOptions& slot, void** array) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    const SlotOptions& present = slots_[s];
    if (present.name != slot.name) continue;
    if (present.width != slot.width || present.dtype != slot.dtype) {
      return "table '" + options_.name + "', slot '" + slot.name + "': expected " +
             std::to_string(present.width) + " columns of " +
             std::to_string(SizeOf(present.dtype)) + " bytes, as it has, got " +
             std::to_string(slot.width) + " of " + std::to_string(SizeOf(slot.dtype));
    }
    *array = slot_arrays_[s].data();
    return {};
  }
  // The thread that makes rows ready must not do so between here and the end.
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t bytes = slot.width * SizeOf(slot.dtype);
  auto memory = ReserveHostMemory(reserved_rows_ * bytes);
  const int64_t wanted = usable_rows_ * bytes;
  Status status;
  if (wanted > kLargePage && !HasMemoryFor(wanted)) status = kTooLittle;
  if (status.ok()) status = memory->Grow(wanted);
  if (!status.ok()) {
    return "table '" + options_.name + "' can have no slot '" + slot.name + "': it wants " +
           std::to_string(wanted) + " bytes for " + std::to_string(usable_rows_) + " rows, and " +
           FindMemoryLeft().InWords() + " (" + status.message() +
           "); give the process more memory, or the table fewer keys (max_keys, max_bytes)";
  }
  Fill(slot.initial, slot.dtype, num_rows() * slot.width, memory->data());
  *array = memory->data();
  if (slot.name == kTimeSlot) time_slot_ = static_cast<int>(slots_.size());
  slots_.push_back(slot);
  slot_arrays_.push_back({std::move(memory)});
  return {};
}

void RowStore::Clear() {
  for (int64_t row = first_row_; row < num_rows(); ++row) {
    if (IsKeys(row)) Retire(row);
  }
}

int64_t RowStore::BeginBatch() {
  std::lock_guard<std::mutex> lock(mutex_);
  batches_.insert(clock() + 1);
  return infos_.BeginBatch(num_rows());
}

void RowStore::EndBatch(int64_t batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  batches_.erase(batches_.find(batch));
}

int64_t RowStore::OldestBatch() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return batches_.empty() ? clock() + 1 : *batches_.begin();
}

}  // namespace group_embedding
