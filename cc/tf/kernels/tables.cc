#include "tf/kernels/tables.h"

#include <algorithm>

#include "tensorflow/core/framework/resource_mgr.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataTypeString;
using ::tensorflow::Tensor;

absl::Status Uninitialized(const std::string& name) {
  return absl::FailedPreconditionError("table '" + name +
                                       "': expected an initialized variable; run its initializer");
}

absl::Status MakeTable(const Tensor& tensor, const std::string& name, int32_t dim, float max_norm,
                       tensorflow::DataType dtype, Table* table) {
  const std::string where = "table '" + name + "': expected ";
  if (!tensor.IsInitialized()) return Uninitialized(name);
  if (tensor.dtype() != dtype) {
    return absl::InvalidArgumentError(where + DataTypeString(dtype) + ", got " +
                                      DataTypeString(tensor.dtype()));
  }
  if (tensor.dims() != 2) {
    return absl::InvalidArgumentError(where + "shape [rows, dim], got " +
                                      tensor.shape().DebugString());
  }
  if (tensor.dim_size(1) != dim) {
    return absl::InvalidArgumentError(where + "dim " + std::to_string(dim) + ", got " +
                                      std::to_string(tensor.dim_size(1)));
  }
  *table = {tensor.data(), tensor.dim_size(0), dim, max_norm};
  return absl::OkStatus();
}

}  // namespace

Tables::~Tables() {
  for (tensorflow::mutex* mutex : locked_) mutex->unlock_shared();
}

void Tables::LockAll() {
  // Each once and in the order of addresses: the order in which TensorFlow's optimizers lock too.
  for (const auto& variable : variables_) locked_.push_back(variable->mu());
  std::sort(locked_.begin(), locked_.end());
  locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
  for (tensorflow::mutex* mutex : locked_) mutex->lock_shared();
}

absl::Status Tables::Read(tensorflow::OpKernelContext* context, int first,
                          const std::vector<std::string>& names, const std::vector<int32_t>& dims,
                          const std::vector<float>& max_norms, tensorflow::DataType dtype) {
  std::vector<tensorflow::Var*> variable_of(names.size(), nullptr);
  for (size_t t = 0; t < names.size(); ++t) {
    if (context->input_dtype(first + t) != tensorflow::DT_RESOURCE) continue;
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    const absl::Status found = tensorflow::LookupResource(
        context, tensorflow::HandleFromInput(context, first + t), &variable);
    if (!found.ok()) return Uninitialized(names[t]);
    variable_of[t] = variable.get();
    variables_.push_back(std::move(variable));
  }
  LockAll();
  tables_.resize(names.size());
  for (size_t t = 0; t < names.size(); ++t) {
    const Tensor& tensor =
        variable_of[t] == nullptr ? context->input(first + t) : *variable_of[t]->tensor();
    TF_RETURN_IF_ERROR(MakeTable(tensor, names[t], dims[t], max_norms[t], dtype, &tables_[t]));
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
