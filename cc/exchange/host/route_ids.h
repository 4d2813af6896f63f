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
//
// In an exchange of two levels the ranks of a host first ask their proxies, which are ranks of that
// host, and these ask the owners once for what several of them need:
//
//   rank 0 of host a: ids 7 2     rank 0 is the proxy of owner 2, rank 1 that of owner 3
//   rank 1 of host a: ids 3 2     rank 0 asks owner 2 for id 2, once; rank 1 asks owner 3 for 7 3
//
// Messages to proxies have ids as the batch has them, which the proxy routes in its turn.
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

// Which ranks of this host ask the owners. None of the tables is spread by columns, or has sums.
struct Proxies {
  int64_t num_ranks = 0;         // of the host
  std::vector<int32_t> of = {};  // [ranks of the job] the number of an owner's proxy in the host
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
  Proxies proxies = {};  // empty: owners are asked
  const int64_t* times =
      nullptr;  // [batch.num_ids] occurrences of each id, 1 to kMaxTimes; null: 1
};

// The batch's samples of one table whose owners send sums, once these have come: sample after
// sample of its features, the rows of the table's matrix that add up to it.
struct SampleSums {
  std::vector<int64_t> row_splits;  // [samples + 1]; empty: the table's owners send rows
  std::vector<int64_t> rows;        // [row_splits.back()]
};

// Returns the requests for each table, to owners or to proxies. ids: [batch.num_ids] written: for
// each id its row in the table's matrix, -1 if the id is left out, or the matrix's number of rows
// if the id reads zeros. Tables of keys are not spread by columns. Keys that are left out because
// of their weight are requested too, since their owner counts them. sums: [num_tables] written; a
// table that has some has no `ids`. fault: receives the first bad id, which reads zeros here: a
// rank with bad input still takes part in the exchange, so that other ranks do not wait for it. The
// result depends on the input alone. The batch has fewer than 2^31 ids.
std::vector<TableRequest> RouteIds(const RouteInput& input, int64_t* ids,
                                   std::vector<SampleSums>* sums, Fault* fault,
                                   const ParallelFor& parallel_for);

}  // namespace group_embedding
