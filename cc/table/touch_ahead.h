// TouchAhead: a thread of the process that touches memory which tables will need soon. New memory
// takes time, most of all in a virtual machine whose host has to find it first: 4 ms for a large
// page on one. So it is made ready between the calls that would wait for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "core/home_process.h"

namespace group_embedding {

class GrowingMemory {
 public:
  // Touches a large page that will be needed soon, if there is one. Returns whether there may be
  // more. Called by one thread.
  virtual bool TouchNextPage() = 0;

 protected:
  ~GrowingMemory() = default;
};

// May be called by several threads. A forked process has no such thread, nor has one whose address
// space is limited, as a thread takes some of it: there, memory is new when it is needed.
class TouchAhead {
 public:
  // Shared by all tables.
  static TouchAhead& Shared();

  // The thread touches pages of `memory`, in turn with those of others, until no more are needed.
  void Ask(GrowingMemory* memory);
  // Returns when the thread is done with `memory`.
  void Forget(GrowingMemory* memory);

 private:
  void Run();
  bool StartThread();

  HomeProcess home_;
  std::mutex mutex_;  // of what follows
  std::condition_variable asked_, done_;
  std::deque<GrowingMemory*> waiting_;  // each once
  GrowingMemory* current_ = nullptr;    // that the thread uses without the lock
  bool is_tried_ = false, is_running_ = false;
};

}  // namespace group_embedding
