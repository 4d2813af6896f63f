// DeviceCopies: copies of a served table's rows that are elsewhere.
#pragma once

#include <cstdint>

namespace group_embedding {

class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Rows that nobody reads get other content now, or are free to get it.
  virtual void Forget(const int64_t* rows, int64_t num_rows) = 0;
  // Rows have got other content, which lookups may read from now on.
  virtual void Refresh(const int64_t* rows, int64_t num_rows) = 0;

 protected:
  DeviceCopies() = default;
};

}  // namespace group_embedding
