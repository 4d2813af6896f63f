#include "tf/support/table_writers.h"

#include <algorithm>

#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"

namespace group_embedding {

tensorflow::thread::ThreadPool* TableWriters() {
  static auto* writers = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(), "table_writers",
      std::max(1, tensorflow::port::MaxParallelism() / 2), /*low_latency_hint=*/false);
  return writers;
}

}  // namespace group_embedding
