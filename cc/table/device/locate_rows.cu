// Locating on the device: the arguments of a call, its scratch memory, and the launches of
// locate_kernels.cuh.
#include <algorithm>
#include <cub/device/device_scan.cuh>
#include <iterator>
#include <vector>

#include "core/device_buffer.h"
#include "core/trace.h"
#include "table/device/device_hash.h"
#include "table/device/halve_counts.h"
#include "table/device/locate_kernels.cuh"
#include "table/device/locate_plan.h"
#include "table/device/make_places_on_host.h"
#include "table/device/sample_keys.h"

namespace group_embedding {
namespace {

size_t ScanBytes(int64_t count) {
  size_t bytes = 0;
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int32_t*>(nullptr),
                                static_cast<int32_t*>(nullptr), static_cast<int>(count));
  return bytes;
}

// The scratch memory of a call: descriptors, then arrays of one element per position.
class LocateScratch {
 public:
  explicit LocateScratch(void* scratch) : arrays_(scratch), begin_(static_cast<char*>(scratch)) {}

  LocateArgs Lay(const LocatePlan& plan, const std::vector<DeviceTableRef>& tables, Access access) {
    LocateArgs args{};
    args.tasks = arrays_.Add(plan.tasks);
    args.first_blocks = arrays_.Add(plan.blocks.first_blocks());
    args.first_positions = arrays_.Add(plan.first_positions);
    args.num_tasks = static_cast<int64_t>(plan.tasks.size());
    args.tables = arrays_.Add(tables);
    args.table_positions = arrays_.Add(plan.table_positions);
    args.num_tables = static_cast<int64_t>(tables.size());
    args.claim_areas = arrays_.Add(plan.claim_areas);
    size_ = arrays_.size();
    const int64_t count = plan.num_positions();
    num_sample_slots_ = NumSampleSlots(count);
    sample_slots_ = Take<SampledKey>(num_sample_slots_);
    if (access == Access::kRead) return args;
    args.claims = Take<uint64_t>(count);
    args.firsts = Take<uint32_t>(count);
    args.gets_row = Take<int32_t>(count + 1);
    args.ranks = Take<int32_t>(count + 1);
    if (plan.has_filter) {
      args.counts = Take<int64_t>(count);
      args.candidates = Take<int64_t>(count);
    }
    num_claim_slots_ = static_cast<int64_t>(plan.num_claim_buckets()) * kBucketSlots;
    if (num_claim_slots_ > 0) args.claim_slots = Take<uint64_t>(num_claim_slots_);
    scan_bytes_ = ScanBytes(count + 1);
    scan_ = Take<char>(static_cast<int64_t>(scan_bytes_));
    return args;
  }

  cudaError_t Send(cudaStream_t stream) const { return arrays_.Send(stream); }
  cudaError_t Scan(const LocateArgs& args, int64_t num_positions, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(scan_, scan_bytes_, args.gets_row, args.ranks,
                                         static_cast<int>(num_positions + 1), stream);
  }
  cudaError_t Sample(const LocateArgs& args, int64_t num_blocks, cudaStream_t stream) const {
    return SampleKeys(args, num_blocks, sample_slots_, num_sample_slots_, stream);
  }
  // The slots of the call, of which none is claimed yet.
  cudaError_t EmptyClaims(const LocateArgs& args, cudaStream_t stream) const {
    if (args.claim_slots == nullptr) return cudaSuccess;
    return cudaMemsetAsync(args.claim_slots, 0xFF, num_claim_slots_ * sizeof(uint64_t), stream);
  }
  int64_t size() const { return size_; }

 private:
  template <typename T>
  T* Take(int64_t count) {
    T* array = reinterpret_cast<T*>(begin_ + size_);
    size_ += AlignScratch(count * static_cast<int64_t>(sizeof(T)));
    return array;
  }

  DeviceArrays arrays_;
  char* begin_;
  int64_t size_ = 0;
  int64_t num_claim_slots_ = 0, num_sample_slots_ = 0;
  SampledKey* sample_slots_ = nullptr;
  void* scan_ = nullptr;
  size_t scan_bytes_ = 0;
};

// Counts of keys without a row, in tables that may have too many for their budget.
cudaError_t HalveCountsOfTables(const LocatePlan& plan, const std::vector<DeviceTableRef>& tables,
                                cudaStream_t stream) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const auto& places = plan.tables[t]->places();
    if (!places.has_value() || !places->halves_counts) continue;
    const cudaError_t error = HalveCounts(tables[t], *places, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// In tables with a budget that the call may exceed.
cudaError_t MakePlacesInTables(const LocatePlan& plan, const LocateArgs& args,
                               cudaStream_t stream) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (!plan.tables[t]->places().has_value() || plan.tables[t]->has_tier_below()) continue;
    PlacesArgs places = *plan.tables[t]->places();
    places.table = static_cast<int64_t>(t);
    cudaError_t error = MakePlaces(args, places, stream);
    RowCopies* const snapshot = plan.tables[t]->snapshot();
    if (error == cudaSuccess && snapshot != nullptr) error = snapshot->Report(stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Steps 0 to 3 of locate_kernels.cuh.
cudaError_t LaunchChoosing(const LocatePlan& plan, const std::vector<DeviceTableRef>& tables,
                           const LocateArgs& args, LocateScratch* scratch, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  if (plan.HasSnapshot()) CopyBeforeLocateKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  for (const DeviceHash* table : plan.tables) {
    // The launch that makes places copies more, and reports after that.
    const bool copies_more = table->places().has_value() && !table->has_tier_below();
    if (table->snapshot() == nullptr || copies_more) continue;
    if (const cudaError_t error = table->snapshot()->Report(stream)) return error;
  }
  const int64_t count = plan.num_positions();
  cudaError_t error = HalveCountsOfTables(plan, tables, stream);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(args.firsts, 0xFF, count * sizeof(uint32_t), stream);
  }
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(args.gets_row + count, 0, sizeof(int32_t), stream);
  }
  if (error != cudaSuccess) return error;
  error = scratch->EmptyClaims(args, stream);
  if (error != cudaSuccess) return error;
  const auto locate =
      plan.claims_of_call ? &LocateKeysKernel<true, true> : &LocateKeysKernel<true, false>;
  locate<<<blocks, kLocateThreads, 0, stream>>>(args);
  if (plan.has_decay) {
    DecayCountsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
    CountFoundKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  }
  if (plan.has_filter) CountClaimsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  if (plan.has_bloom && !args.admits_all) {
    AddToBloomKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  }
  ChooseRowsKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  return cudaSuccess;
}

// The other steps.
cudaError_t LaunchGiving(const LocatePlan& plan, const LocateArgs& args, LocateScratch* scratch,
                         cudaStream_t stream) {
  cudaError_t error = MakePlacesInTables(plan, args, stream);
  if (error != cudaSuccess) return error;
  const unsigned blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  error = scratch->Scan(args, plan.num_positions(), stream);
  if (error != cudaSuccess) return error;
  const auto give = plan.has_budget ? &GiveRowsKernel<true> : &GiveRowsKernel<false>;
  give<<<blocks, kLocateThreads, 0, stream>>>(args);
  TellFollowersKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  if (plan.has_reads) WriteReadsKernel<true><<<blocks, kLocateThreads, 0, stream>>>(args);
  constexpr int kTableThreads = 128;
  const int64_t table_blocks = (args.num_tables + kTableThreads - 1) / kTableThreads;
  FinishKernel<<<static_cast<unsigned>(table_blocks), kTableThreads, 0, stream>>>(args);
  return cudaSuccess;
}

Status Train(const LocatePlan& plan, const std::vector<DeviceTableRef>& tables,
             const LocateArgs& args, LocateScratch* scratch, cudaStream_t stream) {
  cudaError_t error = LaunchChoosing(plan, tables, args, scratch, stream);
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error != cudaSuccess) return CudaStatus(error);
  const Status status = MakePlacesOnHost(plan, args, stream);
  const Status given = CudaStatus(LaunchGiving(plan, args, scratch, stream));
  return status.ok() ? given : status;
}

// A step in which no table has a key: counts of keys without a row halve as in all others.
Status TrainNoKeys(const LocatePlan& plan, int64_t step, cudaStream_t stream) {
  std::vector<DeviceTableRef> tables;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    Status status = plan.tables[t]->Prepare(0, Access::kTrain, /*admits_all=*/false, step, stream,
                                            plan.batches[t]);
    if (!status.ok()) return status;
    tables.push_back(plan.tables[t]->Ref());
  }
  return CudaStatus(HalveCountsOfTables(plan, tables, stream));
}

// Takes the error that CUDA keeps of an earlier call: launches are checked by the last error.
void ForgetFormerError() { cudaGetLastError(); }

// The caller holds the tables' mutexes.
Status Locate(const LocatePlan& plan, Access access, bool admits_all, int64_t step,
              void* scratch_memory, cudaStream_t stream) {
  const Stage stage("locate");
  if (plan.num_positions() == 0) {
    const bool trains = access == Access::kTrain && plan.has_budget && !admits_all;
    return trains ? TrainNoKeys(plan, step, stream) : Status();
  }
  if (plan.num_positions() >= INT32_MAX) return "expected fewer than 2^31 keys in a call";
  std::vector<DeviceTableRef> tables;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    Status status =
        plan.tables[t]->Prepare(plan.KeysOf(t), access, admits_all, step, stream, plan.batches[t]);
    if (!status.ok()) return status;
    tables.push_back(plan.tables[t]->Ref());
  }
  bool is_sampled = false;
  for (size_t t = 0; t < plan.tables.size() && !admits_all; ++t) {
    plan.tables[t]->CountCall(plan.KeysOf(t), &tables[t]);
    is_sampled |= tables[t].sample != nullptr;
  }
  LocateScratch scratch(scratch_memory);
  LocateArgs args = scratch.Lay(plan, tables, access);
  args.step = step;
  args.admits_all = admits_all;
  cudaError_t error = scratch.Send(stream);
  if (error == cudaSuccess && is_sampled) {
    error = scratch.Sample(args, plan.blocks.num_blocks(), stream);
  }
  if (error != cudaSuccess) return CudaStatus(error);
  Status status;
  if (access == Access::kRead) {
    LocateKeysKernel<false, false>
        <<<static_cast<unsigned>(plan.blocks.num_blocks()), kLocateThreads, 0, stream>>>(args);
    if (plan.has_reads) {
      WriteReadsKernel<false>
          <<<static_cast<unsigned>(plan.blocks.num_blocks()), kLocateThreads, 0, stream>>>(args);
    }
  } else {
    status = Train(plan, tables, args, &scratch, stream);
  }
  if (status.ok()) status = CudaStatus(cudaGetLastError());
  if (access == Access::kRead) return status;
  for (DeviceHash* table : plan.tables) {
    const Status full = table->CheckFull(stream);
    if (status.ok()) status = full;
  }
  return status;
}

std::vector<std::unique_lock<std::mutex>> LockAll(std::vector<DeviceHash*> tables) {
  std::sort(tables.begin(), tables.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  for (DeviceHash* table : tables) locks.emplace_back(table->mutex());
  return locks;
}

// Tells tables that their call has failed, unless it ends.
class BegunCall {
 public:
  explicit BegunCall(const std::vector<DeviceHash*>& tables) : tables_(tables) {}
  ~BegunCall() {
    for (DeviceHash* table : tables_) {
      if (!has_ended_) table->AbandonCall();
    }
  }
  BegunCall(const BegunCall&) = delete;
  BegunCall& operator=(const BegunCall&) = delete;
  void End() { has_ended_ = true; }

 private:
  const std::vector<DeviceHash*>& tables_;
  bool has_ended_ = false;
};

// Returns whether there is memory to bring rows. The caller holds the tables' mutexes.
bool MakePrefetchSpace(const LocatePlan& plan, cudaStream_t stream) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (!plan.tables[t]->MakePrefetchSpace(plan.KeysOf(t), stream).ok()) return false;
  }
  return true;
}

// Marks the rows of the plan's keys as those of the next batch.
Status MarkNext(const LocatePlan& plan, void* scratch_memory, cudaStream_t stream) {
  std::vector<DeviceTableRef> tables;
  for (const DeviceHash* table : plan.tables) tables.push_back(table->Ref());
  LocateScratch scratch(scratch_memory);
  const LocateArgs args = scratch.Lay(plan, tables, Access::kRead);
  const cudaError_t error = scratch.Send(stream);
  if (error != cudaSuccess) return CudaStatus(error);
  const auto blocks = static_cast<unsigned>(plan.blocks.num_blocks());
  MarkNextKernel<<<blocks, kLocateThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError());
}

}  // namespace

int64_t LocateRowsScratchBytes(const DeviceKeysToLocate* requests, int64_t num_requests,
                               Access access) {
  const LocatePlan plan = PlanLocate(requests, num_requests);
  LocateScratch scratch(nullptr);
  scratch.Lay(plan, std::vector<DeviceTableRef>(plan.tables.size()), access);
  return scratch.size();
}

Status LocateRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, Access access,
                      int64_t step, void* scratch, cudaStream_t stream) {
  const LocatePlan plan = PlanLocate(requests, num_requests);
  const auto locks = LockAll(plan.tables);
  ForgetFormerError();
  BegunCall call(plan.tables);
  const auto keys = KeysOfTables(plan);
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const Status status = plan.tables[t]->PrefetchRowsOf(keys[t], access, stream);
    if (!status.ok()) return status;
  }
  const Status status = Locate(plan, access, /*admits_all=*/false, step, scratch, stream);
  if (status.ok()) call.End();
  return status;
}

namespace {

// Between the two memories. The caller holds the tables' mutexes.
Status ExchangeRows(const DeviceKeysToLocate* requests, int64_t num_requests, void* scratch,
                    cudaStream_t stream) {
  std::vector<DeviceKeysToLocate> of_two_memories;
  std::copy_if(requests, requests + num_requests, std::back_inserter(of_two_memories),
               [](const DeviceKeysToLocate& r) { return r.table->CanPrefetchRows(); });
  const LocatePlan plan =
      PlanLocate(of_two_memories.data(), static_cast<int64_t>(of_two_memories.size()));
  if (plan.num_positions() == 0) return {};
  if (plan.num_positions() >= INT32_MAX) return "expected fewer than 2^31 keys in a call";
  if (!MakePrefetchSpace(plan, stream)) return {};
  const Status status = MarkNext(plan, scratch, stream);
  if (!status.ok()) return status;
  const cudaStream_t beside = PrefetchStream();
  std::vector<PrefetchRef> tables;
  for (DeviceHash* table : plan.tables) tables.push_back(table->BeginPrefetching(beside));
  const cudaError_t error = EnqueuePrefetching(tables, beside);
  for (DeviceHash* table : plan.tables) table->EndPrefetching(beside);
  return CudaStatus(error);
}

}  // namespace

Status PrefetchRowsCuda(const DeviceKeysToLocate* requests, int64_t num_requests, void* scratch,
                        cudaStream_t stream) {
  const Stage stage("bring rows");
  const LocatePlan plan = PlanLocate(requests, num_requests);
  const auto locks = LockAll(plan.tables);
  ForgetFormerError();
  const Status status = ExchangeRows(requests, num_requests, scratch, stream);
  if (!status.ok()) return status;
  const auto keys = KeysOfTables(plan);
  for (size_t t = 0; t < plan.tables.size(); ++t) plan.tables[t]->PrefetchAhead(keys[t], stream);
  return {};
}

Status InsertRowsCuda(DeviceHash* table, const int64_t* keys, int64_t num_keys, int64_t* rows,
                      void* scratch, cudaStream_t stream) {
  const DeviceKeysToLocate request{table, keys, num_keys, rows};
  ForgetFormerError();
  return Locate(PlanLocate(&request, 1), Access::kTrain, /*admits_all=*/true, -1, scratch, stream);
}

}  // namespace group_embedding
