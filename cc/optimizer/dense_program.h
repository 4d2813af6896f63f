// The update of a whole variable, element by element, as a program: the steps of an optimizer's
// formula in the order in which TensorFlow computes it, each rounded to the variable's type, so
// that the result has the bits of the optimizer's own chain of ops. Which optimizer computes what
// is stated in group_embedding/optimizers/dense_formulas.py.
//
// A program works on registers of one number each. The first hold the element's inputs, in this
// order: its value, its gradient, its slots, and the numbers that are the same for all elements,
// such as the learning rate. Step i writes the register after those of the inputs and steps before.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

inline constexpr int kMaxDenseSlots = 3;
inline constexpr int kMaxDenseNumbers = 16;
inline constexpr int kMaxDenseSteps = 40;
inline constexpr int kMaxDenseRegisters = 2 + kMaxDenseSlots + kMaxDenseNumbers + kMaxDenseSteps;

enum class DenseOp : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,    // NaN if either is
  kMinimum,    // NaN if either is
  kMagnitude,  // of `a`, as the next
  kSquareRoot,
};
inline constexpr int kNumDenseOps = 1 + static_cast<int>(DenseOp::kSquareRoot);

struct DenseStep {
  DenseOp op;
  uint8_t a, b;  // registers that are read; all were written before
};

struct DenseProgram {
  int32_t num_slots, num_numbers, num_steps;
  DenseStep steps[kMaxDenseSteps];
  uint8_t results[1 + kMaxDenseSlots];  // the registers of the new value and of the new slots

  GROUP_EMBEDDING_HOST_DEVICE int first_number() const { return 2 + num_slots; }
  GROUP_EMBEDDING_HOST_DEVICE int first_step() const { return first_number() + num_numbers; }
};

// One variable of a call.
struct DenseVariable {
  void* values[1 + kMaxDenseSlots];  // its value and its slots, each [size], read and written
  const void* gradient;              // [size]
  int64_t size;
};

}  // namespace group_embedding
