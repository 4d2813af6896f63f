// The index of a DeviceHash: when it grows, and how far in a call.
#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"

namespace group_embedding {
namespace {

constexpr float kHurryLoad = 0.75f;  // from this load on the index grows at once
constexpr double kGrowth = DeviceBudgetBytes::kIndexGrowth;
constexpr float kCrampedLoad = 0.9f;  // the highest load if there is no memory to grow

}  // namespace

int64_t DeviceHash::MostCounted(const TableState& state, int64_t num_keys) const {
  if (options_.admission.kind != Admission::Kind::kCounter) return 0;
  const int64_t most = state.next_candidate + num_keys;
  if (budget_ == nullptr) return most;
  return std::max(state.next_candidate, std::min(most, budget_->max_keys() + most_of_call_));
}

// enqueued: the keys that may have been added since `state`.
Status DeviceHash::MakeIndexSpace(const TableState& state, int64_t enqueued, bool is_rebuilt,
                                  int64_t num_keys, cudaStream_t stream) {
  const int64_t counts = MostCounted(state, enqueued);
  const int64_t more_keys =
      claims_of_call() ? std::min(enqueued, budget_->max_keys() + counts) : enqueued;
  int64_t live = state.num_keys + state.next_candidate + more_keys;
  const int64_t claimed = claims_of_call() ? 0 : num_keys;  // before it is known which get rows
  if (budget_ != nullptr) live = std::min(live, budget_->max_keys() + claimed + counts);
  int64_t used = is_rebuilt ? live : std::max(live, state.used_slots + more_keys);
  for (;;) {
    if (!index_->is_growing()) {
      index_->ReleaseFormer();
      if (used <= kMaxLoad * index_->num_slots()) return {};
      // Erased slots are left behind; where these are most, it need not grow.
      const auto wanted = static_cast<int64_t>(kGrowth * live / kMaxLoad);
      index_->Begin(std::max(wanted, index_->num_slots()));
    }
    const bool in_hurry = used > kHurryLoad * index_->least_slots();
    const Status status =
        GrowIndex(in_hurry ? GrowingIndex::Work::All() : GrowingIndex::Work::For(num_keys), stream);
    if (!status.ok()) return used <= kCrampedLoad * index_->least_slots() ? Status() : status;
    if (!in_hurry) return {};
    used = live;
  }
}

Status DeviceHash::GrowIndex(const GrowingIndex::Work& work, cudaStream_t stream) {
  Status status;
  if (!index_->MakeArea(work, stream, &status)) return status;
  streams_.BeginAlone(stream);
  RequireCuda(index_->Move(Ref(), work, stream));
  streams_.EndAlone(stream);
  if (!index_->is_growing()) rebuilt_at_ = enqueued_;
  return {};
}

void DeviceHash::RebuildIndex(cudaStream_t stream) {
  rebuilt_at_ = enqueued_;
  RequireCuda(index_->Clear(stream));
  RequireCuda(FillIndex(Ref(), usable_rows_, usable_candidates_, stream));
}

Status DeviceHash::Reserve(int64_t num_keys) {
  const Alone alone(*this);
  Status status = GrowRows(first_row() + num_keys);
  const auto all = GrowingIndex::Work::All();
  if (status.ok() && index_->is_growing()) status = GrowIndex(all, streams_.own());
  // With a budget, keys come and go: with as many slots as MakeIndexSpace would have it grow to.
  const double slots = (budget_ == nullptr ? 1 : kGrowth) * num_keys / kMaxLoad;
  const auto wanted = static_cast<int64_t>(slots) + 1;
  if (status.ok() && wanted > index_->num_slots()) {
    index_->Begin(wanted);
    status = GrowIndex(all, streams_.own());
  }
  return status.In(Named(": "));
}

Status ReserveKeys(DeviceHash* table, int64_t num_keys) { return table->Reserve(num_keys); }

}  // namespace group_embedding
