// Tensors of what other ranks put into this one's peer buffer.
#pragma once

#if GOOGLE_CUDA

#include <memory>

#include "exchange/transport/peer_memory.h"
#include "tensorflow/core/framework/tensor.h"

namespace group_embedding {

// Of what is at `data` in `peer buffer`, which stays taken as long as somebody has the tensor.
tensorflow::Tensor PeerBufferTensor(std::shared_ptr<const PeerMemory> peer_buffer, const char* data,
                                    tensorflow::DataType dtype,
                                    const tensorflow::TensorShape& shape);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
