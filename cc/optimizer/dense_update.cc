#include "optimizer/dense_update.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/float16.h"

namespace group_embedding {
namespace {

constexpr int kChunk = 256;              // elements that go through the program together
constexpr int64_t kPiece = 16 * kChunk;  // the least work of a thread

struct Registers {
  const float* at[kMaxDenseRegisters];  // in `values`, or in the memory of a variable
  alignas(64) float values[kMaxDenseRegisters][kChunk];
};

// One step for all elements of a chunk. Never inlined: its results are in memory before the next
// step reads them, so that no product is contracted with a sum, which would round once instead of
// twice.
template <typename Body>
[[gnu::noinline]] void Map(const float* a, const float* b, float* to, int count, Body body) {
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) to[i] = body(a[i], b[i]);
}

template <typename T>
float Round(float value) {
  return ToFloat(FromFloat<T>(value));
}

void Take(const DenseStep& step, const Registers& registers, float* to, int count) {
  const float* a = registers.at[step.a];
  const float* b = registers.at[step.b];
  switch (step.op) {
    case DenseOp::kAdd:
      return Map(a, b, to, count, [](float x, float y) { return x + y; });
    case DenseOp::kSubtract:
      return Map(a, b, to, count, [](float x, float y) { return x - y; });
    case DenseOp::kMultiply:
      return Map(a, b, to, count, [](float x, float y) { return x * y; });
    case DenseOp::kDivide:
      return Map(a, b, to, count, [](float x, float y) { return x / y; });
    case DenseOp::kMaximum:
      return Map(a, b, to, count, [](float x, float y) { return x > y || x != x ? x : y; });
    case DenseOp::kMinimum:
      return Map(a, b, to, count, [](float x, float y) { return x < y || x != x ? x : y; });
    case DenseOp::kMagnitude:
      return Map(a, a, to, count, [](float x, float) { return fabsf(x); });
    case DenseOp::kSquareRoot:
      return Map(a, a, to, count, [](float x, float) { return sqrtf(x); });
  }
}

// Fills a register with elements of an array. Those of float32 stay where they are.
template <typename T>
void Load(const void* from, int64_t first, int count, int index, Registers& registers) {
  const T* values = static_cast<const T*>(from) + first;
  float* to = registers.values[index];
  registers.at[index] = to;
  if constexpr (std::is_same_v<T, float>) {
    registers.at[index] = values;
  } else {
    for (int i = 0; i < count; ++i) to[i] = ToFloat(values[i]);
  }
}

template <typename T>
void Store(const float* from, int64_t first, int count, void* to) {
  T* values = static_cast<T*>(to) + first;
  for (int i = 0; i < count; ++i) values[i] = FromFloat<T>(from[i]);
}

template <typename T>
void UpdateChunk(const DenseProgram& program, const DenseVariable& variable, int64_t first,
                 int count, Registers& registers) {
  const int num_values = 1 + program.num_slots;
  Load<T>(variable.values[0], first, count, 0, registers);
  Load<T>(variable.gradient, first, count, 1, registers);
  for (int v = 1; v < num_values; ++v) {
    Load<T>(variable.values[v], first, count, 1 + v, registers);
  }
  for (int s = 0; s < program.num_steps; ++s) {
    const int index = program.first_step() + s;
    float* to = registers.values[index];
    registers.at[index] = to;
    Take(program.steps[s], registers, to, count);
    if constexpr (sizeof(T) == 2) {
      for (int i = 0; i < count; ++i) to[i] = Round<T>(to[i]);
    }
  }
  for (int v = 0; v < num_values; ++v) {
    Store<T>(registers.at[program.results[v]], first, count, variable.values[v]);
  }
}

template <typename T>
void Update(const DenseProgram& program, const float* numbers, const DenseVariable* variables,
            int64_t num_variables, const ParallelFor& parallel_for) {
  std::vector<int64_t> first_piece = {0};
  for (int64_t v = 0; v < num_variables; ++v) {
    first_piece.push_back(first_piece.back() + (variables[v].size + kPiece - 1) / kPiece);
  }
  const int64_t cost = kPiece * (2 + program.num_steps) / 8;
  parallel_for(first_piece.back(), cost, [&](int64_t begin, int64_t end) {
    Registers registers;
    for (int i = 0; i < program.num_numbers; ++i) {
      const int index = program.first_number() + i;
      std::fill_n(registers.values[index], kChunk, numbers[i]);
      registers.at[index] = registers.values[index];
    }
    const auto after = std::upper_bound(first_piece.begin(), first_piece.end(), begin);
    int64_t v = after - first_piece.begin() - 1;
    for (int64_t piece = begin; piece < end; ++piece) {
      while (piece >= first_piece[v + 1]) ++v;
      const int64_t start = (piece - first_piece[v]) * kPiece;
      const int64_t stop = std::min(start + kPiece, variables[v].size);
      for (int64_t first = start; first < stop; first += kChunk) {
        const int count = static_cast<int>(std::min<int64_t>(kChunk, stop - first));
        UpdateChunk<T>(program, variables[v], first, count, registers);
      }
    }
  });
}

}  // namespace

void DenseUpdateCpu(const DenseProgram& program, DataType dtype, const float* numbers,
                    const DenseVariable* variables, int64_t num_variables,
                    const ParallelFor& parallel_for) {
  switch (dtype) {
    case DataType::kFloat32:
      return Update<float>(program, numbers, variables, num_variables, parallel_for);
    case DataType::kFloat16:
      return Update<Float16>(program, numbers, variables, num_variables, parallel_for);
    case DataType::kBFloat16:
      return Update<BFloat16>(program, numbers, variables, num_variables, parallel_for);
  }
}

}  // namespace group_embedding
