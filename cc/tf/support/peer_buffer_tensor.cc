#include "tf/support/peer_buffer_tensor.h"

#if GOOGLE_CUDA

#include <string>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"

namespace group_embedding {
namespace {

class PeerTensorBuffer : public tensorflow::TensorBuffer {
 public:
  PeerTensorBuffer(std::shared_ptr<const PeerMemory> peer_buffer, const char* data, size_t bytes)
      : TensorBuffer(const_cast<char*>(data)),
        peer_buffer_(std::move(peer_buffer)),
        bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name("group_embedding peer buffer");
  }
  // It is not the op's to write its outputs to.
  bool OwnsMemory() const override { return false; }

 private:
  const std::shared_ptr<const PeerMemory> peer_buffer_;
  const size_t bytes_;
};

}  // namespace

tensorflow::Tensor PeerBufferTensor(std::shared_ptr<const PeerMemory> peer_buffer, const char* data,
                                    tensorflow::DataType dtype,
                                    const tensorflow::TensorShape& shape) {
  const size_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  const tensorflow::core::RefCountPtr<PeerTensorBuffer> buffer(
      new PeerTensorBuffer(std::move(peer_buffer), data, bytes));
  return tensorflow::Tensor(dtype, shape, buffer.get());
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
