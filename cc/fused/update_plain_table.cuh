// The sink that updates rows of plain tables by a rule of most models.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "fused/reduce_rows.cuh"
#include "optimizer/apply_rule.cuh"

namespace group_embedding {

// The same for a rule that is known when the kernel is compiled, and plain tables with float32
// slots. What the rules of most models deserve, at the price of kernels of their own.
//
// Rows and slots are copied to shared memory while the gradients are still being added up: what is
// under way takes no registers. A thread copies, reads and writes its own columns alone. A place
// has a thread's vector of a row; of a wide row, which has several, each has a place.
template <typename T, typename Rule>
struct ApplyPlainRule {
  using Table = RuleTable<T>;
  using Common = RuleArgs;
  static constexpr bool kTakesRow = false;
  static constexpr bool kPlain = true;
  static constexpr int kBlocks = 4;
  static constexpr int kSlots = Rule::kSlotPerRow ? 0 : Rule::kNumSlots;
  // A third slot, which few models have, is read when its turn comes.
  static constexpr int kCopiedSlots = std::min(kSlots, 2);
  static constexpr int kSlotWords = sizeof(float) / sizeof(T);
  // Words of 16 bytes that a thread has of a row: of its gradient, of itself and of the slots or,
  // of which it takes but a part, the slot per row.
  static constexpr int kWords = 2 + kCopiedSlots * kSlotWords + (Rule::kSlotPerRow ? 1 : 0);
  static constexpr int64_t kMaxTaken = std::min(4, 12 / kWords);  // within 48 KB
  struct Shared {
    uint4 words[kMaxTaken][kWords][kReduceThreads];
  };
  __device__ static bool IsActive(const Common& common) { return __ldg(&common.hyper->apply) != 0; }
  __device__ static bool NeedsRow(const Common&) { return Rule::kNeedsRow; }

  template <typename Vector>
  class Team {
    static constexpr int kSize = Vector::kSize;

   public:
    __device__ Team(const ReduceArgs& args, int32_t table, const Table& sink, const Common& common,
                    const group_embedding::Team& team, Shared& shared)
        : args_(args),
          first_key_(static_cast<uint32_t>(args.tasks[table].first_key)),
          table_(sink),
          common_(common),
          team_(team),
          is_wide_(args.tasks[table].shape.num_columns > 1),
          shared_(shared) {}

    __device__ void Start(int64_t first, int count, int place, int32_t column, bool has_column) {
      const auto is_started = [=](int s) { return s >= place && s < place + count; };
#pragma unroll
      for (int s = 0; s < kMaxTaken; ++s) {
        if (!is_started(s)) continue;
        const uint32_t entry = __ldg(args_.sorted.segments + first + s - place);
        rows_[s] = __ldg(static_cast<const uint32_t*>(args_.sorted.keys) + entry) - first_key_;
      }
#pragma unroll
      for (int s = 0; s < kMaxTaken; ++s) {
        if (!is_started(s)) continue;
        if (Rule::kSlotPerRow && table_.slots[0] != nullptr) {
          const float* slot = static_cast<const float*>(table_.slots[0]) + rows_[s];
          __pipeline_memcpy_async(&Word(s, kWords - 1), slot, sizeof(float));
        }
        if (!has_column) continue;
        const int64_t at = rows_[s] * table_.dim + column;
        __pipeline_memcpy_async(&Word(s, 1), table_.rows + at, sizeof(uint4));
#pragma unroll
        for (int k = 0; k < kCopiedSlots; ++k) {
          if (table_.slots[k] == nullptr) continue;
          const uint4* slot =
              reinterpret_cast<const uint4*>(static_cast<const float*>(table_.slots[k]) + at);
#pragma unroll
          for (int w = 0; w < kSlotWords; ++w) {
            __pipeline_memcpy_async(&Word(s, 2 + k * kSlotWords + w), slot + w, sizeof(uint4));
          }
        }
      }
      __pipeline_commit();
    }

    __device__ void Take(int place, int64_t, int64_t, int32_t, bool, const float (&sum)[kSize]) {
      *reinterpret_cast<Vector*>(&Word(place, 0)) = Vector::Round(sum);
    }

    __device__ void Finish(int, int64_t, int count, int32_t, bool) {
      __pipeline_wait_prior(0);
      __syncwarp();  // or the compiler may read before it has waited
      const Hyper hyper = ReadHyper(common_.hyper);
      float factor = 0;
#pragma unroll(kSlots > 0 ? 1 : static_cast<int>(kMaxTaken))
      for (int s = 0; s < kMaxTaken; ++s) {
        if (s >= count) continue;
        if constexpr (Rule::kNeedsRow) {
          if (s == 0 || !is_wide_) factor = FactorOfRow(hyper, s, is_wide_ ? count : s + 1);
        }
        if (ColumnOf(s) < table_.dim) UpdateColumns(hyper, factor, s);
      }
    }

    __device__ void EndSum(int64_t, bool) {}

   private:
    __device__ uint4& Word(int place, int word) { return shared_.words[place][word][threadIdx.x]; }

    __device__ int32_t ColumnOf(int place) const {
      return ((is_wide_ ? place * team_.size : 0) + team_.lane) * kSize;
    }

    __device__ uint32_t RowOf(int place) const {
      uint32_t row = rows_[0];
#pragma unroll
      for (int other = 1; other < kMaxTaken; ++other) {  // registers have no index
        if (place == other) row = rows_[other];
      }
      return row;
    }

    __device__ void ReadGradient(const Hyper& hyper, int place, float (&g)[kSize]) {
      const Vector taken{*reinterpret_cast<const typename Vector::Word*>(&Word(place, 0))};
#pragma unroll
      for (int j = 0; j < kSize; ++j) g[j] = PrepareGradient(hyper, taken[j]);
    }

    // Of the row that has places [place, end). Moves its slot.
    __device__ float FactorOfRow(const Hyper& hyper, int place, int end) {
      RowSums sums;
      for (int s = place; s < end; ++s) {
        float g[kSize], of_place = 0;
        ReadGradient(hyper, s, g);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {  // no rule here looks at the row itself
          const float of_column = Rule::Sum(hyper, g[j], 0.0f, static_cast<float*>(nullptr)).a;
          of_place = __fadd_rn(of_place, ColumnOf(s) < table_.dim ? of_column : 0.0f);
        }
        sums.a += of_place;
      }
      const bool has_slot = Rule::kSlotPerRow && table_.slots[0] != nullptr;
      float slot = has_slot ? __uint_as_float(Word(place, kWords - 1).x) : 0.0f;
      sums.a = team_.Sum(sums.a);
      const float factor = Rule::Factor(hyper, sums, table_.dim, &slot);
      if (has_slot && team_.lane == 0) {
        __stcs(static_cast<float*>(table_.slots[0]) + RowOf(place), slot);
      }
      return factor;
    }

    __device__ void UpdateColumns(const Hyper& hyper, float factor, int s) {
      const uint32_t row = RowOf(s);
      const int32_t column = ColumnOf(s);
      const int64_t at = row * table_.dim + column;
      float g[kSize];
      ReadGradient(hyper, s, g);
      float slots[kMaxSlots][kSize] = {};
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (table_.slots[k] == nullptr) continue;
#pragma unroll
        for (int j = 0; j < kSize; j += 4) {
          float values[4];
          if (k < kCopiedSlots) {
            const Columns word{Word(s, 2 + k * kSlotWords + j / 4)};
#pragma unroll
            for (int i = 0; i < 4; ++i) values[i] = word[i];
          } else {
            ReadColumns<float>(table_.slots[k], at + j, values);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) slots[k][j + i] = values[i];
        }
      }
      const Vector x{Word(s, 1)};
      float updated[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        updated[j] = DecayRow(hyper, x[j]);
        float of_column[kMaxSlots] = {slots[0][j], slots[1][j], slots[2][j]};
        Rule::Update(hyper, factor, g[j], updated[j], of_column);
#pragma unroll
        for (int k = 0; k < kMaxSlots; ++k) slots[k][j] = of_column[k];
      }
      if constexpr (sizeof(T) == 2) {
        if (common_.stochastic_rounding) RoundColumns(hyper, row, column, updated);
      }
      Vector::Round(updated).Stream(table_.rows + at);
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (table_.slots[k] == nullptr) continue;
#pragma unroll
        for (int j = 0; j < kSize; j += 4) {
          const float values[4] = {slots[k][j], slots[k][j + 1], slots[k][j + 2], slots[k][j + 3]};
          WriteColumns<float>(table_.slots[k], at + j, values);
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

    using Columns = group_embedding::Vector<float, 16>;

    const ReduceArgs& args_;
    const uint32_t first_key_;
    const Table& table_;
    const Common& common_;
    const group_embedding::Team& team_;
    const bool is_wide_;
    Shared& shared_;
    uint32_t rows_[kMaxTaken];  // that were started
  };
};

}  // namespace group_embedding
