// The rows that ranks ask one for, from its tables to where they leave from: a buffer, or at once
// the memory of the rank that asked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/group.h"
#include "exchange/transport/peer_signals.h"

namespace group_embedding {

// What is asked for of one table.
struct ServedPart {
  Table table;
  int64_t first, count;  // of the requests; row numbers that the table has not read zeros
  char* to;              // [count, dim] of the type in which rows travel, aligned to 32 bytes
};

// Enqueues the copies, in the order of `parts`. requests: row numbers, on the device. type: of the
// tables' elements; wire: what they are converted to, by way of float32.
int64_t ServeRowsScratchBytes(int64_t num_parts);
cudaError_t ServeRowsCuda(const std::vector<ServedPart>& parts, const int64_t* requests,
                          DataType type, DataType wire, void* scratch, cudaStream_t stream);

// The same in courses, with multiprocessors left for other work where there are several: the other
// ranks are told once a course is served, by channel 1 + course. first_parts: [num_courses + 1]
// ascending; there are as many courses as parts, at most.
cudaError_t ServeCoursesCuda(const std::vector<ServedPart>& parts,
                             const std::vector<int64_t>& first_parts, const PeerSignals& signals,
                             const int64_t* requests, DataType type, DataType wire, void* scratch,
                             cudaStream_t stream);

}  // namespace group_embedding
