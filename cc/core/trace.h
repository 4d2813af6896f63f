// Names the stages of the flow in a trace of NVIDIA's tools: `nsys profile -t cuda,nvtx ...`.
#pragma once

#if GROUP_EMBEDDING_CUDA && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define GROUP_EMBEDDING_NVTX 1
#endif

namespace group_embedding {

// A range from here to the end of the scope; nothing but a few instructions where no tool listens.
class Stage {
 public:
#if GROUP_EMBEDDING_NVTX
  explicit Stage(const char* name) { nvtxRangePushA(name); }
  ~Stage() { nvtxRangePop(); }
#else
  explicit Stage(const char*) {}
#endif
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
};

}  // namespace group_embedding
