// What one rank sends to another before a lookup: one message, all words int64, so that one
// all-to-all carries everything:
//
//   | fault kind, feature, sample, id | digest of the description | bytes of it that follow, or 0 |
//   | the description, in words | rows of each table [num_tables] |
//   | local ids or keys, table after table |
//   | how often each came, of keyed tables, table after table |
//
// The description is the text that says what tables and features a lookup has. All ranks must have
// the same one; it goes with the first message, and its digest with all, so that ranks which differ
// find out, and can say how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/fault.h"

namespace group_embedding {

struct Description {
  std::string text;         // one line per table, then one per feature
  std::vector<bool> keyed;  // [num_tables] whether a table is found by key
};

uint64_t DigestOf(const std::string& description);

// In what the description of another rank differs from ours; empty: it did not send one.
std::string DifferenceOf(const std::string& ours, const std::string& theirs, int64_t rank);

// The rows of one table that are asked for, owner after owner.
struct TableRequest {
  std::vector<int64_t> ids;        // local ids, or keys
  std::vector<int64_t> times;      // of keyed tables: how often each came, else empty
  std::vector<int64_t> first_row;  // [num_ranks + 1] where each owner's begin
};

struct Messages {
  std::vector<int64_t> words;   // of rank 0, then of rank 1, ...
  std::vector<int64_t> splits;  // [num_ranks] words of each message
  std::vector<int64_t> counts;  // [num_ranks, num_tables] rows asked for
};

// `with_description`: the text goes along.
Messages WriteMessages(const std::vector<TableRequest>& tables, const Fault& fault,
                       const Description& description, bool with_description, int64_t num_ranks);

// The messages that one rank received.
struct Requests {
  std::vector<int64_t> counts;              // [num_ranks, num_tables] rows asked for by each rank
  std::vector<std::vector<int64_t>> ids;    // per table, rank after rank
  std::vector<std::vector<int64_t>> times;  // per table; empty where it has no keys
  Fault fault;                              // the first of the lowest rank that had one
  int64_t fault_rank = -1;
  std::string error;  // the ranks disagree, and in what
};

// `words`: [sum of splits]. Whatever the words are, nothing outside of them is read.
Requests ReadMessages(const int64_t* words, const int64_t* splits, int64_t num_ranks,
                      const Description& description);

}  // namespace group_embedding
