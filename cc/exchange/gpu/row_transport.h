// RowTransport: how the rows and the gradients of a sharded lookup travel between ranks.
//
// A transfer is one exchange of parts (wire_layout.h) between all ranks. The lookup opens it, has
// kernels write the parts where the transfer says, and passes it to the transport, which makes the
// parts arrive. communicator_transport.h sends through a communicator, peer_buffer_transport.h lets
// kernels write into the memory of the receiving GPUs.
//
// Thread safety: one thread at a time. Order: all ranks make the same calls in the same order, with
// the same kind of transport. Errors are thrown (core/status.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exchange/gpu/serve_rows.h"
#include "exchange/gpu/wire_layout.h"
#include "exchange/transport/peer_memory.h"

namespace group_embedding {

// The buffers and offsets of one exchange, in the wire type.
struct Transfer {
  std::vector<int64_t> sent_at, received_at;  // PartOffsets of sent and of received parts
  std::vector<char*> to;                      // [num_ranks] where parts for each rank are written
  char* arrived = nullptr;                    // where the parts from all ranks arrive
  char* unpacked = nullptr;                   // where they are read, in the tables' type
  bool is_unpacked = false;                   // `unpacked` is another buffer than `arrived`
  std::shared_ptr<const PeerMemory> peer_buffer;  // holds `arrived`; null: the caller's memory does
};

// What is sent in one direction, and whether the receiving rank converts it.
struct TransferSize {
  const std::vector<int64_t>&sent, &received;  // [num_parts] numbers of rows
  bool is_unpacked;
};

// The rows that this rank serves to others.
struct RowsToServe {
  const std::vector<Table>& shards;
  const std::vector<int64_t>& counts;  // [num_parts] numbers of rows that each rank requests
  const int64_t* requests;             // on the device: row numbers, part after part
};

// The steps of the requesting rank that run beside the exchange of rows and after it.
struct StepsOnRows {
  std::function<void(cudaStream_t)> write_addresses;  // needs no row
  std::function<void(TableRange)> unpack;             // of tables whose rows have arrived
  std::function<void(TableRange)> look_up;            // needs the addresses, and the unpacked rows
};

class RowTransport {
 public:
  virtual ~RowTransport() = default;

  virtual Transfer OpenRows(const TransferSize& size) = 0;
  virtual Transfer OpenGradients(const TransferSize& size) = 0;

  // Enqueues the copy of the served rows, their exchange, and `steps`, so that `stream` ends with
  // all rows looked up.
  virtual void ExchangeRows(const Transfer& transfer, const RowsToServe& served,
                            const StepsOnRows& steps, cudaStream_t stream) = 0;
  // Enqueues the exchange of what was written to transfer.to.
  virtual void Send(const Transfer& transfer, cudaStream_t stream) = 0;
};

// A transfer without buffers: the offsets alone.
Transfer LayOut(const WireLayout& layout, const TransferSize& size);

// The requests of other ranks for rows of `tables`.
std::vector<ServedPart> PartsToServe(const WireLayout& layout, const Transfer& transfer,
                                     const RowsToServe& served, TableRange tables);

}  // namespace group_embedding
