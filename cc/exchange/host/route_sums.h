// Routing to owners that send sums: one vector for a sample of a feature instead of its rows.
//
//   sample 0: ids 4 1 6   rank 0 owns 4 6, rank 1 owns 1
//   sample 1: ids 8       rank 0 owns 8
//   rank 0 is asked for row 4 + row 6 and for row 8; rank 1 for row 1
//   matrix  row 4 + row 6 | row 8 | row 1      sample 0: rows 0 2; sample 1: row 1
//
// The combiner's factor travels with each sum, so that the rows of the matrix are only added up. An
// id is sent as often as it occurs.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/host/route_ids.h"

namespace group_embedding {

// Returns the request for one table; features: those that look it up, in order. sums: written.
// Keys that are left out because of their weight are sent too, since their owner counts them: in
// one sum of each owner, the last, which no sample reads.
TableRequest RouteSums(const RouteInput& input, const RoutedTable& table,
                       const std::vector<int64_t>& features, SampleSums* sums, Fault* fault);

// Counts the routed ids of each feature in a batch with sums. num_ids: [num_features] written.
void CountRoutedIds(const RouteInput& input, const std::vector<SampleSums>& sums, int64_t* num_ids);

// Writes the batch (grouping/group_ids.h) that is looked up in the matrices of all tables. ids: as
// RouteIds wrote them. The weights of a batch that has some are 1 for sums.
void WriteRoutedBatch(const RouteInput& input, const int64_t* ids,
                      const std::vector<SampleSums>& sums, const int64_t* num_ids, float* buffer);

}  // namespace group_embedding
