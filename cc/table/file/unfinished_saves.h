// What processes that ended within a save have left in a folder, and saves that failed: removed by
// whoever saves there next, and never while somebody may use it.
//
// A process that saves holds the checkpoint until its tables are saved again or are gone. Meanwhile
// its folder has a lock (flock, shared): nobody else removes files there. Where nobody has, a file
// of a table is left over if its checkpoint has neither an index nor a file of TensorFlow's: the
// index is written last, and who copies a checkpoint copies TensorFlow's file before ours, by name.
// A file that ends in .tmp is left over if nobody has its lock.
#pragma once

#include <memory>
#include <string>

namespace group_embedding {

// Whether `suffix` is what a file of a table has behind the prefix of its checkpoint and a dot.
bool IsTableSuffix(const std::string& suffix);

// Holds the checkpoint of that prefix, on this machine's file system, for as long as the result
// lives, and removes what others left in the folder, if it is the first to hold it. A folder that
// cannot be locked, as on some file systems of networks, is left as it is.
std::shared_ptr<const void> HoldSave(const std::string& prefix);

}  // namespace group_embedding
