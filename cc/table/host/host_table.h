// Makes a keyed table in host memory.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "table/embedding_table.h"

namespace group_embedding {

// `matrix`: [options.initial.matrix_rows, dim] of the table's type, or null if it has none.
// Where it cannot be made, null, and `error` says why.
std::unique_ptr<EmbeddingTable> MakeHostTable(const TableOptions& options, const void* matrix,
                                              Status* error);

}  // namespace group_embedding
