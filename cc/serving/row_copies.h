// RowCopies: copies of a served table's rows that are elsewhere.
#pragma once

#include <cstdint>

namespace group_embedding {

class RowCopies {
 public:
  virtual ~RowCopies() = default;
  RowCopies(const RowCopies&) = delete;
  RowCopies& operator=(const RowCopies&) = delete;

  // Drops the copies of rows that nobody reads, before they get other content.
  virtual void Forget(const int64_t* rows, int64_t num_rows) = 0;

 protected:
  RowCopies() = default;
};

}  // namespace group_embedding
