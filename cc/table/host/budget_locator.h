// Locating, for training, in a table in host memory that has a budget.
#pragma once

#include <memory>
#include <vector>

#include "table/locate_rows.h"

namespace group_embedding {

class HostShards;

std::unique_ptr<RowLocator> MakeBudgetLocator(HostShards* table, std::vector<KeysToLocate> requests,
                                              int64_t step);

}  // namespace group_embedding
