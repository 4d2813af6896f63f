// Tensors in a peer buffer, with the gradients that other ranks wrote into it.
#pragma once

#if GOOGLE_CUDA

#include <memory>

#include "exchange/transport/peer_memory.h"
#include "tensorflow/core/framework/tensor.h"

namespace group_embedding {

// A tensor of the memory at `data` in `peer_buffer`, which stays in use as long as the tensor
// exists.
tensorflow::Tensor PeerBufferTensor(std::shared_ptr<const PeerMemory> peer_buffer, const char* data,
                                    tensorflow::DataType dtype,
                                    const tensorflow::TensorShape& shape);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
