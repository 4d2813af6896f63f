// FreeRows: takes free rows of a RowStore a few at a time, and returns those that are not used.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "table/host/row_store.h"

namespace group_embedding {

class FreeRows {
 public:
  // At most `most` will be asked for, of which `at_once` are taken at a time.
  FreeRows(RowStore& store, int64_t most, int64_t at_once = 64)
      : store_(store), at_once_(at_once), left_(most) {}
  ~FreeRows() {
    for (const int64_t row : rows_) store_.Return(row);
  }
  FreeRows(const FreeRows&) = delete;
  FreeRows& operator=(const FreeRows&) = delete;

  // kNoRow: there are none; error() says why.
  int64_t Next() {
    if (rows_.empty() && error_.ok()) {
      error_ = store_.Take(std::min(left_, at_once_), &rows_);
      // The lowest row first, so that rows are written one after the other.
      std::reverse(rows_.begin(), rows_.end());
    }
    if (rows_.empty()) return kNoRow;
    --left_;
    const int64_t row = rows_.back();
    rows_.pop_back();
    return row;
  }
  const Status& status() const { return error_; }

  // A row from Next() that goes back, as no key's, unless it is kept.
  class Unused {
   public:
    Unused(FreeRows* rows, int64_t row) : rows_(*rows), row_(row) {}
    ~Unused() {
      if (row_ == kNoRow) return;
      rows_.store_.infos().SetNoKeys(row_);
      rows_.store_.Return(row_);
    }
    Unused(const Unused&) = delete;
    Unused& operator=(const Unused&) = delete;

    void Keep() { row_ = kNoRow; }

   private:
    FreeRows& rows_;
    int64_t row_;
  };

 private:
  RowStore& store_;
  const int64_t at_once_;
  int64_t left_;
  std::vector<int64_t> rows_;
  Status error_;
};

}  // namespace group_embedding
