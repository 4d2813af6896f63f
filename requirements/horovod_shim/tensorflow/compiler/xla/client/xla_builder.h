// Horovod 0.28.1 includes XLA's builder under the name it had before TensorFlow 2.16, and uses
// xla::StatusOr, which is absl's own now. This header gives it both.
#ifndef GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_
#define GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace xla {
template <typename T>
using StatusOr = absl::StatusOr<T>;
}  // namespace xla

#endif  // GROUP_EMBEDDING_HOROVOD_SHIM_XLA_BUILDER_H_
