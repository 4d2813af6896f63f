// The functions of NCCL's C interface (nccl.h) that the exchange uses. libnccl.so.2 is loaded when
// the first communicator is made, so that builds and programs without NCCL need no library.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "core/status.h"

namespace group_embedding {

struct NcclApi {
  struct Comm;
  struct UniqueId {
    char bytes[128];
  };
  using Result = int;
  static constexpr Result kSuccess = 0, kInProgress = 7;
  static constexpr int kInt8 = 0;  // of ncclDataType_t

  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank)(Comm**, int num_ranks, UniqueId, int rank);
  Result (*comm_destroy)(Comm*);
  Result (*comm_abort)(Comm*);
  Result (*comm_get_async_error)(Comm*, Result*);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, size_t count, int type, int peer, Comm*, cudaStream_t);
  Result (*recv)(void*, size_t count, int type, int peer, Comm*, cudaStream_t);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm*);
};

// Loads, once, the library that the environment variable GROUP_EMBEDDING_NCCL names, or
// libnccl.so.2 on the system's search path. Null if it is not found; `error` then says how to get
// it.
const NcclApi* LoadNccl(Status* error);

}  // namespace group_embedding
