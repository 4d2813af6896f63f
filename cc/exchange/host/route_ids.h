// Routing: which rank must be asked for which rows.
//
// A rank reads its batch, finds the unique rows of each table and their owners (core/owner.h), and
// writes one message to each (messages.h). The rows that come back form, per table, a matrix: those
// of rank 0 first, each rank's in the order they were asked for. The batch is rewritten to name the
// rows of these matrices, and is then looked up as if they were the tables.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fault.h"
#include "core/group.h"
#include "core/owner.h"
#include "core/parallel.h"
#include "exchange/host/messages.h"

namespace group_embedding {

inline constexpr int64_t kAnyKey = -1;

// A table as routing sees it.
struct RoutedTable {
  int64_t num_rows;  // of the whole table; kAnyKey: it is found by key, and any number is one
  Placement placement;
};

// The batch of one rank before it is routed.
struct RouteInput {
  const RoutedTable* tables;  // [num_tables]
  int64_t num_tables;
  const Feature* features;  // [num_features]; only samples, table and combiner are read
  int64_t num_features;
  Batch batch;
  InvalidIds invalid_ids;
  int64_t num_ranks;
};

// Returns what to ask for, per table, and rewrites the ids: `ids` ([batch.num_ids]) gets, for each
// id, the row of its table's matrix, -1 for an id that is left out, and the number of the matrix's
// rows for one that reads zeros. Keys that are left out for their weight are asked for too, as
// their owner counts them. The first bad id, if any, is stored in `fault` and reads zeros here: a
// rank with bad input still takes part, so that none waits for it in vain. The same input always
// gives the same result. The batch has fewer than 2^31 ids.
std::vector<TableRequest> RouteIds(const RouteInput& input, int64_t* ids, Fault* fault,
                                   const ParallelFor& parallel_for);

}  // namespace group_embedding
