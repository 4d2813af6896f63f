#include <algorithm>
#include <numeric>

#include "core/device_buffer.h"
#include "core/side_stream.h"
#include "exchange/gpu/peer_buffer_transport.h"
#include "exchange/gpu/peer_layout.h"

namespace group_embedding {
namespace {

// 16 MB take 45 us over NVLink, longer than the launches that one more chunk costs.
constexpr int64_t kChunkBytes = int64_t{16} << 20, kMaxChunks = 4;
static_assert(kMaxChunks < PeerSignals::kNumChannels);

// Sets the number of every rank's peer buffer to one of `needed` bytes; a buffer that is too small
// is replaced by a new one. Returns false on all ranks if there is no memory. All ranks know each
// other's needs and buffers, so they all decide the same.
bool FindBuffers(PeerBufferPool* pool, const std::vector<int64_t>& needed,
                 std::vector<int64_t>* numbers, cudaStream_t stream) {
  std::vector<size_t> without;
  int64_t most = 0;
  for (size_t n = 0; n < needed.size(); ++n) {
    if (pool->Bytes((*numbers)[n]) >= needed[n]) continue;
    without.push_back(n);
    most = std::max(most, needed[n]);
  }
  if (without.empty()) return true;
  // Half as much again as this batch needs, since batches differ.
  const int64_t bytes = most + most / 2;
  const int64_t added = pool->MayHave(bytes) ? pool->Add(bytes, stream) : PeerBufferPool::kNone;
  for (const size_t n : without) (*numbers)[n] = added;
  return added != PeerBufferPool::kNone;
}

}  // namespace

std::unique_ptr<PeerBufferTransport> PeerBufferTransport::Make(
    const WireLayout* layout, PeerBufferPool* pool, const ExchangedCounts& counts,
    const NamedMemory::Allocate* allocate, cudaStream_t stream) {
  const int rank = layout->rank, num_ranks = layout->num_ranks;
  const double wire_ratio = static_cast<double>(SizeOf(layout->wire_type)) / SizeOf(layout->type);
  const PeerLayout at(counts.requested, layout->bytes_of_rows(), num_ranks, wire_ratio);
  std::unique_ptr<PeerBufferTransport> made(new PeerBufferTransport(*layout, pool, *allocate));
  made->numbers_ = counts.peer_buffers;
  if (!FindBuffers(pool, at.bytes, &made->numbers_, stream)) return nullptr;
  made->buffer_ = pool->Take(made->numbers_[rank]);
  made->own_gradients_at_ = at.gradients_at[rank * num_ranks];
  for (int n = 0; n < num_ranks; ++n) {
    made->rows_at_.push_back(at.rows_at[n * num_ranks + rank]);
    made->gradients_at_.push_back(at.gradients_at[n * num_ranks + rank]);
  }
  made->CutIntoChunks(counts.requested);
  return made;
}

void PeerBufferTransport::CutIntoChunks(const std::vector<int64_t>& requested) {
  const int64_t num_tables = layout_.num_tables(), num_ranks = layout_.num_ranks;
  std::vector<int64_t> bytes(num_tables, 0);  // sent between all ranks, per table
  for (size_t p = 0; p < requested.size(); ++p) {
    const int64_t pair = p / num_tables, t = p % num_tables;
    if (pair / num_ranks != pair % num_ranks) bytes[t] += requested[p] * layout_.row_bytes(t);
  }
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t num_chunks =
      std::clamp<int64_t>(layout_.WireBytes(all) / num_ranks / kChunkBytes, 1, kMaxChunks);
  int64_t cut_bytes = 0;
  for (int64_t t = 0, begin = 0; t < num_tables; ++t) {
    cut_bytes += bytes[t];
    const int64_t chunk = static_cast<int64_t>(chunks_.size()) + 1;
    if (t + 1 < num_tables && (chunk == num_chunks || cut_bytes * num_chunks < all * chunk)) {
      continue;
    }
    chunks_.push_back({begin, t + 1});
    begin = t + 1;
  }
}

Transfer PeerBufferTransport::Open(const std::vector<int64_t>& other_at, int64_t own_at,
                                   const TransferSize& size) {
  Transfer transfer = LayOut(layout_, size);
  transfer.arrived = buffer_->data(layout_.rank) + own_at;
  transfer.peer_buffer = buffer_;
  for (int n = 0; n < layout_.num_ranks; ++n) {
    // Nothing is written for this rank itself.
    transfer.to.push_back(n == layout_.rank ? nullptr : pool_->In(numbers_[n], n) + other_at[n]);
  }
  return transfer;
}

void PeerBufferTransport::ExchangeRows(const Transfer& transfer, const RowsToServe& served,
                                       const StepsOnRows& steps, cudaStream_t stream) {
  std::vector<ServedPart> parts;
  std::vector<int64_t> first_parts = {0};
  for (const TableRange& tables : chunks_) {
    for (const ServedPart& part : PartsToServe(layout_, transfer, served, tables)) {
      parts.push_back(part);
    }
    first_parts.push_back(static_cast<int64_t>(parts.size()));
  }
  void* scratch = allocate_("serve", ServeRowsScratchBytes(layout_.num_parts()));
  const PeerSignals signals = pool_->NextSignals();
  SideStream beside;
  RequireCuda(beside.Begin(stream));
  RequireCuda(ServeChunksCuda(parts, first_parts, signals, served.requests, layout_.type,
                              layout_.wire_type, scratch, beside.stream()));
  steps.write_addresses(stream);
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    pool_->EnqueueWait(signals, 1 + static_cast<int>(chunk), stream);
    steps.unpack(chunks_[chunk]);
    steps.look_up(chunks_[chunk]);
  }
  RequireCuda(beside.End());
}

void PeerBufferTransport::Send(const Transfer&, cudaStream_t stream) {
  pool_->EnqueueBarrier(stream);
}

}  // namespace group_embedding
