// NCCL's C interface (nccl.h), as far as the exchange needs it, from a libnccl.so.2 that is loaded
// when the first communicator is made: whoever has none builds and runs all the rest.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

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

// The library that the environment variable GROUP_EMBEDDING_NCCL names, or else libnccl.so.2 where
// the system looks for libraries. Loaded once it is found; null where it is not, and `error` says
// in one sentence how to get it.
const NcclApi* LoadNccl(std::string* error);

}  // namespace group_embedding
