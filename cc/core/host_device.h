// Marks small functions that the host and the device share.
#pragma once

#ifdef __CUDACC__
#define GROUP_EMBEDDING_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GROUP_EMBEDDING_HOST_DEVICE inline
#endif
