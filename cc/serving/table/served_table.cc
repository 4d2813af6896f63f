#include "serving/table/served_table.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/rows.h"
#include "serving/table/pace.h"
#include "table/large_pages.h"
#if GROUP_EMBEDDING_CUDA
#include "table/device/device_memory.h"
#endif

namespace group_embedding {
namespace {

// Rows that are written or merged between two rests, and those whose memory is asked for ahead.
constexpr int64_t kRowsPerStep = 64, kRowsAhead = 8;

std::unique_ptr<Memory> ReserveRows(bool device_reads) {
#if GROUP_EMBEDDING_CUDA
  if (device_reads) return ReserveTieredMemory(0, PhysicalBytes());
#endif
  return ReserveHostMemory(PhysicalBytes());
}

}  // namespace

ServedTable::ServedTable(const ServedTableOptions& options, const void* matrix, Status* error)
    : options_(options),
      row_bytes_(RowBytes(options.format, options.dim)),
      trained_row_bytes_(options.dim * SizeOf(options.dtype)) {
  const char* const small = TakeSmall();  // before the array: later addresses mostly are lower
  rows_ = ReserveRows(options.device_reads);
  if (small != nullptr && rows_->data() != nullptr && small > rows_->data()) {
    first_ = (small - rows_->data() + row_bytes_ - 1) / row_bytes_;
  }
  if (options_.keyed) index_ = std::make_unique<ServedIndex>(0);
  if (first_ == 0) num_rows_ = options_.keyed ? options_.matrix_rows + 1 : options_.max_rows;
  // Lookups may read row 0 in the place of an id that is no row.
  *error = rows_->Grow(std::max<int64_t>(num_rows_, 1) * row_bytes_);
  if (!error->ok() || !options_.keyed) return;
  if (matrix != nullptr) WriteInitialRows(matrix);
  std::vector<char> constant(trained_row_bytes_);
  ForDataType(options_.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::fill_n(reinterpret_cast<T*>(constant.data()), options_.dim,
                FromFloat<T>(options_.no_row_value));
  });
  Write(constant.data(), options_.matrix_rows);
}

char* ServedTable::TakeSmall() const {
  const int64_t bytes = options_.max_rows * row_bytes_;
  const bool is_small = !options_.keyed && bytes < kLargePage;
  // One row more, as rows begin at a whole number of them after the array.
  return is_small && options_.small_tables != nullptr
             ? options_.small_tables->Take(bytes + row_bytes_)
             : nullptr;
}

void ServedTable::WriteInitialRows(const void* matrix) {
  const char* values = static_cast<const char*>(matrix);
  for (int64_t r = 0; r < options_.matrix_rows; ++r) Write(values + r * trained_row_bytes_, r);
}

int64_t ServedTable::num_keys() const {
  if (lower_ != nullptr) return lower_->num_rows();
  return options_.keyed ? index_->size() : options_.max_rows;
}

int64_t ServedTable::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);  // requests take rows of a tiered table
  const int64_t num_rows = num_rows_ + (first_ > 0 ? options_.max_rows : 0);
  return num_rows * row_bytes_ + (options_.keyed ? index_->bytes() : 0);
}

void ServedTable::Write(const char* values, int64_t row) {
  EncodeRow(options_.dtype, values, options_.dim, options_.format, Row(row));
}

Status ServedTable::Take(int64_t count, std::vector<int64_t>* rows) {
  const int64_t num_free = static_cast<int64_t>(free_.size());
  const int64_t reused = std::min(num_free, count);
  const int64_t fresh = count - reused;
  rows->reserve(rows->size() + count);
  free_.reserve(free_.size() + fresh);  // so that giving rows back needs no memory
  if (fresh > 0) {
    Status status = rows_->Grow((num_rows_ + fresh) * row_bytes_);
    if (!status.ok()) return status.In("table '" + options_.name + "': ");
  }
  // The rows that were freed last come first.
  rows->insert(rows->end(), free_.rbegin(), free_.rbegin() + reused);
  free_.resize(num_free - reused);
  for (int64_t i = 0; i < fresh; ++i) rows->push_back(num_rows_++);
  return {};
}

void ServedTable::Reserve(int64_t num_keys) {
  if (lower_ != nullptr) return;  // the cache grows as it is filled
  if (options_.keyed && index_->size() == 0) index_ = std::make_unique<ServedIndex>(num_keys);
}

Status ServedTable::Load(const int64_t* keys, int64_t num_keys, const char* values,
                         bool are_changes, const Deadline& deadline) {
  if (lower_ != nullptr) {
    std::vector<char> encoded(num_keys * row_bytes_);
    for (int64_t i = 0; i < num_keys; ++i) {
      EncodeRow(options_.dtype, values + i * trained_row_bytes_, options_.dim, options_.format,
                encoded.data() + i * row_bytes_);
    }
    if (num_keys == 0) return {};
    return lower_->Write(keys, num_keys, encoded.data(), are_changes, deadline);
  }
  std::vector<int64_t> rows;
  Status status = Take(num_keys, &rows);
  if (!status.ok()) return status;
  for (int64_t i = 0; i < num_keys; ++i) {
    Write(values + i * trained_row_bytes_, rows[i]);
    const int64_t former = index_->Set(keys[i], rows[i]);
    if (former != ServedIndex::kNone) free_.push_back(former);
  }
  index_->DropFormerParts();
  return {};
}

Status ServedTable::LoadEncoded(const EncodedRows& encoded, bool are_changes,
                                const Deadline& deadline) {
  if (lower_ != nullptr) {
    return lower_->Write(encoded.keys.data(), static_cast<int64_t>(encoded.keys.size()),
                         encoded.rows.data(), are_changes, deadline);
  }
  std::vector<int64_t> rows;
  Status status = Take(static_cast<int64_t>(encoded.keys.size()), &rows);
  if (!status.ok()) return status;
  for (size_t i = 0; i < encoded.keys.size(); ++i) {
    std::memcpy(Row(rows[i]), encoded.rows.data() + i * row_bytes_, row_bytes_);
    const int64_t former = index_->Set(encoded.keys[i], rows[i]);
    if (former != ServedIndex::kNone) free_.push_back(former);
  }
  index_->DropFormerParts();
  return {};
}

void ServedTable::LoadAll(const char* values) {
  for (int64_t row = 0; row < options_.max_rows; ++row)
    Write(values + row * trained_row_bytes_, first_ + row);
}

void ServedTable::LoadAllEncoded(const char* rows) {
  std::memcpy(Row(first_), rows, options_.max_rows * row_bytes_);
}

Status ServedTable::Erase(const int64_t* keys, int64_t num_keys, const Deadline& deadline) {
  if (lower_ != nullptr) return num_keys > 0 ? lower_->Erase(keys, num_keys, deadline) : Status();
  for (int64_t i = 0; i < num_keys; ++i) {
    const int64_t former = index_->Erase(keys[i]);
    if (former != ServedIndex::kNone) free_.push_back(former);
  }
  return {};
}

int64_t ServedTable::Locate(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                            int64_t* rows) const {
  if (overlay != nullptr && overlay->index_.size() == 0) overlay = nullptr;
  if (lower_ != nullptr) return LocateInCache(overlay, keys, num_keys, rows);
  if (!options_.keyed) {
    LocateRowNumbers(overlay, keys, num_keys, rows);
    return 0;
  }
  index_->ForHashes(keys, num_keys, [&](int64_t i, uint64_t hash) {
    const int64_t key = keys[i];
    int64_t row = ServedIndex::kNone;
    if (overlay != nullptr) row = overlay->Find(key, hash);
    if (row == ServedIndex::kNone) row = index_->Find(key, hash);
    rows[i] = row == ServedIndex::kNone ? DefaultRow(key) : row;
  });
  return 0;
}

void ServedTable::LocateRowNumbers(const Overlay* overlay, const int64_t* keys, int64_t num_keys,
                                   int64_t* rows) const {
  for (int64_t i = 0; i < num_keys; ++i) {
    const int64_t key = keys[i];
    const bool is_row = key >= 0 && key < options_.max_rows;
    int64_t row = is_row ? first_ + key : key < 0 ? -1 : kTooLarge;
    if (overlay != nullptr && is_row) {
      const int64_t changed = overlay->Find(key, ServedIndex::HashOf(key));
      if (changed != ServedIndex::kNone) row = changed;
    }
    rows[i] = row;
  }
}

Status ServedTable::Stage(const RowChanges& changes, std::unique_ptr<Overlay>* overlay) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t num_keys = static_cast<int64_t>(changes.keys.size());
  auto staged = std::make_unique<Overlay>(num_keys + static_cast<int64_t>(changes.erased.size()));
  Status status = Take(num_keys, &staged->rows_);
  if (!status.ok()) return status;
  for (const int64_t key : changes.erased) staged->Set(key, DefaultRow(key));
  for (int64_t i = 0; i < num_keys; ++i) {
    if (i + kRowsAhead < num_keys) __builtin_prefetch(Row(staged->rows_[i + kRowsAhead]), 1);
    Write(changes.values.data() + i * trained_row_bytes_, staged->rows_[i]);
    staged->Set(changes.keys[i], staged->rows_[i]);
    RestAfter(i);
  }
  Refresh(staged->rows_);
  *overlay = std::move(staged);
  return {};
}

void ServedTable::Merge(Overlay* overlay) {
  if (overlay == nullptr || overlay->merged_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lower_ != nullptr) {
    MergeIntoCache(*overlay);
    overlay->merged_ = true;
    return;
  }
  std::vector<std::pair<int64_t, int64_t>> moved;  // key and row
  moved.reserve(overlay->index_.size());
  overlay->index_.ForEach([&](int64_t key, int64_t row) { moved.emplace_back(key, row); });
  if (options_.keyed) {
    MergeKeys(moved);
  } else {
    MergeRowNumbers(moved);
  }
  overlay->merged_ = true;
}

void ServedTable::MergeKeys(const std::vector<std::pair<int64_t, int64_t>>& moved) {
  std::vector<int64_t> replaced;  // rows that nobody reads
  replaced.reserve(moved.size());
  for (size_t i = 0; i < moved.size(); ++i) {
    if (i + kRowsAhead < moved.size()) {
      index_->Prefetch(ServedIndex::HashOf(moved[i + kRowsAhead].first));
    }
    const auto [key, row] = moved[i];
    const bool erased = row <= options_.matrix_rows;
    const int64_t former = erased ? index_->Erase(key) : index_->Set(key, row);
    if (former != ServedIndex::kNone) replaced.push_back(former);
    RestAfter(i);
  }
  Free(replaced);
}

void ServedTable::MergeRowNumbers(const std::vector<std::pair<int64_t, int64_t>>& moved) {
  std::vector<int64_t> changed;
  changed.reserve(moved.size());
  for (const auto& [number, row] : moved) {
    std::memcpy(Row(first_ + number), Row(row), row_bytes_);
    changed.push_back(first_ + number);
    RestAfter(changed.size());
  }
  Forget(changed);
  Refresh(changed);
}

void ServedTable::RestAfter(int64_t row) const {
  // Requests of a tiered table may wait for its mutex, which is held.
  if (row % kRowsPerStep == 0 && lower_ == nullptr) Pace::Rest();
}

void ServedTable::Drop(std::unique_ptr<Overlay> overlay) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (options_.keyed && lower_ == nullptr) index_->DropFormerParts();
  if (overlay == nullptr || (options_.keyed && overlay->merged_)) return;
  Free(overlay->rows_);
}

}  // namespace group_embedding
