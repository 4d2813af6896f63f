// Routing: which rank must be asked for which rows.
//
// Tables are sharded by row: row r is stored by rank r % num_ranks, as its local row r / num_ranks.
// A rank reads its batch, finds the unique rows of each table and writes one message to each owner:
//
//   | fault kind, feature, sample, id | number of rows of each table [num_tables] | local rows,
//   table after table |                                                                        (all
//   int64)
//
// so that one all-to-all carries counts, rows and bad news. The rows that come back form, per
// table, a matrix: those of rank 0 first, each rank's in the order they were asked for. The batch
// is rewritten to name the rows of these matrices, and is then looked up as if they were the
// tables.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fault.h"
#include "core/group.h"
#include "core/parallel.h"

namespace group_embedding {

// Rank `owner` of `num_ranks` stores this many of `num_rows` rows.
inline int64_t NumLocalRows(int64_t num_rows, int64_t owner, int64_t num_ranks) {
  return (num_rows - owner + num_ranks - 1) / num_ranks;
}

inline constexpr int64_t kFaultWords = 4;

// The batch of one rank before it is routed.
struct RouteInput {
  const int64_t* num_rows;  // [num_tables] of the whole tables
  int64_t num_tables;
  const Feature* features;  // [num_features]; only samples, table and combiner are read
  int64_t num_features;
  Batch batch;
  InvalidIds invalid_ids;
  int64_t num_ranks;
};

struct Route {
  std::vector<int64_t> messages;  // of rank 0, then of rank 1, ...
  std::vector<int64_t> splits;    // [num_ranks] words of each message
  std::vector<int64_t> counts;    // [num_ranks, num_tables] rows asked for
};

// Fills `route` and rewrites the ids: `ids` ([batch.num_ids]) gets, for each id, the row of its
// table's matrix, -1 for an id that is left out, and the number of the matrix's rows for one that
// reads zeros. The first bad id, if any, travels in every message and reads zeros here: a rank with
// bad input still takes part, so that none waits for it in vain. The same input always gives the
// same messages.
void RouteIds(const RouteInput& input, Route* route, int64_t* ids, const ParallelFor& parallel_for);

// The messages that one rank received, as the lookup of its local rows: a batch of num_tables
// features, one id per sample.
struct Requests {
  std::vector<int64_t> counts;  // [num_ranks, num_tables] rows asked for by each rank
  std::vector<int64_t> ids;     // local rows, table after table, within it rank after rank
  std::vector<int64_t> totals;  // [num_tables] rows of each table
  Fault fault;                  // the first of the lowest rank that had one
  int64_t fault_rank;
  bool valid;  // false: the words are no messages of `num_tables` tables
};

Requests ReadMessages(const int64_t* words, const int64_t* splits, int64_t num_ranks,
                      int64_t num_tables);

}  // namespace group_embedding
