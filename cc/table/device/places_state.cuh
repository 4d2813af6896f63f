// What stays on the device of a table's budget, from one launch of make_places.h to the next.
#pragma once

#include "table/device/narrow_range.cuh"

namespace group_embedding {

struct PlacesState {
  unsigned long long num_new;              // keys of the call
  int64_t num_evicted, num_without_place;  // in the table's life
  NarrowState narrow;
};

}  // namespace group_embedding
