// CacheStrategy: the order in which rows of a table with several tiers leave the first tier.
#pragma once

#include <cstdint>

namespace group_embedding {

enum class CacheStrategy : int32_t {
  kLeastRecent = 0,    // the row that was located longest ago first
  kLeastFrequent = 1,  // the row trained least often first; among equals, as kLeastRecent
};

}  // namespace group_embedding
