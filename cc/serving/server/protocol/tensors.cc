#include "serving/server/protocol/tensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tensorflow/core/framework/types.pb.h"

namespace group_embedding::server {
namespace {

using tensorflow::TensorProto;

constexpr int kMostDims = 254;  // as many as a TensorShape of TensorFlow has

// How the elements of a dtype are in memory, and in the message.
//   T: in memory. kPerElement: of T, 2 for complex numbers.
//   values: the field of the message.
template <typename T_, int kPerElement_, typename Field, const Field& (TensorProto::*kGet)() const,
          Field* (TensorProto::*kMutable)()>
struct Layout {
  using T = T_;
  static constexpr int kPerElement = kPerElement_;
  static const Field& values(const TensorProto& proto) { return (proto.*kGet)(); }
  static Field* values(TensorProto* proto) { return (proto->*kMutable)(); }
};

template <typename T>
using Repeated = google::protobuf::RepeatedField<T>;

// Calls f(Layout) for the dtype; false if the dtype has no numbers that a message carries.
template <typename F>
bool ForDtype(int32_t dtype, F f) {
  using P = TensorProto;
#define GE_LAYOUT(T, per_element, field_type, field) \
  f(Layout<T, per_element, Repeated<field_type>, &P::field, &P::mutable_##field>())
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return GE_LAYOUT(float, 1, float, float_val), true;
    case tensorflow::DT_DOUBLE:
      return GE_LAYOUT(double, 1, double, double_val), true;
    case tensorflow::DT_INT64:
      return GE_LAYOUT(int64_t, 1, int64_t, int64_val), true;
    case tensorflow::DT_INT32:
      return GE_LAYOUT(int32_t, 1, int32_t, int_val), true;
    case tensorflow::DT_INT16:
      return GE_LAYOUT(int16_t, 1, int32_t, int_val), true;
    case tensorflow::DT_INT8:
      return GE_LAYOUT(int8_t, 1, int32_t, int_val), true;
    case tensorflow::DT_UINT16:
      return GE_LAYOUT(uint16_t, 1, int32_t, int_val), true;
    case tensorflow::DT_UINT8:
      return GE_LAYOUT(uint8_t, 1, int32_t, int_val), true;
    case tensorflow::DT_UINT32:
      return GE_LAYOUT(uint32_t, 1, uint32_t, uint32_val), true;
    case tensorflow::DT_UINT64:
      return GE_LAYOUT(uint64_t, 1, uint64_t, uint64_val), true;
    case tensorflow::DT_BOOL:
      return GE_LAYOUT(bool, 1, bool, bool_val), true;
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return GE_LAYOUT(uint16_t, 1, int32_t, half_val), true;
    case tensorflow::DT_COMPLEX64:
      return GE_LAYOUT(float, 2, float, scomplex_val), true;
    case tensorflow::DT_COMPLEX128:
      return GE_LAYOUT(double, 2, double, dcomplex_val), true;
    default:
      return false;
  }
#undef GE_LAYOUT
}

Status Bad(const std::string& name, const std::string& what) {
  return Status(StatusCode::INVALID_ARGUMENT, "input '" + name + "': " + what);
}

std::string Count(int64_t count, const char* noun) { return std::to_string(count) + " " + noun; }

// Reads the shape. elements: the product of the dims, which fits.
Status ReadShape(const std::string& name, const TensorProto& proto, std::vector<int64_t>* dims,
                 int64_t* elements) {
  const auto& shape = proto.tensor_shape();
  if (shape.unknown_rank()) return Bad(name, "expected a shape, got an unknown rank");
  if (shape.dim_size() > kMostDims) {
    return Bad(name, "expected at most 254 dims, got " + std::to_string(shape.dim_size()));
  }
  *elements = 1;
  for (int i = 0; i < shape.dim_size(); ++i) {
    const int64_t dim = shape.dim(i).size();
    if (dim < 0) {
      return Bad(name,
                 "expected dim " + std::to_string(i) + " of 0 or more, got " + std::to_string(dim));
    }
    dims->push_back(dim);
    if (__builtin_mul_overflow(*elements, dim, elements)) {
      return Bad(name, "its shape has more elements than 64 bits count");
    }
  }
  return Status::OK;
}

// Reads the strings of tensor_content: all lengths as varints, then all bytes.
bool ReadStringContent(const std::string& content, int64_t elements,
                       std::vector<GeString>* strings) {
  size_t at = 0;
  for (int64_t i = 0; i < elements; ++i) {
    uint64_t size = 0;
    int shift = 0;
    bool more = true;
    while (more) {
      if (at == content.size() || shift > 63) return false;
      const uint8_t byte = content[at++];
      size |= static_cast<uint64_t>(byte & 0x7f) << shift;
      shift += 7;
      more = byte & 0x80;
    }
    strings->push_back({nullptr, size});
  }
  for (GeString& string : *strings) {
    if (string.size > content.size() - at) return false;
    string.data = content.data() + at;
    at += string.size;
  }
  return at == content.size();
}

template <typename T, typename V>
bool Fits(V value) {
  if constexpr (sizeof(T) < sizeof(V)) {
    return value >= std::numeric_limits<T>::lowest() && value <= std::numeric_limits<T>::max();
  }
  return true;
}

// A bool of C++ with any other byte may be both true and false.
Status CheckBools(const std::string& name, const std::string& bytes) {
  const auto* end = reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size();
  const auto* wrong = std::find_if(end - bytes.size(), end, [](uint8_t byte) { return byte > 1; });
  return wrong == end ? Status::OK : Bad(name, "value " + std::to_string(*wrong) + " is no bool");
}

}  // namespace

int64_t NumElements(const GeTensor& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor.rank; ++i) elements *= tensor.dims[i];
  return elements;
}

std::string DtypeName(int32_t dtype) {
  if (!tensorflow::DataType_IsValid(dtype)) return "dtype " + std::to_string(dtype);
  std::string name = tensorflow::DataType_Name(static_cast<tensorflow::DataType>(dtype)).substr(3);
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  return name;
}

Status InputTensors::Add(const std::string& name, const TensorProto& proto) {
  GeTensor tensor = {};
  tensor.name = name.c_str();
  tensor.dtype = proto.dtype();
  std::vector<int64_t>& dims = dims_.emplace_back();
  int64_t elements = 0;
  if (Status status = ReadShape(name, proto, &dims, &elements); !status.ok()) return status;
  tensor.rank = static_cast<int32_t>(dims.size());
  tensor.dims = dims.data();
  Status status = tensor.dtype == GE_STRING ? AddStrings(proto, elements, &tensor)
                                            : AddNumbers(proto, elements, &tensor);
  if (status.ok()) tensors_.push_back(tensor);
  return status;
}

Status InputTensors::Take(const GeTensor& tensor, int64_t elements, int64_t bytes_each,
                          const char* noun) {
  if (elements > left_bytes_ / bytes_each) {
    return Bad(tensor.name, "its shape has " + Count(elements, noun) +
                                ", more than the inputs of a message may have together: " +
                                Count(most_bytes_, "bytes"));
  }
  left_bytes_ -= elements * bytes_each;
  return Status::OK;
}

Status InputTensors::AddStrings(const TensorProto& proto, int64_t elements, GeTensor* tensor) {
  if (Status status = Take(*tensor, elements, sizeof(GeString), "strings"); !status.ok()) {
    return status;
  }
  std::vector<GeString>& strings = strings_.emplace_back();
  strings.reserve(elements);
  if (!proto.tensor_content().empty()) {
    if (static_cast<int64_t>(proto.tensor_content().size()) < elements ||
        !ReadStringContent(proto.tensor_content(), elements, &strings)) {
      return Bad(tensor->name, "tensor_content does not hold " + Count(elements, "strings"));
    }
  } else {
    const int given = proto.string_val_size();
    if (given > elements) {
      return Bad(tensor->name, "expected " + Count(elements, "strings, as in its shape, got ") +
                                   Count(given, ""));
    }
    for (const std::string& value : proto.string_val()) {
      strings.push_back({value.data(), value.size()});
    }
    // TensorFlow's rule: the last value stands for those that are left out, "" if there is none.
    const GeString last = given == 0 ? GeString{"", 0} : strings.back();
    strings.resize(elements, last);
  }
  tensor->data = strings.data();
  tensor->bytes = strings.size() * sizeof(GeString);
  return Status::OK;
}

Status InputTensors::AddNumbers(const TensorProto& proto, int64_t elements, GeTensor* tensor) {
  Status status;
  const bool known = ForDtype(tensor->dtype, [&](auto layout) {
    using L = decltype(layout);
    using T = typename L::T;
    const auto& values = L::values(proto);
    using V = typename std::decay_t<decltype(values)>::value_type;
    const int64_t bytes_each = sizeof(T) * L::kPerElement;
    status = Take(*tensor, elements, bytes_each, "elements");
    if (!status.ok()) return;
    tensor->bytes = static_cast<size_t>(elements * bytes_each);
    const std::string& content = proto.tensor_content();
    if (!content.empty()) {
      if (content.size() != tensor->bytes) {
        status =
            Bad(tensor->name, "expected " + Count(tensor->bytes, "bytes of tensor_content, got ") +
                                  std::to_string(content.size()));
      } else if (std::is_same_v<T, bool>) {
        status = CheckBools(tensor->name, content);
      }
      tensor->data = content.data();
      return;
    }
    const int64_t given = values.size(), wanted = elements * L::kPerElement;
    if (given > wanted || given % L::kPerElement != 0) {
      status = Bad(tensor->name, "expected " + Count(wanted, "values, as in its shape, got ") +
                                     std::to_string(given));
      return;
    }
    if (std::is_same_v<T, V> && given == wanted) {
      tensor->data = values.data();
      return;
    }
    // TensorFlow's rule: the last value stands for those that are left out, 0 if there is none.
    std::string& converted = converted_.emplace_back(tensor->bytes, '\0');
    T* out = reinterpret_cast<T*>(converted.data());
    for (int64_t i = 0; i < given; ++i) {
      if (!Fits<T>(values[i])) {
        status = Bad(tensor->name,
                     "value " + std::to_string(values[i]) + " is no " + DtypeName(tensor->dtype));
        return;
      }
      out[i] = static_cast<T>(values[i]);
    }
    for (int64_t i = given; given > 0 && i < wanted; ++i) out[i] = out[i - L::kPerElement];
    tensor->data = converted.data();
  });
  if (known) return status;
  return Bad(tensor->name, "the server takes no tensor of " + DtypeName(tensor->dtype));
}

Status ToProto(const GeTensor& tensor, TensorProto* proto) {
  proto->set_dtype(static_cast<tensorflow::DataType>(tensor.dtype));
  for (int i = 0; i < tensor.rank; ++i)
    proto->mutable_tensor_shape()->add_dim()->set_size(tensor.dims[i]);
  const int64_t elements = NumElements(tensor);
  if (tensor.dtype == GE_STRING) {
    const auto* strings = static_cast<const GeString*>(tensor.data);
    proto->mutable_string_val()->Reserve(static_cast<int>(elements));
    for (int64_t i = 0; i < elements; ++i) proto->add_string_val(strings[i].data, strings[i].size);
    return Status::OK;
  }
  const bool known = ForDtype(tensor.dtype, [&](auto layout) {
    using L = decltype(layout);
    using T = typename L::T;
    auto* values = L::values(proto);
    using V = typename std::decay_t<decltype(*values)>::value_type;
    const T* from = static_cast<const T*>(tensor.data);
    const int count = static_cast<int>(elements * L::kPerElement);
    values->Resize(count, V());
    if constexpr (std::is_same_v<T, V>) {
      if (count > 0) std::memcpy(values->mutable_data(), from, count * sizeof(T));
    } else {
      for (int i = 0; i < count; ++i) values->Set(i, from[i]);
    }
  });
  if (known) return Status::OK;
  return Status(StatusCode::UNIMPLEMENTED, std::string("output '") + tensor.name +
                                               "': the server answers no tensor of " +
                                               DtypeName(tensor.dtype));
}

void WriteRaw(const TensorProto& proto, std::string* raw) {
  ForDtype(proto.dtype(), [&](auto layout) {
    using T = typename decltype(layout)::T;
    for (const auto value : decltype(layout)::values(proto)) {
      const T element = static_cast<T>(value);
      raw->append(reinterpret_cast<const char*>(&element), sizeof(element));
    }
  });
}

}  // namespace group_embedding::server
