// The message with which one rank requests rows from another: int64 words, sent in one all-to-all.
//
//   | fault kind, feature, sample, id, rank that has it | digest of the description |
//   | bytes of the description that follow, or 0 | the description, in words |
//   | number of rows of each table [num_tables] |
//   | local ids or keys, table after table |
//   | for keyed tables, the occurrences of each key in the batch, table after table |
//
// Where a table's owners send sums of rows, its number of rows is that of the sums, and its ids are
//
//   | number of ids | 1: they have weights | a RowSum per sum | ids or keys, sum after sum |
//   | their weights, two in a word |
//
// and no occurrences follow: an id is there as often as it occurs.
//
// The description is a text that lists the tables and features of a lookup. It has to be the same
// on all ranks. The first message contains it, and every message contains its digest, so that ranks
// can report that they differ, and how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"

namespace group_embedding {

struct Description {
  std::string text;         // one line per table, then one per feature
  std::vector<bool> keyed;  // [num_tables] whether a table is found by key
  std::vector<bool> sums;   // [num_tables] whether its owners send sums; empty: none do
};

uint64_t DigestOf(const std::string& description);

// A sentence: how the description of another rank differs from ours. theirs: empty if the rank did
// not send it.
std::string DifferenceOf(const std::string& ours, const std::string& theirs, int64_t rank);

// scale * sum_i weight_i row_i over the next num_ids ids.
struct RowSum {
  int32_t num_ids;
  float scale;
};
static_assert(sizeof(RowSum) == sizeof(int64_t));

// The requested rows of one table, or sums of its rows, owner after owner.
struct TableRequest {
  std::vector<int64_t> ids;        // local ids, or keys
  std::vector<int64_t> times;      // for keyed tables: occurrences of each key; else empty
  std::vector<int64_t> first_row;  // [num_ranks + 1] where each owner's rows, or sums, begin
  // The rest is empty where the table's owners send rows.
  std::vector<int64_t> first_id = {};  // [num_ranks + 1] where each owner's ids begin
  std::vector<RowSum> sums = {};
  std::vector<float> weights = {};  // of each id; empty: 1
};

struct Messages {
  std::vector<int64_t> words;   // the message to rank 0, then to rank 1, ...
  std::vector<int64_t> splits;  // [num_ranks] words of each message
  std::vector<int64_t> counts;  // [num_ranks, num_tables] requested rows
};

// with_description: whether the messages contain the text. fault_rank: the rank that has the fault;
// -1: the one that sends the messages.
Messages WriteMessages(const std::vector<TableRequest>& tables, const Fault& fault,
                       const Description& description, bool with_description, int64_t num_ranks,
                       int64_t fault_rank = -1);

// The messages that one rank received.
struct Requests {
  std::vector<int64_t> counts;              // [num_ranks, num_tables] rows that each rank requests
  std::vector<std::vector<int64_t>> ids;    // per table, rank after rank
  std::vector<std::vector<int64_t>> times;  // per table; empty where it has no keys, or sums
  // Per table; empty where it has no sums: the number of ids of each sum, and per id the factor
  // of its row, its weight times the sum's scale.
  std::vector<std::vector<int64_t>> sum_lengths;
  std::vector<std::vector<float>> factors;
  Fault fault;  // of the lowest rank that has one
  int64_t fault_rank = -1;
  std::string error;  // how the ranks disagree; empty: they agree
};

// words: [sum of splits], which may hold anything: nothing outside of them is read. numbers:
// [num_ranks] of the ranks in the job, where they are some of these; empty: they are all.
Requests ReadMessages(const int64_t* words, const int64_t* splits, int64_t num_ranks,
                      const Description& description, const std::vector<int64_t>& numbers = {});

}  // namespace group_embedding
