#include "python/device_array.h"

#include <pybind11/stl.h>

#include <stdexcept>

#include "python/run.h"

namespace group_embedding {

namespace py = pybind11;

#if GROUP_EMBEDDING_CUDA

int NumDevices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

DeviceArray::DeviceArray(py::handle array) : host_(ViewArray(array, "array")) {
  if (host_.on_gpu) throw py::value_error("array: expected one in host memory");
  RequireContiguous(host_);
  dtype_ = array.attr("dtype").attr("str").cast<std::string>();
  const size_t bytes = host_.num_items() * host_.item_bytes();
  CheckCuda(cudaMalloc(&data_, bytes), "DeviceArray");
  CheckCuda(cudaMemcpy(data_, host_.data, bytes, cudaMemcpyHostToDevice), "DeviceArray");
}

DeviceArray::~DeviceArray() { cudaFree(data_); }

py::object DeviceArray::ToHost() const {
  py::object array =
      py::module_::import("numpy").attr("empty")(py::tuple(py::cast(host_.shape)), dtype_);
  const ArrayView view = ViewArray(array, "array");
  CheckCuda(cudaDeviceSynchronize(), "DeviceArray");
  CheckCuda(
      cudaMemcpy(view.data, data_, view.num_items() * view.item_bytes(), cudaMemcpyDeviceToHost),
      "DeviceArray");
  return array;
}

#else

int NumDevices() { return 0; }
DeviceArray::DeviceArray(py::handle) { throw std::runtime_error("this build is without CUDA"); }
DeviceArray::~DeviceArray() = default;
py::object DeviceArray::ToHost() const { return py::none(); }

#endif

py::dict DeviceArray::interface() const {
  py::dict interface;
  interface["shape"] = py::tuple(py::cast(host_.shape));
  interface["typestr"] = dtype_;
  interface["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(data_), false);
  interface["version"] = 3;
  return interface;
}

}  // namespace group_embedding
