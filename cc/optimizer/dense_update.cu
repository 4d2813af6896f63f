#include <algorithm>

#include "core/rows.cuh"
#include "optimizer/dense_update.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 128;
constexpr int kElementsOfThread = 8;
constexpr int64_t kElementsOfBlock = kThreads * kElementsOfThread;
constexpr int kMaxVariables = 64;  // of one launch

// The arguments of a launch: the driver copies them with it, so that nothing else is copied.
struct DenseArgs {
  DenseProgram program;
  const float* numbers;
  int32_t num_variables;
  uint32_t first_blocks[kMaxVariables + 1];
  DenseVariable variables[kMaxVariables];
};
static_assert(sizeof(DenseArgs) <= 4096, "the most that a kernel takes");
static_assert(kMaxDenseRegisters * kThreads * sizeof(float) <= 48 << 10,
              "the shared memory that a block has without asking for more");

__device__ __forceinline__ float Take(DenseOp op, float a, float b) {
  switch (op) {
    case DenseOp::kAdd:
      return a + b;
    case DenseOp::kSubtract:
      return a - b;
    case DenseOp::kMultiply:
      return a * b;
    case DenseOp::kDivide:
      return a / b;
    case DenseOp::kMaximum:
      return a > b || a != a ? a : b;
    case DenseOp::kMinimum:
      return a < b || a != a ? a : b;
    case DenseOp::kMagnitude:
      return fabsf(a);
    case DenseOp::kSquareRoot:
      return sqrtf(a);
  }
  return 0;
}

// A block updates up to kElementsOfBlock elements of one variable, a thread kElementsOfThread of
// them, one after the other. The registers of the program are indexed at run time, which those of
// the hardware cannot be: they lie in shared memory, [register, thread], and each thread uses its
// own alone.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DenseUpdateKernel(const __grid_constant__ DenseArgs args) {
  extern __shared__ float shared[];
  const auto at = [](int index) -> float& { return shared[index * kThreads + threadIdx.x]; };
  int v = 0;
  while (blockIdx.x >= args.first_blocks[v + 1]) ++v;
  const DenseVariable& variable = args.variables[v];
  const DenseProgram& program = args.program;
  const int num_values = 1 + program.num_slots, first_step = program.first_step();
  for (int i = 0; i < program.num_numbers; ++i) {
    at(program.first_number() + i) = __ldg(args.numbers + i);
  }
  const int64_t first = (blockIdx.x - args.first_blocks[v]) * kElementsOfBlock + threadIdx.x;
  const int64_t end = min(variable.size, first + kElementsOfBlock);
  for (int64_t i = first; i < end; i += kThreads) {
    at(0) = ToFloat(static_cast<const T*>(variable.values[0])[i]);
    at(1) = ToFloat(static_cast<const T*>(variable.gradient)[i]);
    for (int k = 1; k < num_values; ++k) {
      at(1 + k) = ToFloat(static_cast<const T*>(variable.values[k])[i]);
    }
    for (int s = 0; s < program.num_steps; ++s) {
      const DenseStep step = program.steps[s];
      at(first_step + s) = ToFloat(FromFloat<T>(Take(step.op, at(step.a), at(step.b))));
    }
    for (int k = 0; k < num_values; ++k) {
      static_cast<T*>(variable.values[k])[i] = FromFloat<T>(at(program.results[k]));
    }
  }
}

template <typename T>
cudaError_t Launch(DenseArgs& args, uint32_t num_blocks, cudaStream_t stream) {
  args.first_blocks[args.num_variables] = num_blocks;
  const int num_registers = args.program.first_step() + args.program.num_steps;
  const size_t shared_bytes = num_registers * kThreads * sizeof(float);
  if (num_blocks > 0) DenseUpdateKernel<T><<<num_blocks, kThreads, shared_bytes, stream>>>(args);
  args.num_variables = 0;
  return cudaGetLastError();
}

// Variables of more than `kMaxPart` elements are updated in parts, so that a launch's blocks can be
// counted in 31 bits.
constexpr int64_t kMaxPart = int64_t{1} << 34;

template <typename T>
cudaError_t Update(const DenseProgram& program, const float* numbers,
                   const DenseVariable* variables, int64_t num_variables, cudaStream_t stream) {
  DenseArgs args = {program, numbers};
  int64_t num_blocks = 0;
  for (int64_t v = 0; v < num_variables; ++v) {
    for (int64_t first = 0; first < variables[v].size; first += kMaxPart) {
      DenseVariable part = variables[v];
      part.size = std::min(part.size - first, kMaxPart);
      part.gradient = static_cast<const T*>(part.gradient) + first;
      for (int i = 0; i <= program.num_slots; ++i) {
        part.values[i] = static_cast<T*>(part.values[i]) + first;
      }
      const int64_t blocks = (part.size + kElementsOfBlock - 1) / kElementsOfBlock;
      if (args.num_variables == kMaxVariables || num_blocks + blocks > INT32_MAX) {
        const cudaError_t error = Launch<T>(args, static_cast<uint32_t>(num_blocks), stream);
        if (error != cudaSuccess) return error;
        num_blocks = 0;
      }
      args.first_blocks[args.num_variables] = static_cast<uint32_t>(num_blocks);
      args.variables[args.num_variables++] = part;
      num_blocks += blocks;
    }
  }
  return Launch<T>(args, static_cast<uint32_t>(num_blocks), stream);
}

}  // namespace

cudaError_t DenseUpdateCuda(const DenseProgram& program, DataType dtype, const float* numbers,
                            const DenseVariable* variables, int64_t num_variables,
                            cudaStream_t stream) {
  switch (dtype) {
    case DataType::kFloat32:
      return Update<float>(program, numbers, variables, num_variables, stream);
    case DataType::kFloat16:
      return Update<__half>(program, numbers, variables, num_variables, stream);
    case DataType::kBFloat16:
      return Update<__nv_bfloat16>(program, numbers, variables, num_variables, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace group_embedding
