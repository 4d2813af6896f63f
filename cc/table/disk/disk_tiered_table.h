// A keyed table with rows in host memory, and on disk when memory is full.
//
// Each key has its row in one of the two. Locating a key, for training or for reading, moves its
// row into memory, with the same content. If memory is full, cold rows that no batch in flight has
// located move to disk, many at a time. So a located batch sees a table in memory, and training has
// the same result with any size of memory.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "table/disk/rows_on_disk.h"
#include "table/embedding_table.h"

namespace group_embedding {

// options.max_bytes: of what is in memory; greater than 0. A slot that is made when rows fill the
// memory is beyond that. The rest as of MakeHostTable.
std::unique_ptr<EmbeddingTable> MakeDiskTieredTable(const TableOptions& options,
                                                    const DiskTierOptions& disk, const void* matrix,
                                                    Status* error);

}  // namespace group_embedding
