// The sink that updates rows of plain tables by a rule of most models.
#pragma once

#include "fused/taken_rows.cuh"
#include "optimizer/apply_rule.cuh"

namespace group_embedding {

// The same for a rule that is known when the kernel is compiled, and plain tables with float32
// slots. What the rules of most models deserve, at the price of kernels of their own.
template <typename T, typename Rule>
struct ApplyPlainRule {
  using Table = RuleTable<T>;
  using Common = RuleArgs;
  using Shared = TakenRows;
  static constexpr bool kTakesRow = false;
  static constexpr bool kPlain = true;
  // With slots, registers are worth more than warps.
  static constexpr int kBlocks = Rule::kNumSlots > 0 && !Rule::kSlotPerRow ? 3 : 4;
  static constexpr int64_t kMaxTaken = kTakenRows;
  __device__ static bool IsActive(const Common& common) { return __ldg(&common.hyper->apply) != 0; }
  __device__ static bool NeedsRow(const Common&) { return Rule::kNeedsRow; }

  template <typename Vector>
  class Team {
    static constexpr int kSize = Vector::kSize;
    static constexpr int kSlots = Rule::kSlotPerRow ? 0 : Rule::kNumSlots;
    // Rows that are read before the first is written: as many as there are registers for.
    static constexpr int kBatch = kSlots == 0 ? 4 : kSize == 4 ? 2 : 1;

   public:
    __device__ Team(const ReduceArgs& args, int32_t table, const Table& sink, const Common& common,
                    const group_embedding::Team& team, Shared& shared)
        : args_(args),
          first_key_(static_cast<uint32_t>(args.tasks[table].first_key)),
          table_(sink),
          common_(common),
          team_(team),
          shared_(shared) {}

    __device__ void Take(int s, int64_t, int64_t, int32_t, bool, const float (&sum)[kSize]) {
      *reinterpret_cast<Vector*>(&shared_.gradients[s][threadIdx.x]) = Vector::Round(sum);
    }

    __device__ void Finish(int, int64_t first, int count, int32_t column, bool has_column) {
      const Hyper hyper = ReadHyper(common_.hyper);
      uint32_t rows[kTakenRows];
#pragma unroll
      for (int s = 0; s < kTakenRows; ++s) {
        rows[s] = 0;
        if (s >= count) continue;
        const uint32_t entry = __ldg(args_.sorted.segments + first + s);
        rows[s] = __ldg(static_cast<const uint32_t*>(args_.sorted.keys) + entry) - first_key_;
      }
#pragma unroll
      for (int s = 0; s < kTakenRows; s += kBatch) {
        if (!__any_sync(kFullWarp, s < count)) break;
        uint32_t batch[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) batch[b] = rows[s + b];
        UpdateBatch(hyper, batch, s, count - s, column, has_column);
      }
    }

    __device__ void EndSum(int64_t, bool) {}

   private:
    __device__ void UpdateBatch(const Hyper& hyper, const uint32_t (&rows)[kBatch], int first,
                                int count, int32_t column, bool has_column) {
      Vector x[kBatch];
      float slots[kBatch][kMaxSlots][kSize];
      float row_slots[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        row_slots[b] = 0;
#pragma unroll
        for (int k = 0; k < kMaxSlots; ++k) {
#pragma unroll
          for (int j = 0; j < kSize; ++j) slots[b][k][j] = 0;
        }
        if (b >= count) continue;
        if (Rule::kSlotPerRow && table_.slots[0] != nullptr) {
          row_slots[b] = __ldcs(static_cast<const float*>(table_.slots[0]) + rows[b]);
        }
        if (!has_column) continue;
        const int64_t at = rows[b] * table_.dim + column;
        x[b] = {__ldcs(reinterpret_cast<const uint4*>(table_.rows + at))};
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          if (table_.slots[k] == nullptr) continue;
#pragma unroll
          for (int j = 0; j < kSize; j += 4) {
            float values[4];
            ReadColumns<float>(table_.slots[k], at + j, values);
#pragma unroll
            for (int i = 0; i < 4; ++i) slots[b][k][j + i] = values[i];
          }
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const Vector taken = *reinterpret_cast<const Vector*>(
            &shared_.gradients[(first + b) % kTakenRows][threadIdx.x]);
        float g[kSize];
        RowSums sums;
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          g[j] = PrepareGradient(hyper, taken[j]);
          if constexpr (Rule::kNeedsRow) {  // of which none here looks at the row itself
            const float of_column = Rule::Sum(hyper, g[j], 0.0f, static_cast<float*>(nullptr)).a;
            sums.a = __fadd_rn(sums.a, has_column && b < count ? of_column : 0.0f);
          }
        }
        float factor = 0;
        if constexpr (Rule::kNeedsRow) {
          sums.a = team_.Sum(sums.a);
          factor = Rule::Factor(hyper, sums, table_.dim, &row_slots[b]);
          if (Rule::kSlotPerRow && team_.lane == 0 && b < count && table_.slots[0] != nullptr) {
            __stcs(static_cast<float*>(table_.slots[0]) + rows[b], row_slots[b]);
          }
        }
        if (b >= count || !has_column) continue;
        const int64_t at = rows[b] * table_.dim + column;
        float updated[kSize];
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          updated[j] = DecayRow(hyper, x[b][j]);
          float of_column[kMaxSlots] = {slots[b][0][j], slots[b][1][j], slots[b][2][j]};
          Rule::Update(hyper, factor, g[j], updated[j], of_column);
#pragma unroll
          for (int k = 0; k < kMaxSlots; ++k) slots[b][k][j] = of_column[k];
        }
        if constexpr (sizeof(T) == 2) {
          if (common_.stochastic_rounding) RoundColumns(hyper, rows[b], column, updated);
        }
        Vector::Round(updated).Stream(table_.rows + at);
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          if (table_.slots[k] == nullptr) continue;
#pragma unroll
          for (int j = 0; j < kSize; j += 4) {
            const float values[4] = {slots[b][k][j], slots[b][k][j + 1], slots[b][k][j + 2],
                                     slots[b][k][j + 3]};
            WriteColumns<float>(table_.slots[k], at + j, values);
          }
        }
      }
    }

    __device__ static void RoundColumns(const Hyper& hyper, int64_t row, int32_t column,
                                        float (&values)[kSize]) {
      const uint32_t key = __float_as_uint(hyper.rounding_key);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        values[j] = RoundToNeighbour(T{}, values[j], RandomBits(key, row, column + j));
      }
    }

    const ReduceArgs& args_;
    const uint32_t first_key_;
    const Table& table_;
    const Common& common_;
    const group_embedding::Team& team_;
    Shared& shared_;
  };
};

}  // namespace group_embedding
