#include <algorithm>
#include <stdexcept>

#include "core/descriptors.cuh"
#include "exchange/part_bytes.h"
#include "exchange/peer_group.h"
#include "table/device_buffer.h"

namespace group_embedding {
namespace {

struct CountsOfRanks {
  const int64_t* num_unique[PeerMemory::kMaxRanks];
};

// A block brings the counts of one rank here.
__global__ void GatherCountsKernel(CountsOfRanks from, int64_t num_counts, int64_t* to) {
  for (int64_t i = threadIdx.x; i < num_counts; i += blockDim.x) {
    to[blockIdx.x * num_counts + i] = from.num_unique[blockIdx.x][i];
  }
}

// The hyper of an update that does nothing once a barrier has failed.
__global__ void GuardHyperKernel(const Hyper* hyper, const int* failed, Hyper* guarded) {
  *guarded = *hyper;
  if (*failed != 0) guarded->apply = 0;
}

}  // namespace

PeerRoom::PeerRoom(const Group& group, int num_ranks, int64_t max_ids) {
  int64_t whole_bytes = 0, widest_row = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const int64_t row_bytes = group.tables[t].dim * SizeOf(group.dtype);
    whole_bytes += group.tables[t].num_rows * row_bytes;
    widest_row = std::max(widest_row, row_bytes);
  }
  const int64_t num_parts = num_ranks * group.num_tables;
  counts_bytes = AlignScratch((num_parts + 1) * 8);
  local_rows_bytes = AlignScratch(max_ids * 8);
  counts = 0;
  local_rows = 2 * counts_bytes;
  gradients = local_rows + 2 * local_rows_bytes;
  bytes = gradients +
          AlignScratch(std::min(whole_bytes, max_ids * widest_row) + kPartAlignment * num_parts);
}

PeerGroup::PeerGroup(const Group& group, PeerRanks* ranks,
                     const std::vector<int64_t>& table_offsets, int64_t room_offset,
                     int64_t max_ids, Memory memory)
    : ShardedGroup(group, ranks->rank(), ranks->num_ranks(), std::move(memory)),
      ranks_(ranks),
      room_(group, ranks->num_ranks(), max_ids),
      room_offset_(room_offset),
      max_ids_(max_ids) {
  for (int n = 0; n < num_ranks_; ++n) {
    for (int64_t t = 0; t < num_tables(); ++t) {
      sources_.push_back({ranks->data(n) + table_offsets[t], row_bytes(t)});
      const bool has_rows = shard(t).num_rows > 0;  // of none, arrays may be anywhere
      if (n == rank_ && has_rows && sources_.back().rows != shard(t).rows) {
        throw std::runtime_error("table " + std::to_string(t) +
                                 ": expected its rows at its offset of this rank's peer memory");
      }
    }
  }
  const int64_t bytes = num_ranks_ * (num_parts() + 1) * sizeof(int64_t);
  host_counts_ = static_cast<int64_t*>(allocate_on_host_("counts", bytes));
  for (cudaEvent_t* event : {&counts_are_here_, &parts_are_placed_, &places_are_written_}) {
    RequireCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  RequireCuda(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking));
}

PeerGroup::~PeerGroup() {
  cudaStreamSynchronize(side_stream_);
  cudaStreamDestroy(side_stream_);
  for (cudaEvent_t event : {counts_are_here_, parts_are_placed_, places_are_written_}) {
    cudaEventDestroy(event);
  }
}

void PeerGroup::Lookup(Fault* fault, cudaStream_t stream) {
  if (group().batch.num_ids > max_ids_) {
    throw std::runtime_error("expected a batch of at most " + std::to_string(max_ids_) +
                             " ids, got " + std::to_string(group().batch.num_ids));
  }
  turn_ = 1 - turn_;
  DeviceArrays sizes(nullptr);
  sizes.Add(sources_);
  DeviceArrays arrays(allocate_("sources", sizes.size()));
  const PartSource* sources = arrays.Add(sources_);
  RequireCuda(arrays.Send(stream));
  auto* parts = static_cast<PartPlace*>(allocate_("part_places", num_parts() * sizeof(PartPlace)));
  char* fetched = static_cast<char*>(allocate_("fetched", room_.bytes - room_.gradients));

  Route(/*keys=*/{}, LocalRowsOf(rank_), fault, stream);
  RequireCuda(cudaMemcpyAsync(CountsOf(rank_), routed_.sorted.num_unique, (num_parts() + 1) * 8,
                              cudaMemcpyDeviceToDevice, stream));
  // Every rank has its counts and rows there, and is done with the update before.
  RequireCuda(ranks_->EnqueueBarrier(stream));
  GatherCounts(stream);
  RequireCuda(PlacePartsCuda(routed_, sources, num_tables(), rank_, fetched, parts, stream));
  // Places are written to memory while rows come over the link.
  RequireCuda(cudaEventRecord(parts_are_placed_, stream));
  RequireCuda(cudaStreamWaitEvent(side_stream_, parts_are_placed_, 0));
  RequireCuda(WritePlacesCuda(routed_, parts, side_stream_));
  RequireCuda(cudaEventRecord(places_are_written_, side_stream_));
  RequireCuda(FetchRowsCuda(routed_, sources, parts, num_tables(), rank_, stream));
  RequireCuda(cudaStreamWaitEvent(stream, places_are_written_, 0));
  LookUpPlaces(stream);
}

void PeerGroup::GatherCounts(cudaStream_t stream) {
  const int64_t num_counts = num_parts() + 1;
  auto* counts = static_cast<int64_t*>(allocate_("counts", num_ranks_ * num_counts * 8));
  CountsOfRanks from = {};
  for (int n = 0; n < num_ranks_; ++n) from.num_unique[n] = CountsOf(n);
  GatherCountsKernel<<<num_ranks_, 128, 0, stream>>>(from, num_counts, counts);
  RequireCuda(cudaGetLastError());
  RequireCuda(cudaMemcpyAsync(host_counts_, counts, num_ranks_ * num_counts * 8,
                              cudaMemcpyDeviceToHost, stream));
  RequireCuda(cudaEventRecord(counts_are_here_, stream));
}

void PeerGroup::Update(const group_embedding::Update& update, cudaStream_t stream) {
  RequireCuda(cudaEventSynchronize(counts_are_here_));  // the barrier before it has a time-out
  const std::string error = ranks_->Error();
  if (!error.empty()) throw std::runtime_error(error);
  num_unique_.clear();
  for (int n = 0; n < num_ranks_; ++n) num_unique_.push_back(NumUniqueOf(n));
  const std::vector<int64_t> own_at = PartOffsets(CountsFrom(num_unique_[rank_]), -1);
  std::vector<char*> gradients;
  for (int64_t p = 0; p < num_parts(); ++p) {
    gradients.push_back(InRoom<char>(rank_, room_.gradients + own_at[p]));
  }
  ReduceGradients(num_unique_[rank_], gradients, stream);
  // Every rank has reduced its gradients, and is done with reading rows.
  RequireCuda(ranks_->EnqueueBarrier(stream));

  std::vector<Received> received;
  std::vector<int64_t> first_rows = {0};
  for (int n = 0; n < num_ranks_; ++n) {
    const std::vector<int64_t> counts = CountsFrom(num_unique_[n]);
    const int64_t part = rank_ * num_tables();
    received.push_back({{counts.begin() + part, counts.begin() + part + num_tables()},
                        InRoom<char>(n, room_.gradients + PartOffsets(counts, -1)[part])});
    first_rows.push_back(first_rows.back() + num_unique_[n][part + num_tables()] -
                         num_unique_[n][part]);
  }
  auto* rows = static_cast<int64_t*>(allocate_("requests", 8 * first_rows.back()));
  for (int n = 0; n < num_ranks_; ++n) {
    RequireCuda(
        cudaMemcpyAsync(rows + first_rows[n], LocalRowsOf(n) + num_unique_[n][rank_ * num_tables()],
                        (first_rows[n + 1] - first_rows[n]) * 8, cudaMemcpyDefault, stream));
  }
  auto* hyper = static_cast<Hyper*>(allocate_("hyper", sizeof(Hyper)));
  GuardHyperKernel<<<1, 1, 0, stream>>>(update.hyper, ranks_->failed(), hyper);
  RequireCuda(cudaGetLastError());
  group_embedding::Update guarded = update;
  guarded.hyper = hyper;
  UpdateShards(guarded, received, rows, stream);
}

std::vector<int64_t> PeerGroup::NumUniqueOf(int rank) const {
  const int64_t* first = host_counts_ + rank * (num_parts() + 1);
  return {first, first + num_parts() + 1};
}

std::vector<int64_t> PeerGroup::CountsFrom(const std::vector<int64_t>& num_unique) const {
  std::vector<int64_t> counts;
  for (int64_t p = 0; p < num_parts(); ++p) counts.push_back(num_unique[p + 1] - num_unique[p]);
  return counts;
}

int64_t PeerGroup::fetched_bytes() const {
  return PartOffsets(CountsFrom(num_unique_[rank_]), rank_).back();
}

int64_t PeerGroup::read_gradient_bytes() const {
  int64_t bytes = 0;
  for (int n = 0; n < num_ranks_; ++n) {
    if (n == rank_) continue;
    const std::vector<int64_t> at = PartOffsets(CountsFrom(num_unique_[n]), -1);
    bytes += at[(rank_ + 1) * num_tables()] - at[rank_ * num_tables()];
  }
  return bytes;
}

}  // namespace group_embedding
