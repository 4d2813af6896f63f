// Removes the files that failed saves, and processes that ended during a save, have left in a
// folder. The next save to the folder removes them, but only if no process may use them.
//
// A process that saves keeps the checkpoint until its tables are saved again or destroyed.
// Meanwhile it holds a shared lock (flock) on the folder, and no other process removes files there.
// Without a lock, a table's file is a leftover if its checkpoint has neither an index nor a file of
// TensorFlow: the index is written last, and a copy of a checkpoint, made in the order of names,
// has TensorFlow's file first. A file with the suffix .tmp is a leftover if its own lock is free.
#pragma once

#include <memory>
#include <string>

namespace group_embedding {

// Whether `suffix` is what a file of a table has behind the prefix of its checkpoint and a dot.
bool IsTableSuffix(const std::string& suffix);

// Holds the checkpoint of that prefix, on this machine's file system, for as long as the result
// lives, and removes what others left in the folder, if it is the first to hold it. A folder that
// cannot be locked, as on some file systems of networks, is left as it is. Null: there is no
// folder.
std::shared_ptr<const void> HoldSave(const std::string& prefix);

}  // namespace group_embedding
