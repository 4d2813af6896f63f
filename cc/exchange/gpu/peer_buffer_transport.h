// PeerBufferTransport: kernels write rows and gradients straight into the peer buffers
// (peer_buffers.h) of the receiving ranks.
#pragma once

#include <memory>
#include <vector>

#include "exchange/gpu/exchange_counts.h"
#include "exchange/gpu/named_memory.h"
#include "exchange/gpu/row_transport.h"
#include "exchange/transport/peer_buffers.h"

namespace group_embedding {

class PeerBufferTransport : public RowTransport {
 public:
  // Takes a peer buffer that is large enough for one lookup and one gradient, on all ranks or on
  // none; all ranks call it together. Returns null where a rank has no memory for it. counts: of
  // the lookup. layout, pool, allocate: borrowed, must outlive the object.
  static std::unique_ptr<PeerBufferTransport> Make(const WireLayout* layout, PeerBufferPool* pool,
                                                   const ExchangedCounts& counts,
                                                   const NamedMemory::Allocate* allocate,
                                                   cudaStream_t stream);

  Transfer OpenRows(const TransferSize& size) override { return Open(rows_at_, 0, size); }
  // Called once: gradients stay in the peer buffer for as long as the caller reads them.
  Transfer OpenGradients(const TransferSize& size) override {
    return Open(gradients_at_, own_gradients_at_, size);
  }

  // In pipeline chunks of a few tables: a second stream serves all chunks, while `stream` writes
  // addresses and then looks up each chunk that has arrived.
  void ExchangeRows(const Transfer& transfer, const RowsToServe& served, const StepsOnRows& steps,
                    cudaStream_t stream) override;
  // Waits for the kernels of all ranks.
  void Send(const Transfer& transfer, cudaStream_t stream) override;

 private:
  PeerBufferTransport(const WireLayout& layout, PeerBufferPool* pool,
                      const NamedMemory::Allocate& allocate)
      : layout_(layout), pool_(pool), allocate_(allocate) {}

  // other_at: [num_ranks] the offset in each other rank's peer buffer that this rank writes to;
  // own_at: the offset in its own buffer at which parts arrive.
  Transfer Open(const std::vector<int64_t>& other_at, int64_t own_at, const TransferSize& size);
  void CutIntoChunks(const std::vector<int64_t>& requested);

  const WireLayout& layout_;
  PeerBufferPool* const pool_;
  const NamedMemory::Allocate& allocate_;
  PeerBufferPool::Buffer buffer_;                // this rank's
  std::vector<int64_t> numbers_;                 // [num_ranks] of each rank's peer buffer
  std::vector<int64_t> rows_at_, gradients_at_;  // [num_ranks] where this rank writes in each other
                                                 // rank's buffer
  int64_t own_gradients_at_ = 0;    // where gradients from other ranks begin in this rank's buffer
  std::vector<TableRange> chunks_;  // the tables of each pipeline chunk, the same on all ranks
};

}  // namespace group_embedding
