// The owner's half of a lookup: copies the rows that other ranks requested from its tables into a
// send buffer, or straight into the requesting rank's peer buffer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/group.h"
#include "exchange/transport/peer_signals.h"

namespace group_embedding {

// The requests of one rank for rows of one table.
struct ServedPart {
  Table table;
  int64_t first, count;  // the range of `requests`; a row number outside the table reads zeros
  char* to;              // [count, dim] destination, in the wire type, aligned to 32 bytes
};

// Enqueues the copies, in the order of `parts`. requests: row numbers, on the device. type: the
// element type of the tables; wire: the element type that is sent, converted by way of float32.
int64_t ServeRowsScratchBytes(int64_t num_parts);
cudaError_t ServeRowsCuda(const std::vector<ServedPart>& parts, const int64_t* requests,
                          DataType type, DataType wire, void* scratch, cudaStream_t stream);

// As ServeRowsCuda, in pipeline chunks: once all rows of chunk c are written, the other ranks are
// signalled on channel 1 + c. With two chunks or more the kernel leaves multiprocessors free for
// the lookup of earlier chunks. first_parts: [num_chunks + 1] ascending, the first part of each
// chunk; num_chunks <= the number of parts.
cudaError_t ServeChunksCuda(const std::vector<ServedPart>& parts,
                            const std::vector<int64_t>& first_parts, const PeerSignals& signals,
                            const int64_t* requests, DataType type, DataType wire, void* scratch,
                            cudaStream_t stream);

}  // namespace group_embedding
