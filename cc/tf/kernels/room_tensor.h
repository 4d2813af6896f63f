// Tensors of what other ranks put into this one's room.
#pragma once

#if GOOGLE_CUDA

#include <memory>

#include "exchange/peer_memory.h"
#include "tensorflow/core/framework/tensor.h"

namespace group_embedding {

// Of what is at `data` in `room`, which stays taken as long as somebody has the tensor.
tensorflow::Tensor RoomTensor(std::shared_ptr<const PeerMemory> room, const char* data,
                              tensorflow::DataType dtype, const tensorflow::TensorShape& shape);

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
