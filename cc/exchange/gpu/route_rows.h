// Routing on a GPU: finds the rows that a rank has to request from each owner, and for each id the
// address at which its row can be read after the exchange. route_ids.h does this on the host; here
// the host does not wait.
//
// Tables are placed on ranks by row number (owner.h, kMod), or by numbered keys (number_keys.h).
// Part owner * num_tables + table is the share of a table that one owner stores. Unique rows are
// numbered part after part, ascending within a part, so that the rows for one rank are contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "exchange/gpu/number_keys.h"
#include "fused/group_lookup_grad.h"

namespace group_embedding {

// The addresses of a part's rows: the i-th unique row is at base + i * stride or, if the part is
// read in place, local row r is at base + r * stride. `base` includes kNarrowRowBit where rows are
// narrow.
struct PartAddresses {
  int64_t base;
  int64_t stride;
  bool in_place;
};

struct RoutedRows {
  SortedRows sorted;          // the batch, for ReduceRowsCuda with the GroupOfParts
  int64_t* local_rows;        // [unique rows] local row numbers, or keys; allocated for [num_ids]
  int64_t* id_addresses;      // [num_ids] written by WriteAddressesCuda; else kSkippedIdAddress or
                              // kZeroRowAddress
  const uint32_t* positions;  // [num_ids] the position in the batch of each sorted entry
  int64_t* unique_addresses;  // [unique rows] written by WriteAddressesCuda; for [num_ids]
  int64_t num_parts;
  int64_t num_ids;
};

// The group with one table per part, and for each part one feature per feature of the part's table.
struct GroupOfParts {
  GroupOfParts(const Group& group, int64_t num_ranks);
  Group get() const;  // borrows from this

  std::vector<Table> tables;
  std::vector<Feature> features;
  Group group;
};

// The numbered keys of a batch; null pointers where no table has keys.
struct RoutedKeys {
  NumberedKeys numbered;
  int64_t*
      times;  // [unique rows] written: occurrences of each in the batch; allocated for [num_ids]
};

// Sorts the ids and writes sorted->num_unique and local_rows. `group.tables` have the num_rows of
// the whole tables; their rows are not read. Enqueues on `stream`. fault: receives the first bad
// id, unless group.invalid_ids.read_zeros.
int64_t RouteRowsWorkspaceBytesCuda(const Group& group, int64_t num_ranks);
cudaError_t RouteRowsCuda(const Group& group, int64_t num_ranks, void* workspace,
                          const RoutedKeys& keys, int64_t* local_rows, int64_t* id_addresses,
                          Fault* fault, RoutedRows* routed, cudaStream_t stream);

// Enqueues the write of id_addresses, for every id that names a row. parts: [num_parts] on the
// device.
cudaError_t WriteAddressesCuda(const RoutedRows& routed, const PartAddresses* parts,
                               cudaStream_t stream);

}  // namespace group_embedding
