// The tables of a group, read in place: variables stay locked for reading while a Tables is alive,
// as in TensorFlow's own ResourceGather, so that an optimizer neither writes under a reader nor has
// to copy a table that somebody holds.
#pragma once

#include <string>
#include <vector>

#include "core/group.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace group_embedding {

class Tables {
 public:
  Tables() = default;
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
  ~Tables();

  // Inputs [first, first + names.size()) of the op: handles or tensors.
  absl::Status Read(tensorflow::OpKernelContext* context, int first,
                    const std::vector<std::string>& names, const std::vector<int32_t>& dims,
                    const std::vector<float>& max_norms, tensorflow::DataType dtype);

  const std::vector<Table>& get() const { return tables_; }

 private:
  void LockAll();

  std::vector<Table> tables_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::mutex*> locked_;
};

}  // namespace group_embedding
