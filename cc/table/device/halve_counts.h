// Counts of keys without a row, of which a table with a budget keeps no more than of keys.
#pragma once

#include <cuda_runtime_api.h>

#include "table/device/make_places.h"

namespace group_embedding {

struct DeviceTableRef;

// Halves the counts of each share that has more of them than it may have keys, and forgets those
// that become 0, until no share has more. Before a call counts any key. One cooperative launch,
// which may overwrite places.new_of_share. Other streams may read.
cudaError_t HalveCounts(const DeviceTableRef& table, const PlacesArgs& places, cudaStream_t stream);

}  // namespace group_embedding
