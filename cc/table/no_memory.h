// NoMemory: a table in host memory that cannot grow says which one it is, how many bytes it wants,
// how many are left, and what to set.
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "core/status.h"
#include "table/memory_left.h"
#include "table/table_options.h"

namespace group_embedding {

// Thrown where an index, or what is counted of keys, gets no memory.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(int64_t bytes) : bytes_(bytes) {}
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t bytes_;
};

// "it wants 4096 bytes more, and 100 bytes are left of the host's memory"; the 4096 where a
// NoMemory says so.
std::string DescribeNoMemory(const std::bad_alloc& error);

// The error of a table that has no place for more keys. problem: "is full: ...".
Status CannotGrow(const std::string& table, const std::string& problem);

// What `body` returns; where it finds no memory, the table's error.
template <typename Body>
Status CatchNoMemory(const TableOptions& options, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc& error) {
    return CannotGrow(options.name, "is full: " + DescribeNoMemory(error));
  }
}

}  // namespace group_embedding
