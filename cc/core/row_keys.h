// RowKeys: by what the random numbers of a table's rows are drawn.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// A row is drawn by its number or, in a table of keys, by its key: the same on every rank, for any
// number of threads, and after a restart, in which rows get other numbers.
struct RowKeys {
  const char* keys = nullptr;  // int64, where the rows are; null: rows have none
  int64_t stride = 0;          // bytes from one to the next

  GROUP_EMBEDDING_HOST_DEVICE int64_t Of(int64_t row) const {
    if (keys == nullptr) return row;
    return *reinterpret_cast<const int64_t*>(keys + row * stride);
  }
};

}  // namespace group_embedding
