// An update rule applied to some columns of a row on the device. The row and its slots are read
// once and written once, in words of up to 16 bytes.
#pragma once

#include "core/rows.cuh"
#include "optimizer/rounding.h"
#include "optimizer/update.h"

namespace group_embedding {

// What the updates of a call have in common.
struct RuleArgs {
  const Hyper* hyper;
  RuleIndex rule;
  DataType slot_dtype;  // float32, that of the rows, or bfloat16
  bool stochastic_rounding, stochastic_slots;
  bool needs_row;  // of the rule, as the next two
  int32_t num_slots, row_slot;

  static RuleArgs Of(const Update& update) {
    RuleArgs args{update.hyper, update.rule, update.slot_dtype, update.stochastic_rounding,
                  update.stochastic_slots};
    ForRule(update.rule, [&](auto rule) {
      args.needs_row = decltype(rule)::kNeedsRow;
      args.num_slots = decltype(rule)::kNumSlots;
      args.row_slot = decltype(rule)::kRowSlot;
    });
    return args;
  }
  __host__ __device__ bool has_float_slots() const { return slot_dtype == DataType::kFloat32; }
  __device__ bool HasSlotPerColumn(int k) const { return k < num_slots && k != row_slot; }
};

// The rows and slots of one table.
template <typename T>
struct RuleTable {
  T* rows;
  void* slots[kMaxSlots];
  int64_t dim;
  RowKeys keys;
};

__device__ inline Hyper ReadHyper(const Hyper* from) {
  Hyper hyper;
#pragma unroll
  for (int i = 0; i < kNumHyper; ++i) {
    reinterpret_cast<float*>(&hyper)[i] = __ldg(reinterpret_cast<const float*>(from) + i);
  }
  return hyper;
}

template <typename E, int kWidth>
__device__ void ReadColumns(const void* array, int64_t at, float (&values)[kWidth]) {
  using Columns = Vector<E, kWidth * sizeof(E)>;
  const auto* from =
      reinterpret_cast<const typename Columns::Word*>(static_cast<const E*>(array) + at);
  const Columns columns{__ldcs(from)};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = columns[j];
}

template <typename E, int kWidth>
__device__ void WriteColumns(void* array, int64_t at, const float (&values)[kWidth]) {
  Vector<E, kWidth * sizeof(E)>::Round(values).Stream(static_cast<E*>(array) + at);
}

__device__ inline float RoundToNeighbour(__half, float value, uint32_t random) {
  return RoundToFloat16(value, random);
}
__device__ inline float RoundToNeighbour(__nv_bfloat16, float value, uint32_t random) {
  return RoundToBFloat16(value, random);
}

// `values` of neighbouring columns of a row, from `column` on, moved to neighbours in the type T at
// random.
template <typename T, int kWidth>
__device__ void RoundStochastically(const RowRandom& random, int draw, int64_t column,
                                    float (&values)[kWidth]) {
#pragma unroll 1
  for (int j = 0; j < kWidth; ++j) {
    const uint32_t drawn = random.Draw(draw, static_cast<uint32_t>(column + j));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {  // registers have no index
      if (i == j) values[i] = RoundToNeighbour(T{}, values[i], drawn);
    }
  }
}

template <typename T>
__device__ RowRandom RandomOf(const RuleArgs& args, const RuleTable<T>& table, int64_t row) {
  return {__float_as_uint(__ldg(&args.hyper->rounding_key)), table.keys.Of(row)};
}

// Values of a slot from `at` on.
template <typename T, int kWidth>
__device__ void ReadSlot(const RuleArgs& args, const void* slots, int64_t at,
                         float (&values)[kWidth]) {
  if (args.has_float_slots()) return ReadColumns<float>(slots, at, values);
  if constexpr (std::is_same_v<T, __half>) {
    if (args.slot_dtype == DataType::kFloat16) return ReadColumns<__half>(slots, at, values);
  }
  ReadColumns<__nv_bfloat16>(slots, at, values);
}

// Writes slot k of a row, columns from `column` on; `at`: the place of the first in the slot.
template <typename T, int kWidth>
__device__ void WriteSlot(const RuleArgs& args, const RuleTable<T>& table, int k, void* slots,
                          int64_t row, int64_t column, int64_t at, float (&values)[kWidth]) {
  if (args.has_float_slots()) return WriteColumns<float>(slots, at, values);
  if constexpr (std::is_same_v<T, __half>) {
    if (args.slot_dtype == DataType::kFloat16) return WriteColumns<__half>(slots, at, values);
  }
  if (args.stochastic_slots) {
    RoundStochastically<__nv_bfloat16>(RandomOf(args, table, row), k, column, values);
  }
  WriteColumns<__nv_bfloat16>(slots, at, values);
}

// kWidth neighbouring columns of a row with their slots, in registers. Reading and writing is the
// same for all rules, so that the code of a rule is no more than its arithmetic.
template <typename T, int kWidth>
struct RuleColumns {
  float g[kWidth];
  float x[kWidth];
  float s[kMaxSlots][kWidth];

  // `at`: of the first column in the table. Slots that are not there are zeros.
  __device__ void Read(const RuleArgs& args, const RuleTable<T>& table, int64_t at) {
    ReadColumns<T>(table.rows, at, x);
#pragma unroll
    for (int k = 0; k < kMaxSlots; ++k) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) s[k][j] = 0;
      if (!args.HasSlotPerColumn(k) || table.slots[k] == nullptr) continue;
      ReadSlot<T>(args, table.slots[k], at, s[k]);
    }
  }

  __device__ void Write(const RuleArgs& args, const RuleTable<T>& table, int64_t row, int64_t at) {
    const int64_t column = at - row * table.dim;
    if constexpr (sizeof(T) == 2) {
      if (args.stochastic_rounding) {
        RoundStochastically<T>(RandomOf(args, table, row), kDrawOfRow, column, x);
      }
    }
    WriteColumns<T>(table.rows, at, x);
#pragma unroll
    for (int k = 0; k < kMaxSlots; ++k) {
      if (!args.HasSlotPerColumn(k) || table.slots[k] == nullptr) continue;
      WriteSlot<T>(args, table, k, table.slots[k], row, column, at, s[k]);
    }
  }

  __device__ void Prepare(const Hyper& hyper) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      g[j] = PrepareGradient(hyper, g[j]);
      x[j] = DecayRow(hyper, x[j]);
    }
  }

  // After Prepare; moves slots.
  template <typename Rule>
  __device__ void AddTo(const Hyper& hyper, RowSums* sums) {
    if constexpr (Rule::kNeedsRow) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float slots[kMaxSlots] = {s[0][j], s[1][j], s[2][j]};
        const RowSums of_column = Rule::Sum(hyper, g[j], x[j], slots);
        // No fused multiply-add, which one kernel may have and another not.
        sums->a = __fadd_rn(sums->a, of_column.a);
        sums->b = __fadd_rn(sums->b, of_column.b);
        for (int k = 0; k < kMaxSlots; ++k) s[k][j] = slots[k];
      }
    }
  }

  // `factor`: of the row, if the rule needs it.
  template <typename Rule>
  __device__ void Update(const Hyper& hyper, float factor) {
    if constexpr (!Rule::kNeedsRow) factor = Rule::Factor(hyper);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float slots[kMaxSlots] = {s[0][j], s[1][j], s[2][j]};
      Rule::Update(hyper, factor, g[j], x[j], slots);
      for (int k = 0; k < kMaxSlots; ++k) s[k][j] = slots[k];
    }
  }
};

// The table's slot per row; null: the rule has none, or the table lacks it.
template <typename T>
__device__ void* RowSlots(const RuleArgs& args, const RuleTable<T>& table) {
  void* slots = nullptr;
#pragma unroll
  for (int k = 0; k < kMaxSlots; ++k) {  // parameters have no index
    if (k == args.row_slot) slots = table.slots[k];
  }
  return slots;
}

// Reads the slot per row, if the rule has one. Only the thread for which `is_first` is true reads
// and writes it; the value is for that thread alone.
template <typename T>
__device__ float ReadRowSlot(const RuleArgs& args, const RuleTable<T>& table, int64_t row) {
  float slot[1] = {0};
  if (const void* slots = RowSlots(args, table); slots != nullptr) {
    ReadSlot<T>(args, slots, row, slot);
  }
  return slot[0];
}

template <typename T>
__device__ void WriteRowSlot(const RuleArgs& args, const RuleTable<T>& table, int64_t row,
                             float value) {
  float slot[1] = {value};
  if (void* slots = RowSlots(args, table); slots != nullptr) {
    WriteSlot<T>(args, table, args.row_slot, slots, row, 0, row, slot);
  }
}

// What Update gets, for rules that need it; moves the slot per row.
inline __device__ float FactorOfRow(const RuleArgs& args, const RowSums& sums, int64_t dim,
                                    float* row_slot) {
  float factor = 0;
  ForRule(args.rule, [&](auto rule) {
    using Rule = decltype(rule);
    if constexpr (Rule::kNeedsRow) {
      factor = Rule::Factor(ReadHyper(args.hyper), sums, dim, row_slot);
    }
  });
  return factor;
}

}  // namespace group_embedding
