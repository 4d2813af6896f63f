// RowCopies: copies of a served table's rows that are elsewhere.
#pragma once

#include <cstdint>

namespace group_embedding {

class RowCopies {
 public:
  virtual ~RowCopies() = default;
  RowCopies(const RowCopies&) = delete;
  RowCopies& operator=(const RowCopies&) = delete;

  // Rows that nobody reads get other content now, or are free to get it.
  virtual void Forget(const int64_t* rows, int64_t num_rows) = 0;
  // Rows have got other content, which lookups may read from now on.
  virtual void Refresh(const int64_t* rows, int64_t num_rows) = 0;

 protected:
  RowCopies() = default;
};

}  // namespace group_embedding
