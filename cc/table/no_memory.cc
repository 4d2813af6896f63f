#include "table/no_memory.h"

namespace group_embedding {

std::string DescribeNoMemory(const std::bad_alloc& error) {
  const auto* known = dynamic_cast<const NoMemory*>(&error);
  try {
    const std::string wanted =
        known == nullptr ? "more memory" : std::to_string(known->bytes()) + " bytes more";
    return "it wants " + wanted + ", and " + FindMemoryLeft().InWords();
  } catch (const std::bad_alloc&) {  // not even to read the kernel's files
    return "it wants more memory than is left";
  }
}

Status CannotGrow(const std::string& table, const std::string& problem) {
  return "table '" + table + "' " + problem +
         "; give it more memory (tier_bytes, or storage_size of a StorageOption), set a budget "
         "that evicts keys (max_keys, max_bytes), or admit fewer keys (admit_after)";
}

}  // namespace group_embedding
