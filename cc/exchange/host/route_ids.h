// Routing: finds the rows that a rank has to request from each owner.
//
// A rank finds the unique rows of its batch and their owners (core/owner.h), and writes one message
// to each owner (messages.h). The received rows form one matrix per table, ordered by owner and
// then as requested. Routing replaces the batch's ids by row numbers of these matrices, in which
// the batch is then looked up as if they were the tables. Owners may send sums of rows instead:
// see route_sums.h.
//
// Where each rank has some columns of all rows, all are asked for the same rows, or sums. The parts
// of a row are joined (join_columns.h) before the batch is looked up.
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

// The properties of a table that routing needs.
struct RoutedTable {
  int64_t num_rows;  // of the whole table; kAnyKey: the table is keyed, and any id is valid
  Placement placement;
  bool sums = false;  // whether its owners send sums of rows
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

// The batch's samples of one table whose owners send sums, once these have come: sample after
// sample of its features, the rows of the table's matrix that add up to it.
struct SampleSums {
  std::vector<int64_t> row_splits;  // [samples + 1]; empty: the table's owners send rows
  std::vector<int64_t> rows;        // [row_splits.back()]
};

// Returns the requests for each table. ids: [batch.num_ids] written: for each id its row in the
// table's matrix, -1 if the id is left out, or the matrix's number of rows if the id reads zeros.
// Tables of keys are not spread by columns. Keys that are left out because of their weight are
// requested too, since their owner counts them. sums: [num_tables] written; a table that has some
// has no `ids`. fault: receives the first bad id, which reads zeros here: a rank with bad input
// still takes part in the exchange, so that other ranks do not wait for it. The result depends on
// the input alone. The batch has fewer than 2^31 ids.
std::vector<TableRequest> RouteIds(const RouteInput& input, int64_t* ids,
                                   std::vector<SampleSums>* sums, Fault* fault,
                                   const ParallelFor& parallel_for);

}  // namespace group_embedding
