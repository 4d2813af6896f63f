#include "optimizer/dense_update.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

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

void Add(const float* a, const float* b, float* to, int count) {
  Map(a, b, to, count, [](float x, float y) { return x + y; });
}
void Multiply(const float* a, const float* b, float* to, int count) {
  Map(a, b, to, count, [](float x, float y) { return x * y; });
}

// Eigen, which computes TensorFlow's reciprocal roots on the host, takes the estimate of an x86
// processor and one step of Newton's method for eight elements at a time, and the exact root for
// the last `size % 8` elements of an array: of 16-bit types that of the rounded root. On other
// processors all are such.
#ifdef __SSE__
int64_t NumEstimatedRoots(int64_t size) { return size - size % 8; }

void EstimateReciprocalRoots(const float* a, float* to, int count) {
  alignas(64) float estimates[kChunk], errors[kChunk], halves[kChunk];
  for (int i = 0; i < count; i += 4) {
    _mm_store_ps(estimates + i, _mm_rsqrt_ps(_mm_loadu_ps(a + i)));
  }
  Multiply(a, estimates, errors, count);
  Multiply(errors, estimates, errors, count);
  Map(errors, errors, errors, count, [](float x, float) { return x - 1.0f; });
  Map(estimates, estimates, halves, count, [](float x, float) { return x * -0.5f; });
  Multiply(halves, errors, errors, count);
  Add(errors, estimates, to, count);
  // Zero and infinity, whose estimates are exact.
  Map(to, estimates, to, count, [](float x, float y) { return x != x ? y : x; });
}
#else
int64_t NumEstimatedRoots(int64_t) { return 0; }
void EstimateReciprocalRoots(const float*, float*, int) {}
#endif

template <typename T>
float Round(float value) {
  return ToFloat(FromFloat<T>(value));
}

// `num_estimated`: how many of the elements have estimated roots.
template <typename T>
void Take(const DenseStep& step, const Registers& registers, float* to, int count,
          int num_estimated) {
  const float* a = registers.at[step.a];
  const float* b = registers.at[step.b];
  switch (step.op) {
    case DenseOp::kAdd:
      return Add(a, b, to, count);
    case DenseOp::kSubtract:
      return Map(a, b, to, count, [](float x, float y) { return x - y; });
    case DenseOp::kMultiply:
      return Multiply(a, b, to, count);
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
    case DenseOp::kReciprocalRoot:
      EstimateReciprocalRoots(a, to, num_estimated);
      for (int i = num_estimated; i < count; ++i) {
        to[i] = 1.0f / Round<T>(sqrtf(a[i]));
      }
      return;
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
  const int num_estimated =
      static_cast<int>(std::clamp<int64_t>(NumEstimatedRoots(variable.size) - first, 0, count));
  for (int s = 0; s < program.num_steps; ++s) {
    const int index = program.first_step() + s;
    float* to = registers.values[index];
    registers.at[index] = to;
    Take<T>(program.steps[s], registers, to, count, num_estimated);
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
