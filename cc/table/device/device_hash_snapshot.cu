// Batches in flight and snapshots of a DeviceHash.
#include "core/device_buffer.h"
#include "table/device/device_hash.h"
#include "table/device/device_memory.h"
#include "table/device/row_copies.cuh"

namespace group_embedding {
namespace {

// Waits for the stream.
AdmissionState ToAdmissionState(const Candidate* candidates, int64_t num_candidates,
                                const char* counters, int64_t counter_bytes, cudaStream_t stream) {
  AdmissionState state;
  for (const Candidate& candidate : ToHost(candidates, num_candidates, stream)) {
    if (candidate.count <= 0) continue;
    state.keys.push_back(candidate.key);
    state.counts.push_back(candidate.count);
  }
  state.counters = ToHost(counters, counter_bytes, stream);
  return state;
}

// What a filter counted, copied on the device, so that the host can read it while training goes on.
class CopiedCounts {
 public:
  // Copies on `stream`. Without memory for that, the host reads at once.
  CopiedCounts(const Candidate* candidates, int64_t num_candidates, const char* counters,
               int64_t counter_bytes, cudaStream_t stream)
      : num_candidates_(num_candidates), counter_bytes_(counter_bytes) {
    const int64_t bytes = CandidateBytes() + counter_bytes;
    if (bytes == 0) return;
    cudaGetDevice(&device_);
    copy_ = ReserveDeviceMemory(bytes);
    if (copy_->Grow(bytes).ok()) {
      RequireCuda(cudaMemcpyAsync(copy_->data(), candidates, CandidateBytes(),
                                  cudaMemcpyDeviceToDevice, stream));
      RequireCuda(cudaMemcpyAsync(copy_->data() + CandidateBytes(), counters, counter_bytes,
                                  cudaMemcpyDeviceToDevice, stream));
    } else {
      copy_ = nullptr;
      state_ = ToAdmissionState(candidates, num_candidates, counters, counter_bytes, stream);
    }
  }

  // After the stream was waited for.
  const AdmissionState& Read() {
    if (copy_ == nullptr) return state_;
    const OnDevice on(device_);
    cudaStream_t stream;
    RequireCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    state_ = ToAdmissionState(reinterpret_cast<const Candidate*>(copy_->data()), num_candidates_,
                              copy_->data() + CandidateBytes(), counter_bytes_, stream);
    RequireCuda(cudaStreamDestroy(stream));
    copy_ = nullptr;
    return state_;
  }

 private:
  int64_t CandidateBytes() const {
    return num_candidates_ * static_cast<int64_t>(sizeof(Candidate));
  }

  const int64_t num_candidates_, counter_bytes_;
  int device_ = 0;
  std::unique_ptr<DeviceMemory> copy_;  // null: the state was read
  AdmissionState state_;
};

// A snapshot as its reader has it; the table knows the RowCopies in it for as long.
class DeviceSnapshot : public Snapshot {
 public:
  DeviceSnapshot(DeviceHash* table, std::shared_ptr<RowCopies> rows,
                 std::unique_ptr<CopiedCounts> counted, std::vector<int64_t> erased,
                 const ChangeMark& mark, std::function<void()> keep)
      : table_(table),
        rows_(std::move(rows)),
        counted_(std::move(counted)),
        erased_(std::move(erased)),
        mark_(mark),
        keep_(std::move(keep)) {}
  ~DeviceSnapshot() override { table_->ForgetSnapshot(); }

  const EmbeddingTable& table() const override { return *table_; }
  int64_t num_rows() const override { return rows_->num_rows(); }
  void Read(int64_t begin, int64_t end, KeyedRows* rows) override {
    const Status failed = table_->ReadSnapshot(rows_.get(), begin, end, rows);
    if (error_.ok()) error_ = failed;
  }
  Status status() const override { return error_; }
  const AdmissionState& admission() override { return counted_->Read(); }
  const std::vector<int64_t>& erased() const override { return erased_; }
  std::vector<int64_t> evicted() const override { return {}; }  // which was before it was taken
  void Keep() override { keep_(); }
  const ChangeMark& mark() const override { return mark_; }

 private:
  DeviceHash* const table_;
  const std::shared_ptr<RowCopies> rows_;
  const std::unique_ptr<CopiedCounts> counted_;
  const std::vector<int64_t> erased_;
  const ChangeMark mark_;
  const std::function<void()> keep_;
  Status error_;
};

}  // namespace

int64_t DeviceHash::BeginBatch() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t batch = clock_ += 2;  // no call has the number before it: prefetch_from_disk.cu
  batches_.insert(batch);
  return batch;
}

void DeviceHash::EndBatch(int64_t batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  batches_.erase(batches_.find(batch));
  if (!IsPrefetching()) MoveRows();  // it would wait for the device, and rows from disk for it
}

// Does nothing if there is no memory for the copies that a running snapshot needs of moved rows.
void DeviceHash::MoveRows() {
  if (moves_ == nullptr || !moves_->is_due()) return;
  const OnDevice on(device_);  // batches end on any thread
  if (snapshot_ != nullptr && !snapshot_->MakeSpace(2 * RowMoves::kMostRows).ok()) return;
  const cudaStream_t stream = moves_->stream();
  streams_.BeginAlone(stream);
  moves_->Enqueue(Ref(), OldestBatchLocked());
  if (snapshot_ != nullptr) snapshot_->Report(stream);
  streams_.EndAlone(stream);
}

// A snapshot that is read would need copies of all rows that move.
bool DeviceHash::CanPrefetchRows() const {
  return moves_ != nullptr && usable_rows_ > device_rows_ && snapshot_ == nullptr;
}

Status DeviceHash::MakePrefetchSpace(int64_t num_keys, cudaStream_t stream) {
  Status status;
  if (tier_prefetcher_ == nullptr)
    tier_prefetcher_ = std::make_unique<TierPrefetcher>(reserved_rows_, &status);
  if (status.ok()) status = tier_prefetcher_->Grow(usable_rows_, num_keys);
  if (!status.ok()) {
    tier_prefetcher_ = nullptr;
    return status.In(Named(": "));
  }
  streams_.Use(stream);
  return {};
}

PrefetchRef DeviceHash::BeginPrefetching(cudaStream_t stream) {
  streams_.BeginAlone(stream);
  return tier_prefetcher_->ref(Ref(), OldestBatchLocked());
}

int64_t DeviceHash::OldestBatchLocked() const {
  return batches_.empty() ? clock_ + 1 : *batches_.begin();
}

// The arrays that hold a row's values, slots and info, in the order of RowCopies.
std::vector<RowArray> DeviceHash::RowArrays() const {
  std::vector<RowArray> arrays = {
      {reinterpret_cast<char*>(ref_.infos), nullptr, nullptr, sizeof(RowInfo)},
      {ref_.rows, nullptr, nullptr, static_cast<int32_t>(RowBytes())}};
  for (size_t s = 0; s < slots_.size(); ++s) {
    arrays.push_back(
        {slot_arrays_[s]->data(), nullptr, nullptr, static_cast<int32_t>(SlotBytes(s))});
  }
  return arrays;
}

// Batches in flight will write rows that they located before.
ChangeMark DeviceHash::NowLocked() const { return {OldestBatchLocked(), changes_.num_erased()}; }

ChangeMark DeviceHash::Now() const {
  if (budget_ == nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    return NowLocked();
  }
  const Alone alone(*this);
  ReadEvicted();
  return NowLocked();
}

ChangeLog* DeviceHash::changes() {
  if (budget_ != nullptr) {
    const Alone alone(*this);
    ReadEvicted();
  }
  return &changes_;
}

// The log has the keys that went for the budget, once somebody asks for it.
void DeviceHash::ReadEvicted() const {
  if (budget_ != nullptr) budget_->ReadEvicted(&changes_, streams_.own());
}

BudgetCounts DeviceHash::budget_counts() const {
  if (budget_ == nullptr) return {};
  const Alone alone(*this);
  return budget_->Counts(streams_.own());
}

std::unique_ptr<Snapshot> DeviceHash::TakeSnapshot(bool changes_only, const Eviction& eviction,
                                                   int64_t step, int64_t follower) {
  const Alone alone(*this);
  ReadEvicted();
  if (!changes_only && !changes_.Has(kSaves)) changes_.Follow(kSaves, NowLocked());
  const ChangeMark since = changes_only ? changes_.MarkOf(follower) : ChangeMark();
  if (eviction.kind != Eviction::Kind::kNone) EraseChosen(eviction, step);
  Status status;
  auto rows = std::make_shared<RowCopies>(RowArrays(), first_row(), State().next_row, since.clock,
                                          streams_.own(), &status);
  Require(status.In(Named(": no snapshot: ")));
  snapshot_ = rows;
  const ChangeMark now = NowLocked();
  auto keep = [this, changes_only, now] {
    if (changes_only) return;
    std::lock_guard<std::mutex> lock(mutex_);
    changes_.Follow(kSaves, now);
  };
  auto counted = std::make_unique<CopiedCounts>(ref_.candidates, State().next_candidate,
                                                bloom_ == nullptr ? nullptr : bloom_->data(),
                                                bloom_bytes_, streams_.own());
  return std::make_unique<DeviceSnapshot>(
      this, std::move(rows), std::move(counted),

      changes_only ? changes_.ErasedSince(since) : std::vector<int64_t>(), now, std::move(keep));
}

Status DeviceHash::ReadAll(KeyedRows* rows) const {
  const Alone alone(*this);
  Status status;
  RowCopies all(RowArrays(), first_row(), State().next_row, /*changed_since=*/0, streams_.own(),
                &status);
  if (!status.ok()) return status.In(Named(": "));
  for (int64_t begin = first_row(); begin < all.num_rows(); begin += RowCopies::kRowsPerRead) {
    const int64_t end = std::min(all.num_rows(), begin + RowCopies::kRowsPerRead);
    status = all.ReadRows(begin, end, streams_.own(), [] {}, rows);
    if (!status.ok()) return status.In(Named(": "));
  }
  return {};
}

void DeviceHash::ForgetSnapshot() {
  const Alone alone(*this);
  snapshot_ = nullptr;
}

// Writers wait for the copy on the device; that to the host goes on beside them.
Status DeviceHash::ReadSnapshot(RowCopies* snapshot, int64_t begin, int64_t end, KeyedRows* rows) {
  begin = std::max(begin, first_row());
  end = std::min(end, snapshot->num_rows());
  rows->slots.resize(snapshot->num_slots());
  for (; begin < end; begin += RowCopies::kRowsPerRead) {
    std::unique_lock<std::mutex> lock(mutex_);
    streams_.BeginAlone(streams_.own());
    const Status status = snapshot->ReadRows(
        begin, std::min(end, begin + RowCopies::kRowsPerRead), streams_.own(),
        [&] {
          streams_.EndAlone(streams_.own());
          lock.unlock();
        },
        rows);
    if (!status.ok()) return status.In(Named(": "));
  }
  return {};
}

Status DeviceHash::CopyForSnapshot(const int64_t* rows, int64_t num_rows, cudaStream_t stream) {
  if (num_rows == 0) return {};  // as when a table without rows is cleared
  Status status = snapshot_->MakeSpace(num_rows);
  if (!status.ok()) return status;
  return CudaStatus(snapshot_->Put(rows, num_rows, stream));
}

Status DeviceHash::BeforeWriteCuda(const int64_t* rows, int64_t num_rows, cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (snapshot_ == nullptr || num_rows == 0) return {};
  streams_.Use(stream);
  streams_.Follow(&training_stream_, stream);
  const Status status = CopyForSnapshot(rows, num_rows, stream);
  return status.In(Named(": "));
}

Status BeforeWriteCuda(DeviceHash* table, const int64_t* rows, int64_t num_rows,
                       cudaStream_t stream) {
  return table->BeforeWriteCuda(rows, num_rows, stream);
}

void DeviceHash::BeforeWrite(const int64_t* rows, int64_t num_rows) {
  const Alone alone(*this);
  if (snapshot_ == nullptr || num_rows == 0) return;
  DeviceBuffer<int64_t> device(rows, num_rows, streams_.own());
  const Status status = CopyForSnapshot(device.data(), num_rows, streams_.own());
  Require(status.In(Named(": ")));
}

}  // namespace group_embedding
