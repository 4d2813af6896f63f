#include "tf/support/named_tensors.h"

#if GOOGLE_CUDA

#include <algorithm>
#include <stdexcept>

namespace group_embedding {

using ::tensorflow::AllocatorAttributes;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

NamedMemory NamedTensors::memory() {
  const auto give = [this](std::map<std::string, Tensor>* pieces, AllocatorAttributes where) {
    return [=, this](const std::string& name, int64_t bytes) {
      return Get(&(*pieces)[name], bytes, where);
    };
  };
  AllocatorAttributes page_locked;
  page_locked.set_on_host(true);
  page_locked.set_gpu_compatible(true);
  return {give(&on_device_, {}), give(&on_host_, page_locked)};
}

bool NamedTensors::Has(const std::string& piece, const char* data) const {
  const auto at = on_device_.find(piece);
  if (at == on_device_.end()) return false;
  const char* begin = static_cast<const char*>(at->second.data());
  return data >= begin && data < begin + at->second.TotalBytes();
}

absl::Status NamedTensors::View(const std::string& piece, const char* data,
                                tensorflow::DataType dtype, const TensorShape& shape,
                                Tensor* view) const {
  const Tensor& whole = on_device_.at(piece);
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  const int64_t at = bytes == 0 ? 0 : data - static_cast<const char*>(whole.data());
  return view->BitcastFrom(whole.Slice(at, at + bytes), dtype, shape);
}

void NamedTensors::GiveAwayAllBut(const std::string& kept) {
  for (auto at = on_device_.begin(); at != on_device_.end();) {
    at = at->first == kept ? std::next(at) : on_device_.erase(at);
  }
}

void* NamedTensors::Get(Tensor* piece, int64_t bytes, AllocatorAttributes where) {
  if (piece->NumElements() < bytes || !piece->IsInitialized()) {
    const absl::Status status = context_->allocate_temp(
        tensorflow::DT_INT8, TensorShape({std::max<int64_t>(bytes, 1)}), piece, where);
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }
  return piece->data();
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
