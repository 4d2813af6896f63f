#include "table/host/wide_counts.h"

#include <vector>

namespace group_embedding {
namespace {

constexpr int64_t kBytes = sizeof(int64_t);
// A count in a map takes some 50 bytes: the map grows to 3 bytes a row.
constexpr int64_t kBytesInMap = 50, kFewCounts = 1024, kRowsPerCount = 16;

}  // namespace

Status WideCounts::Grow(int64_t num_rows) {
  std::lock_guard<std::mutex> lock(growing_);
  if (memory_ != nullptr) {
    Status status = memory_->Grow(num_rows * kBytes);
    if (!status.ok()) return status;
  }
  usable_rows_ = num_rows;
  return {};
}

int64_t WideCounts::Of(int64_t row) const {
  const Stripe& stripe = StripeOf(row);
  std::lock_guard<std::mutex> lock(stripe.mutex);
  return array_ == nullptr ? stripe.counts.at(row) : array_[row];
}

void WideCounts::Set(int64_t row, int64_t count) {
  bool is_new = false;
  {
    Stripe& stripe = StripeOf(row);
    std::lock_guard<std::mutex> lock(stripe.mutex);
    if (array_ == nullptr) {
      is_new = stripe.counts.insert_or_assign(row, count).second;
    } else {
      array_[row] = count;
    }
  }
  if (is_new && ++num_in_map_ > kFewCounts + usable_rows_ / kRowsPerCount) MoveToArray();
}

void WideCounts::Erase(int64_t row) {
  Stripe& stripe = StripeOf(row);
  std::lock_guard<std::mutex> lock(stripe.mutex);
  if (array_ == nullptr && stripe.counts.erase(row) > 0) --num_in_map_;
}

// Where there is no memory for the array, the map has all counts.
void WideCounts::MoveToArray() {
  std::lock_guard<std::mutex> lock(growing_);
  if (memory_ != nullptr) return;
  auto memory = ReserveHostMemory(max_rows_ * kBytes);
  if (!memory->Grow(usable_rows_ * kBytes).ok()) return;
  std::vector<std::unique_lock<std::mutex>> locks;
  for (Stripe& stripe : *stripes_) locks.emplace_back(stripe.mutex);
  array_ = reinterpret_cast<int64_t*>(memory->data());
  memory_ = std::move(memory);
  for (Stripe& stripe : *stripes_) {
    for (const auto& [row, count] : stripe.counts) array_[row] = count;
    stripe.counts = {};
  }
  num_in_map_ = 0;
}

int64_t WideCounts::bytes() const {
  const Stripe& any = stripes_->front();
  std::lock_guard<std::mutex> lock(any.mutex);
  return array_ == nullptr ? num_in_map_ * kBytesInMap : usable_rows_ * kBytes;
}

}  // namespace group_embedding
