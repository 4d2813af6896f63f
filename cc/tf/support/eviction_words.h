// The eviction that ops' attributes name: words joined by '+', such as "global_step+time".
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "table/table_options.h"

namespace group_embedding {

// Sets `eviction`; false: a word is unknown. "none": no key goes.
inline bool ParseEviction(const std::string& words, int64_t steps_to_live, float l2_weight,
                          int64_t minutes_to_live, Eviction* eviction) {
  *eviction = {Eviction::Kind::kNone, steps_to_live, l2_weight, minutes_to_live};
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find('+', begin), words.size());
    const std::string word = words.substr(begin, end - begin);
    if (word == "global_step") {
      eviction->Add(Eviction::Kind::kGlobalStep);
    } else if (word == "l2_weight") {
      eviction->Add(Eviction::Kind::kL2Weight);
    } else if (word == "time") {
      eviction->Add(Eviction::Kind::kTime);
    } else if (word != "none") {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

inline constexpr char kEvictionWords[] =
    "expected 'none', or some of 'global_step', 'l2_weight' and 'time' joined by '+', got '";

}  // namespace group_embedding
