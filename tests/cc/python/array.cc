#include "python/array.h"

#include <sstream>

#include "core/words.h"

namespace group_embedding {
namespace {

namespace py = pybind11;

std::string Text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << "]";
  return text.str();
}

std::string Place(bool on_gpu) { return on_gpu ? "GPU" : "host"; }

}  // namespace

int64_t ArrayView::num_items() const {
  int64_t count = 1;
  for (int64_t length : shape) count *= length;
  return count;
}

bool ArrayView::IsContiguousFrom(size_t first_axis) const {
  int64_t expected = item_bytes();
  for (size_t axis = shape.size(); axis-- > first_axis;) {
    if (shape[axis] > 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

ArrayView ViewArray(py::handle object, const std::string& name) {
  ArrayView view;
  view.name = name;
  view.on_gpu = py::hasattr(object, "__cuda_array_interface__");
  if (!view.on_gpu && !py::hasattr(object, "__array_interface__")) {
    throw py::type_error(name + ": expected a NumPy or CUDA array, got " +
                         std::string(py::str(py::type::of(object))));
  }
  const py::dict interface =
      object.attr(view.on_gpu ? "__cuda_array_interface__" : "__array_interface__");
  const py::tuple data = interface["data"];
  view.data = reinterpret_cast<void*>(data[0].cast<uintptr_t>());
  view.read_only = data[1].cast<bool>();
  view.shape = {};
  for (py::handle length : interface["shape"]) view.shape.push_back(length.cast<int64_t>());
  view.type = interface["typestr"].cast<std::string>().substr(1);
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    for (py::handle stride : interface["strides"]) view.strides.push_back(stride.cast<int64_t>());
  } else {
    int64_t stride = view.item_bytes();
    view.strides.resize(view.shape.size());
    for (size_t axis = view.shape.size(); axis-- > 0; stride *= view.shape[axis]) {
      view.strides[axis] = stride;
    }
  }
  return view;
}

ArrayView ViewArray(py::handle object, const std::string& name, const std::string& type,
                    size_t rank, bool on_gpu) {
  ArrayView view = ViewArray(object, name);
  if (!type.empty() && view.type != type) {
    throw py::value_error(name + ": expected elements of type " + type + ", got " + view.type);
  }
  if (view.shape.size() != rank) {
    throw py::value_error(name + ": expected rank " + std::to_string(rank) + ", got shape " +
                          Text(view.shape));
  }
  if (view.on_gpu != on_gpu) {
    throw py::value_error(name + ": expected an array in " + Place(on_gpu) +
                          " memory, got one in " + Place(view.on_gpu) + " memory");
  }
  return view;
}

void RequireWritable(const ArrayView& array) {
  if (array.read_only) throw py::value_error(array.name + ": expected a writable array");
}

void RequireShape(const ArrayView& array, const std::vector<int64_t>& shape) {
  if (array.shape != shape) {
    throw py::value_error(array.name + ": expected shape " + Text(shape) + ", got " +
                          Text(array.shape));
  }
}

void RequireContiguous(const ArrayView& array) {
  if (!array.IsContiguousFrom(0)) {
    throw py::value_error(array.name + ": expected a C-contiguous array");
  }
}

void RequireCount(const std::string& name, size_t expected, size_t got) {
  if (expected != got) {
    throw py::value_error(name + ": expected " + std::to_string(expected) + " entries, got " +
                          std::to_string(got));
  }
}

std::string At(const std::string& name, size_t index) {
  return name + "[" + std::to_string(index) + "]";
}

DataType ParseDataType(const std::string& name, const std::string& word) {
  const std::optional<DataType> type = Parse(DataTypeWords(), word);
  if (!type) throw py::value_error(UnknownWord(name, DataTypeWords(), word));
  return *type;
}

ArrayView ViewRows(py::handle array, const std::string& name, DataType dtype, size_t rank,
                   bool on_gpu) {
  const ArrayView view =
      ViewArray(array, name, dtype == DataType::kFloat32 ? "f4" : "", rank, on_gpu);
  if (view.item_bytes() != SizeOf(dtype)) {
    throw py::value_error(name + ": expected elements of 2 bytes, got type " + view.type);
  }
  return view;
}

}  // namespace group_embedding
