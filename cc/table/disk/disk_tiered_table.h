// A table whose rows lie in host memory as far as they fit, and the rest on disk.
//
// A key's row is in one of the two. Locating a key, be it to train or to read it, brings its row
// into memory as it was; where memory has no space, the coldest rows that no batch in flight has
// located go to disk, many at a time. So whoever has located a batch sees a table in memory, and a
// table trains to the same result whatever its memory.
#pragma once

#include <memory>
#include <string>

#include "table/disk/rows_on_disk.h"
#include "table/host/host_table.h"

namespace group_embedding {

// options.max_bytes: of what is in memory; greater than 0. A slot that is made when rows fill the
// memory is beyond that. The rest as of MakeHostTable.
std::unique_ptr<HostTable> MakeDiskTieredTable(const TableOptions& options,
                                               const DiskTierOptions& disk, const void* matrix,
                                               std::string* error);

}  // namespace group_embedding
