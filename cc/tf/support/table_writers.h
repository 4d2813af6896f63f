// The threads that write tables to files.
#pragma once

#include "tensorflow/core/platform/threadpool.h"

namespace group_embedding {

// Started by the first call, and there until the process ends: half as many as cores, as the others
// train. A process makes its first table before it has used up its memory, so tables call this,
// too: where no thread can start, TensorFlow ends the process.
tensorflow::thread::ThreadPool* TableWriters();

}  // namespace group_embedding
