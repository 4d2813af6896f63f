#include "serving/c_api/processor_messages.h"

#include "serving/c_api/wire_format.h"

namespace ge_serving {
namespace {

// Numbers of the fields of ArrayProto.
enum Field { kDtype = 1, kShape, kFloats, kDoubles, kInts, kStrings, kInt64s, kBools };

constexpr int kUint8 = 4, kInt16 = 5, kInt8 = 6;  // of DataType

// The field that has elements of a dtype, and their size; {0, 0}: none has.
struct Layout {
  int field;
  size_t bytes;
};

Layout LayoutOf(int32_t dtype) {
  switch (dtype) {
    case GE_FLOAT:
      return {kFloats, 4};
    case GE_DOUBLE:
      return {kDoubles, 8};
    case GE_INT32:
      return {kInts, 4};
    case kInt16:
      return {kInts, 2};
    case kInt8:
    case kUint8:
      return {kInts, 1};
    case GE_STRING:
      return {kStrings, sizeof(GeString)};
    case GE_INT64:
      return {kInt64s, 8};
    case GE_BOOL:
      return {kBools, 1};
    default:
      return {0, 0};
  }
}

// Little-endian, as the machines that TensorFlow has wheels for.
void AppendElement(uint64_t value, size_t bytes, std::vector<char>* to) {
  const char* from = reinterpret_cast<const char*>(&value);
  to->insert(to->end(), from, from + bytes);
}

// Appends the varints of a field, packed or one by one.
template <typename Append>
bool ReadVarints(const WireReader& field, const Append& append) {
  if (field.type() == WireType::kVarint) {
    append(field.varint());
    return true;
  }
  std::string_view packed = field.bytes();
  uint64_t value;
  while (!packed.empty()) {
    if (!WireReader::TakeVarint(&packed, &value)) return false;
    append(value);
  }
  return field.type() == WireType::kBytes;
}

bool ReadShape(std::string_view message, std::vector<int64_t>* dims) {
  WireReader fields(message);
  while (fields.Next()) {
    const auto append = [dims](uint64_t dim) { dims->push_back(static_cast<int64_t>(dim)); };
    if (fields.number() == 1 && !ReadVarints(fields, append)) return false;
  }
  return fields.ok();
}

// The dtype may stand behind the elements.
int32_t DtypeOf(std::string_view message) {
  int32_t dtype = 0;
  for (WireReader fields(message); fields.Next();) {
    if (fields.number() == kDtype) dtype = static_cast<int32_t>(fields.varint());
  }
  return dtype;
}

std::string ReadArray(std::string_view message, Array* array) {
  array->dtype = DtypeOf(message);
  const Layout layout = LayoutOf(array->dtype);
  if (layout.field == 0)
    return "expected numbers or strings, got dtype " + std::to_string(array->dtype);
  WireReader fields(message);
  bool right = true;
  while (right && fields.Next()) {
    if (fields.number() == kShape) {
      right = fields.type() == WireType::kBytes && ReadShape(fields.bytes(), &array->dims);
    } else if (fields.number() != layout.field) {
      continue;
    } else if (layout.field == kStrings) {
      right = fields.type() == WireType::kBytes;
      array->strings.push_back({fields.bytes().data(), fields.bytes().size()});
    } else if (layout.field == kFloats || layout.field == kDoubles) {
      const std::string_view bytes = fields.bytes();
      right = fields.type() != WireType::kVarint && bytes.size() % layout.bytes == 0;
      array->numbers.insert(array->numbers.end(), bytes.begin(), bytes.end());
    } else {
      right = ReadVarints(fields, [&](uint64_t value) {
        AppendElement(layout.field == kBools ? value != 0 : value, layout.bytes, &array->numbers);
      });
    }
  }
  return right && fields.ok() ? "" : "its bytes are no ArrayProto";
}

std::string ReadInput(std::string_view message, std::map<std::string, Array>* inputs) {
  std::string name;
  std::string_view array;
  WireReader fields(message);
  while (fields.Next()) {
    if (fields.type() != WireType::kBytes) continue;
    if (fields.number() == 1) name = fields.bytes();
    if (fields.number() == 2) array = fields.bytes();
  }
  if (!fields.ok()) return "an input: its bytes are no message";
  Array& input = (*inputs)[name] = {};  // the last one of a name counts, as in every map
  const std::string error = ReadArray(array, &input);
  return error.empty() ? "" : "input '" + name + "': " + error;
}

template <typename T>
void AppendVarints(const GeTensor& tensor, std::string* packed) {
  const T* values = static_cast<const T*>(tensor.data);
  for (size_t i = 0; i < tensor.bytes / sizeof(T); ++i) {
    AppendVarint(static_cast<uint64_t>(static_cast<int64_t>(values[i])), packed);
  }
}

}  // namespace

GeTensor Array::AsTensor(const char* name) const {
  const bool is_string = dtype == GE_STRING;
  return {name,
          dtype,
          static_cast<int32_t>(dims.size()),
          dims.data(),
          is_string ? static_cast<const void*>(strings.data()) : numbers.data(),
          is_string ? strings.size() * sizeof(GeString) : numbers.size()};
}

std::string Read(std::string_view message, PredictRequest* request) {
  WireReader fields(message);
  while (fields.Next()) {
    if (fields.type() != WireType::kBytes) continue;
    if (fields.number() == 1) request->signature = fields.bytes();
    if (fields.number() == 3) request->outputs.emplace_back(fields.bytes());
    if (fields.number() != 2) continue;
    std::string error = ReadInput(fields.bytes(), &request->inputs);
    if (!error.empty()) return error;
  }
  return fields.ok() ? "" : "expected a PredictRequest of DeepRec, got bytes that are no message";
}

std::string AppendOutput(const GeTensor& output, std::string* response) {
  const Layout layout = LayoutOf(output.dtype);
  if (layout.field == 0) {
    return "output '" + std::string(output.name) + "': ArrayProto has no field for dtype " +
           std::to_string(output.dtype);
  }
  std::string shape, array, elements;
  for (int32_t d = 0; d < output.rank; ++d) {
    AppendVarint(static_cast<uint64_t>(output.dims[d]), &shape);
  }
  std::string dims;
  AppendBytes(1, shape, &dims);
  AppendNumber(kDtype, static_cast<uint64_t>(output.dtype), &array);
  AppendBytes(kShape, dims, &array);
  if (layout.field == kStrings) {
    const auto* strings = static_cast<const GeString*>(output.data);
    for (size_t i = 0; i < output.bytes / sizeof(GeString); ++i) {
      AppendBytes(kStrings, {strings[i].data, strings[i].size}, &array);
    }
  } else {
    if (layout.field == kFloats || layout.field == kDoubles) {
      elements.assign(static_cast<const char*>(output.data), output.bytes);
    } else if (output.dtype == GE_INT64) {
      AppendVarints<int64_t>(output, &elements);
    } else if (output.dtype == GE_INT32) {
      AppendVarints<int32_t>(output, &elements);
    } else if (output.dtype == kInt16) {
      AppendVarints<int16_t>(output, &elements);
    } else if (output.dtype == kInt8) {
      AppendVarints<int8_t>(output, &elements);
    } else {
      AppendVarints<uint8_t>(output, &elements);
    }
    AppendBytes(layout.field, elements, &array);
  }
  std::string entry;
  AppendBytes(1, output.name, &entry);
  AppendBytes(2, array, &entry);
  AppendBytes(1, entry, response);
  return "";
}

}  // namespace ge_serving
