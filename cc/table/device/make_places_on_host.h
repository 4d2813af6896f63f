// Makes places for the new keys of a call on the host, in the middle of the call, in tables with a
// budget of memory and of a tier below it, which no kernel can read.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.h"
#include "table/device/locate_plan.h"

namespace group_embedding {

// When it is known which keys are to get a row: evicts in those tables that may exceed their
// budget, and takes rows from new keys for which there is no place (gets_row). A table that fails
// gives no row. As the others have claims in their indices, the call goes on to its end, and
// returns the error then.
Status MakePlacesOnHost(const LocatePlan& plan, const LocateArgs& args, cudaStream_t stream);

}  // namespace group_embedding
