#include "serving/server/models/join_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

// As many requests of it as may wait do not exceed 32 bits.
constexpr int64_t kMostInt32Rows = std::numeric_limits<int32_t>::max() / 4096;

Role RoleOf(const std::string& part) {
  static const std::map<std::string, Role> kRoles = {{"", Role::kDense},
                                                     {"flat_values", Role::kFlatValues},
                                                     {"row_splits", Role::kRowSplits},
                                                     {"indices", Role::kIndices},
                                                     {"values", Role::kValues},
                                                     {"dense_shape", Role::kDenseShape}};
  const auto found = kRoles.find(part);
  return found == kRoles.end() ? Role::kUnknown : found->second;
}

// Bytes of a row: the elements of all dims but the first.
int64_t RowBytes(const GeTensor& tensor) {
  return tensor.dims[0] == 0 ? 0 : static_cast<int64_t>(tensor.bytes) / tensor.dims[0];
}

const int64_t* Numbers(const GeTensor& tensor) { return static_cast<const int64_t*>(tensor.data); }

// Whether these are splits of `rows`, of which none begins before the one in front.
template <typename T>
bool AreSplits(const GeTensor& splits, int64_t rows) {
  const T* values = static_cast<const T*>(splits.data);
  const int64_t count = splits.dims[0];
  return values[0] == 0 && values[count - 1] == rows && std::is_sorted(values, values + count);
}

// Whether each index is of a row below `samples`, and none of a row before the one in front.
bool AreRowsSorted(const GeTensor& indices, int64_t samples) {
  int64_t last = 0;
  for (int64_t i = 0; i < indices.dims[0]; ++i) {
    const int64_t row = Numbers(indices)[i * indices.dims[1]];
    if (row < last || row >= samples) return false;
    last = row;
  }
  return true;
}

// Reads the samples of one request.
class Reader {
 public:
  Reader(const std::vector<InputRole>& roles, JoinableInputs* inputs)
      : roles_(roles), inputs_(*inputs) {}

  bool Read() {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const GeTensor& tensor = *inputs_.tensors[i];
      if (tensor.rank < 1 || !ReadOne(roles_[i], tensor)) return false;
      AddToLayout(tensor.dtype);
      const bool is_shape = roles_[i].role == Role::kDenseShape;
      const int64_t* dims = is_shape ? Numbers(tensor) : tensor.dims;
      const int64_t rank = is_shape ? tensor.dims[0] : tensor.rank;
      for (int64_t d = 1; d < rank; ++d) AddToLayout(dims[d]);
    }
    return inputs_.samples > 0;
  }

 private:
  bool ReadOne(const InputRole& role, const GeTensor& tensor) {
    switch (role.role) {
      case Role::kDense:
        return Takes(tensor.dims[0]);
      case Role::kRowSplits:
        return ReadSplits(role, tensor);
      case Role::kDenseShape:
        return tensor.dtype == GE_INT64 && tensor.rank == 1 && tensor.dims[0] > 0 &&
               Takes(Numbers(tensor)[0]) && ReadSparse(role);
      case Role::kFlatValues:
      case Role::kIndices:
      case Role::kValues:
        return true;  // with their splits, or their shape
      case Role::kUnknown:
        return false;
    }
    return false;
  }

  bool Takes(int64_t samples) {
    if (inputs_.samples == 0) inputs_.samples = samples;
    return samples == inputs_.samples;
  }

  bool ReadSplits(const InputRole& role, const GeTensor& splits) {
    const bool is_int32 = splits.dtype == GE_INT32;
    if ((!is_int32 && splits.dtype != GE_INT64) || splits.rank != 1 || splits.dims[0] < 1) {
      return false;
    }
    const GeTensor& split = *inputs_.tensors[role.rows_of];
    if (split.rank < 1) return false;
    const bool is_nested = roles_[role.rows_of].role == Role::kRowSplits;
    const int64_t rows = split.dims[0] - (is_nested ? 1 : 0);
    if (is_int32 && rows > kMostInt32Rows) return false;
    if (!(is_int32 ? AreSplits<int32_t>(splits, rows) : AreSplits<int64_t>(splits, rows))) {
      return false;
    }
    return role.level > 0 || Takes(splits.dims[0] - 1);
  }

  bool ReadSparse(const InputRole& role) {
    const GeTensor& indices = *inputs_.tensors[role.indices];
    const GeTensor& values = *inputs_.tensors[role.values];
    const GeTensor& shape = *inputs_.tensors[role.dense_shape];
    return indices.dtype == GE_INT64 && indices.rank == 2 && indices.dims[1] == shape.dims[0] &&
           values.rank == 1 && values.dims[0] == indices.dims[0] &&
           AreRowsSorted(indices, inputs_.samples);
  }

  void AddToLayout(int64_t number) {
    inputs_.layout.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  const std::vector<InputRole>& roles_;
  JoinableInputs& inputs_;
};

}  // namespace

std::vector<InputRole> RolesOf(const Signature& signature) {
  std::vector<InputRole> roles;
  for (const auto& [name, input] : signature.inputs) {
    InputRole& role = roles.emplace_back();
    role.role = RoleOf(input.part);
    role.level = input.level;
    size_t position = 0;
    int flat_values = 0, next = 0, sparse = 0;
    for (const auto& [other_name, other] : signature.inputs) {
      const Role of = input.of.empty() || other.of != input.of ? Role::kDense : RoleOf(other.part);
      const bool is_next = of == Role::kRowSplits && other.level == role.level + 1;
      // The innermost splits are of the values.
      if (is_next || (of == Role::kFlatValues && next == 0)) role.rows_of = position;
      if (of == Role::kIndices) role.indices = position;
      if (of == Role::kValues) role.values = position;
      if (of == Role::kDenseShape) role.dense_shape = position;
      next += is_next;
      flat_values += of == Role::kFlatValues;
      sparse += of == Role::kIndices || of == Role::kValues || of == Role::kDenseShape;
      ++position;
    }
    const bool is_ragged = role.role == Role::kFlatValues || role.role == Role::kRowSplits;
    const bool is_whole = is_ragged ? flat_values == 1 : sparse == 3;
    if (role.role != Role::kDense && !is_whole) role.role = Role::kUnknown;
  }
  return roles;
}

std::optional<JoinableInputs> AsJoinable(const Signature& signature,
                                         const std::vector<InputRole>& roles,
                                         const std::vector<GeTensor>& inputs) {
  if (inputs.size() != roles.size() || inputs.empty()) return std::nullopt;
  JoinableInputs found;
  for (const GeTensor& input : inputs) found.tensors.push_back(&input);
  std::sort(found.tensors.begin(), found.tensors.end(),
            [](const GeTensor* a, const GeTensor* b) { return std::strcmp(a->name, b->name) < 0; });
  size_t i = 0;
  for (const auto& [name, input] : signature.inputs) {
    const GeTensor& tensor = *found.tensors[i++];
    if (name != tensor.name || input.dtype != tensor.dtype) return std::nullopt;
  }
  if (!Reader(roles, &found).Read()) return std::nullopt;
  return found;
}

JoinedInputs::JoinedInputs(const std::vector<InputRole>& roles, const Requests& requests,
                           int64_t samples) {
  int64_t repeats = samples;
  for (const JoinableInputs* request : requests) repeats -= request->samples;
  for (size_t i = 0; i < roles.size(); ++i) {
    const GeTensor& first = *requests[0]->tensors[i];
    switch (roles[i].role) {
      case Role::kRowSplits: {
        const int64_t empty = roles[i].level == 0 ? repeats : 0;
        first.dtype == GE_INT32 ? AddSplits<int32_t>(requests, i, empty)
                                : AddSplits<int64_t>(requests, i, empty);
        break;
      }
      case Role::kIndices:
        AddIndices(requests, i);
        break;
      case Role::kDenseShape: {
        std::string shape(static_cast<const char*>(first.data), first.bytes);
        std::memcpy(shape.data(), &samples, sizeof(samples));
        Add(first, first.dims[0], shape);
        break;
      }
      default:
        AddRows(requests, i, roles[i].role == Role::kDense ? repeats : 0);
    }
  }
}

void JoinedInputs::Add(const GeTensor& like, int64_t rows, const std::string& memory) {
  std::vector<int64_t>& dims = dims_.emplace_back(like.dims, like.dims + like.rank);
  dims[0] = rows;
  const std::string& kept = memory_.emplace_back(memory);
  tensors_.push_back({like.name, like.dtype, like.rank, dims.data(), kept.data(), kept.size()});
}

void JoinedInputs::AddRows(const Requests& requests, size_t position, int64_t repeats) {
  std::string memory;
  int64_t rows = repeats;
  for (const JoinableInputs* request : requests) {
    const GeTensor& tensor = *request->tensors[position];
    if (tensor.bytes > 0) memory.append(static_cast<const char*>(tensor.data), tensor.bytes);
    rows += tensor.dims[0];
  }
  const GeTensor& last = *requests.back()->tensors[position];
  const int64_t row_bytes = RowBytes(last);
  for (int64_t i = 0; i < repeats && row_bytes > 0; ++i) {
    memory.append(static_cast<const char*>(last.data) + last.bytes - row_bytes, row_bytes);
  }
  if (last.dtype == GE_STRING) {  // the strings' bytes, too: their request may end before the run
    std::vector<GeString> strings(memory.size() / sizeof(GeString));
    if (!strings.empty()) std::memcpy(strings.data(), memory.data(), memory.size());
    size_t bytes = 0;
    for (const GeString& string : strings) bytes += string.size;
    std::string& kept = memory_.emplace_back();
    kept.reserve(bytes);
    for (GeString& string : strings) {
      const char* at = kept.data() + kept.size();
      if (string.size > 0) kept.append(string.data, string.size);
      string.data = at;
    }
    memory.assign(reinterpret_cast<const char*>(strings.data()), memory.size());
  }
  Add(*requests[0]->tensors[position], rows, memory);
}

template <typename T>
void JoinedInputs::AddSplits(const Requests& requests, size_t position, int64_t repeats) {
  std::vector<T> splits = {0};
  for (const JoinableInputs* request : requests) {
    const GeTensor& tensor = *request->tensors[position];
    const T* values = static_cast<const T*>(tensor.data);
    const T before = splits.back();
    for (int64_t i = 1; i < tensor.dims[0]; ++i) splits.push_back(before + values[i]);
  }
  splits.resize(splits.size() + repeats, splits.back());
  Add(*requests[0]->tensors[position], static_cast<int64_t>(splits.size()),
      std::string(reinterpret_cast<const char*>(splits.data()), splits.size() * sizeof(T)));
}

void JoinedInputs::AddIndices(const Requests& requests, size_t position) {
  std::vector<int64_t> indices;
  int64_t before = 0, rows = 0;
  const int64_t rank = requests[0]->tensors[position]->dims[1];
  for (const JoinableInputs* request : requests) {
    const GeTensor& tensor = *request->tensors[position];
    const size_t begin = indices.size();
    indices.insert(indices.end(), Numbers(tensor), Numbers(tensor) + tensor.dims[0] * rank);
    for (size_t i = begin; i < indices.size(); i += rank) indices[i] += before;
    before += request->samples;
    rows += tensor.dims[0];
  }
  Add(*requests[0]->tensors[position], rows,
      std::string(reinterpret_cast<const char*>(indices.data()), indices.size() * 8));
}

}  // namespace group_embedding::server
