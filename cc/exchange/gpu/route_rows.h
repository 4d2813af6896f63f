// Routing on a GPU: which rows a rank must ask which owner for, and where each looked-up row will
// be once they came. The same as route_ids.h, without a host that waits.
//
// All tables are spread by row number (owner.h, kMod), or have keys that were numbered so
// (number_keys.h). A **part** is what one owner has of one table: part owner * num_tables + table.
// Unique rows are counted over all parts, in the order of parts and ascending within each: so what
// goes to one rank lies together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "exchange/gpu/number_keys.h"
#include "fused/group_lookup_grad.h"

namespace group_embedding {

// Where the rows of a part are read: the i-th unique row at base + i * stride, or, where the part
// is read in place, local row r at base + r * stride. Addresses (kNarrowPlace more, where rows are
// narrow), or row numbers.
struct PartPlace {
  int64_t base;
  int64_t stride;
  bool in_place;
};

struct RoutedRows {
  SortedRows sorted;    // of the batch; ReduceRowsCuda takes it with the GroupOfParts
  int64_t* local_rows;  // [number of unique rows] of their parts, or keys; space for [num_ids]
  int64_t* places;      // [num_ids] see kLeftOutPlace; else written by WritePlacesCuda
  const uint32_t* positions;  // [num_ids] of sorted entries
  int64_t* places_of_unique;  // [number of unique rows] written by WritePlacesCuda; space as above
  int64_t num_parts;
  int64_t num_ids;
};

// The group with a table, and a feature for every feature of that, for each part.
struct GroupOfParts {
  GroupOfParts(const Group& group, int64_t num_ranks);
  Group get() const;  // borrows from this

  std::vector<Table> tables;
  std::vector<Feature> features;
  Group group;
};

// What has been numbered of a batch. Null pointers: nothing.
struct RoutedKeys {
  NumberedKeys numbered;
  int64_t* times;  // [number of unique rows] written: how often each came; space for [num_ids]
};

// Sorts the ids and writes sorted->num_unique and local_rows. `group.tables` have the num_rows of
// the whole tables; their rows are not read. Enqueues on `stream`. `fault`: takes the first bad id,
// unless group.invalid_ids.read_zeros.
int64_t RouteRowsWorkspaceBytesCuda(const Group& group, int64_t num_ranks);
cudaError_t RouteRowsCuda(const Group& group, int64_t num_ranks, void* workspace,
                          const RoutedKeys& keys, int64_t* local_rows, int64_t* places,
                          Fault* fault, RoutedRows* routed, cudaStream_t stream);

// Puts into places, for every id that names a row, where that is. parts: [num_parts] on the device.
cudaError_t WritePlacesCuda(const RoutedRows& routed, const PartPlace* parts, cudaStream_t stream);

}  // namespace group_embedding
