// What stays on the device of a table's budget, from one launch of make_places.h to the next.
#pragma once

#include "table/device/narrow_range.cuh"

namespace group_embedding {

struct PlacesState {
  int64_t num_evicted, num_without_place;  // in the table's life
  int32_t are_counted;                     // the keys of shares, where there are several
  NarrowState narrow;
};

}  // namespace group_embedding
