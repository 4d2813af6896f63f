#include "optimizer/dense_update.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/resource_locks.h"
#include "tf/support/written_variables.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataTypeString;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

struct DenseOnCpu {
  static absl::Status Run(OpKernelContext* context, const DenseProgram& program, DataType dtype,
                          const float* numbers, const std::vector<DenseVariable>& variables) {
    DenseUpdateCpu(program, dtype, numbers, variables.data(),
                   static_cast<int64_t>(variables.size()), ThreadsOf(context));
    return absl::OkStatus();
  }
};

#if GOOGLE_CUDA
struct DenseOnGpu {
  static absl::Status Run(OpKernelContext* context, const DenseProgram& program, DataType dtype,
                          const float* numbers, const std::vector<DenseVariable>& variables) {
    return ToStatus(DenseUpdateCuda(program, dtype, numbers, variables.data(),
                                    static_cast<int64_t>(variables.size()), StreamOf(context)),
                    "DenseUpdate");
  }
};
#endif

// The program that the attributes state, but for `num_numbers`, which is that of the op's input.
absl::Status ReadProgram(OpKernelConstruction* context, DenseProgram* program) {
  std::vector<int64_t> steps, results;
  TF_RETURN_IF_ERROR(context->GetAttr("program", &steps));
  TF_RETURN_IF_ERROR(context->GetAttr("results", &results));
  if (results.empty() || results.size() > 1 + kMaxDenseSlots) {
    return absl::InvalidArgumentError("results: expected 1 to " +
                                      std::to_string(1 + kMaxDenseSlots) + " registers, got " +
                                      std::to_string(results.size()));
  }
  if (steps.size() % 3 != 0 || steps.size() > 3 * kMaxDenseSteps) {
    return absl::InvalidArgumentError("program: expected up to " + std::to_string(kMaxDenseSteps) +
                                      " steps of 3 numbers, got " + std::to_string(steps.size()) +
                                      " numbers");
  }
  const auto is_register = [](int64_t value) { return value >= 0 && value < kMaxDenseRegisters; };
  program->num_slots = static_cast<int32_t>(results.size()) - 1;
  program->num_steps = static_cast<int32_t>(steps.size() / 3);
  for (int s = 0; s < program->num_steps; ++s) {
    const int64_t op = steps[3 * s], a = steps[3 * s + 1], b = steps[3 * s + 2];
    if (op < 0 || op >= kNumDenseOps || !is_register(a) || !is_register(b)) {
      return absl::InvalidArgumentError("program: step " + std::to_string(s) +
                                        " has no such operation or register");
    }
    program->steps[s] = {static_cast<DenseOp>(op), static_cast<uint8_t>(a),
                         static_cast<uint8_t>(b)};
  }
  for (size_t v = 0; v < results.size(); ++v) {
    if (!is_register(results[v])) {
      return absl::InvalidArgumentError("results: no such register: " + std::to_string(results[v]));
    }
    program->results[v] = static_cast<uint8_t>(results[v]);
  }
  return absl::OkStatus();
}

// Refuses a program that reads a register before it is written, or after its memory is.
absl::Status CheckRegisters(const DenseProgram& program) {
  int num_written = program.first_step();
  for (int s = 0; s < program.num_steps; ++s, ++num_written) {
    const DenseStep& step = program.steps[s];
    if (std::max(step.a, step.b) >= num_written) {
      return absl::InvalidArgumentError("program: step " + std::to_string(s) +
                                        " reads a register that is written later, or never");
    }
  }
  for (int v = 0; v <= program.num_slots; ++v) {
    const int result = program.results[v], own = v == 0 ? 0 : 1 + v;
    if (result >= num_written) {
      return absl::InvalidArgumentError("results: register " + std::to_string(result) +
                                        " is never written");
    }
    const bool is_value = result != 1 && result < program.first_number();
    if (is_value && result != own) {  // which may be written first
      return absl::InvalidArgumentError("results: register " + std::to_string(result) +
                                        " is the old value of another; multiply it by a number");
    }
  }
  return absl::OkStatus();
}

template <typename Device>
class DenseUpdateOp : public OpKernel {
 public:
  explicit DenseUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadProgram(context, &program_));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("update");
    DenseProgram program = program_;
    const Tensor* numbers;
    OP_REQUIRES_OK(context, context->input("numbers", &numbers));
    OP_REQUIRES(context, numbers->dims() == 1 && numbers->NumElements() <= kMaxDenseNumbers,
                absl::InvalidArgumentError(
                    "numbers: expected shape [n], n <= " + std::to_string(kMaxDenseNumbers) +
                    ", got " + numbers->shape().DebugString()));
    program.num_numbers = static_cast<int32_t>(numbers->NumElements());
    OP_REQUIRES_OK(context, CheckRegisters(program));
    WrittenVariables written;
    OP_REQUIRES_OK(context, Find(context, &written));
    ExclusiveLocks locks;
    locks.Lock(written.mutexes());
    OpInputList grads;
    OP_REQUIRES_OK(context, context->input_list("grads", &grads));
    OP_REQUIRES_OK(context, Check(context, &written, grads));
    std::vector<DenseVariable> variables;
    OP_REQUIRES_OK(context, Open(context, grads, &written, &variables));
    OP_REQUIRES_OK(context, Device::Run(context, program, ToCore(dtype_),
                                        static_cast<const float*>(numbers->data()), variables));
  }

 private:
  size_t num_variables() const { return names_.size(); }
  size_t num_slots() const { return program_.num_slots; }

  // The place of a value (0: the variable, then its slots) in WrittenVariables.
  size_t index(size_t variable, size_t value) const {
    return value == 0 ? variable : num_variables() + variable * num_slots() + value - 1;
  }

  // Finds the variables, then their slots.
  absl::Status Find(OpKernelContext* context, WrittenVariables* written) const {
    HandleList variables, slots;
    TF_RETURN_IF_ERROR(variables.Open(context, "variables"));
    TF_RETURN_IF_ERROR(slots.Open(context, "slots"));
    const size_t num_found = variables.size(), num_slots_found = slots.size();
    if (num_found != num_variables() || num_slots_found != num_variables() * num_slots()) {
      return absl::InvalidArgumentError(
          "expected " + std::to_string(num_variables()) + " variables and " +
          std::to_string(num_variables() * num_slots()) + " slots, as there are names and results" +
          ", got " + std::to_string(num_found) + " and " + std::to_string(num_slots_found));
    }
    const auto add = [&](const HandleList& list, int i, const std::string& name) {
      const absl::Status found = written->Add(context, list, i);
      if (!absl::IsNotFound(found)) return found;
      return NotInitialized(name);
    };
    for (int v = 0; v < variables.size(); ++v) TF_RETURN_IF_ERROR(add(variables, v, names_[v]));
    for (int i = 0; i < slots.size(); ++i) {
      TF_RETURN_IF_ERROR(add(slots, i, names_[i / num_slots()]));
    }
    return absl::OkStatus();
  }

  static absl::Status NotInitialized(const std::string& name) {
    return absl::FailedPreconditionError("variable '" + name +
                                         "': expected it and its slots to be initialized; run "
                                         "their initializers");
  }

  // Checks all variables, slots and gradients, before anything is written.
  absl::Status Check(OpKernelContext* context, WrittenVariables* written,
                     const OpInputList& grads) const {
    if (grads.size() != static_cast<int>(num_variables())) {
      return absl::InvalidArgumentError("grads: expected one for each variable");
    }
    for (size_t v = 0; v < num_variables(); ++v) {
      const TensorShape shape = written->Value(context, index(v, 0)).shape();
      TF_RETURN_IF_ERROR(CheckShape("its gradient", v, grads[v].shape(), shape));
      for (size_t i = 0; i <= num_slots(); ++i) {
        const Tensor& value = written->Value(context, index(v, i));
        if (!value.IsInitialized()) return NotInitialized(names_[v]);
        if (value.dtype() != dtype_) {
          return absl::InvalidArgumentError("variable '" + names_[v] + "' or its slot: expected " +
                                            DataTypeString(dtype_) + ", got " +
                                            DataTypeString(value.dtype()));
        }
        TF_RETURN_IF_ERROR(CheckShape("its slot", v, value.shape(), shape));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckShape(const char* what, size_t v, const TensorShape& shape,
                          const TensorShape& expected) const {
    if (shape == expected) return absl::OkStatus();
    return absl::InvalidArgumentError("variable '" + names_[v] + "': expected " + what +
                                      " to have its shape " + expected.DebugString() + ", got " +
                                      shape.DebugString());
  }

  // Gives each variable a buffer of its own. Two that share one are the same.
  absl::Status Open(OpKernelContext* context, const OpInputList& grads, WrittenVariables* written,
                    std::vector<DenseVariable>* variables) const {
    std::vector<const void*> buffers;
    for (size_t v = 0; v < num_variables(); ++v) {
      DenseVariable variable = {{}, grads[v].data(), grads[v].NumElements()};
      for (size_t i = 0; i <= num_slots(); ++i) {
        TF_RETURN_IF_ERROR(written->MakeWritable(context, index(v, i), LaterReads::kShare));
        variable.values[i] = written->Value(context, index(v, i)).data();
        if (variable.size > 0) buffers.push_back(variable.values[i]);
      }
      variables->push_back(variable);
    }
    std::sort(buffers.begin(), buffers.end(), std::less<const void*>());
    if (std::adjacent_find(buffers.begin(), buffers.end()) == buffers.end()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("a variable or slot comes twice; update it in two calls");
  }

  DenseProgram program_;
  std::vector<std::string> names_;
  tensorflow::DataType dtype_;
};

// For all types: the core looks at dtype.
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>DenseUpdate").Device(tensorflow::DEVICE_CPU),
                        Guarded<DenseUpdateOp<DenseOnCpu>>)

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>DenseUpdate").Device(tensorflow::DEVICE_GPU),
                        Guarded<DenseUpdateOp<DenseOnGpu>>)
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
