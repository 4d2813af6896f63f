// Which rows of a table in several tiers are the coldest: those that leave the first tier first.
#pragma once

#include <cstdint>

namespace group_embedding {

enum class Coldest : int32_t {
  kLeastRecent = 0,    // located longest ago
  kLeastFrequent = 1,  // trained least often; among equals, located longest ago
};

}  // namespace group_embedding
