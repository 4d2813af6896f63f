// Horovod 0.28.1 includes XLA's builder under the name it had before TensorFlow 2.16, and uses
// xla::StatusOr, which is absl's own now. With GPUs it also calls a function of a stream that
// TensorFlow no longer exports. This header gives it all three.
#ifndef GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_
#define GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace xla {
template <typename T>
using StatusOr = absl::StatusOr<T>;
}  // namespace xla

#if HAVE_CUDA
#include <cuda_runtime.h>

#include "xla/stream_executor/stream.h"

namespace stream_executor::gpu {
// Not inline: another file of Horovod's only declares it.
__attribute__((weak)) cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace stream_executor::gpu
#endif

#endif  // GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_
