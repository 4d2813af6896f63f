// Rows of peers, read where they are: each unique row crosses the link once.
#pragma once

#include "exchange/route_rows.h"

namespace group_embedding {

// Where the local rows of a part are, as this rank sees them.
struct PartSource {
  const char* rows;   // [local rows, row_bytes]
  int64_t row_bytes;  // of the vectors of 16, 8, 4 or 2 bytes that divide it, the widest are moved
};

// Writes parts ([num_parts], for WritePlacesCuda): those of this rank are read in place, the rows
// of the others will lie in `fetched`, part after part. sources: [num_parts] on the device.
cudaError_t PlacePartsCuda(const RoutedRows& routed, const PartSource* sources, int64_t num_tables,
                           int rank, char* fetched, PartPlace* parts, cudaStream_t stream);

// Brings them there.
cudaError_t FetchRowsCuda(const RoutedRows& routed, const PartSource* sources,
                          const PartPlace* parts, int64_t num_tables, int rank,
                          cudaStream_t stream);

}  // namespace group_embedding
