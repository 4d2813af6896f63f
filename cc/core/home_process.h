// HomeProcess: the process that has the threads, locks and connections of an object. In a process
// that was forked from it no such thread runs, and the connections are also the parent's.
#pragma once

#include <unistd.h>

#include "core/status.h"

namespace group_embedding {

class HomeProcess {
 public:
  bool IsHere() const { return getpid() == id_; }
  // Why nothing can be done here, or nothing.
  Status Check() const {
    if (IsHere()) return {};
    return "expected the process that made it, got one that was forked from that, where no thread "
           "of it runs; make the table in the forked process";
  }

 private:
  const pid_t id_ = getpid();
};

}  // namespace group_embedding
