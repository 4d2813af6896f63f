// The sink that updates rows of plain tables by a rule of most models.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "fused/plain_slots.cuh"
#include "fused/reduce_rows.cuh"

namespace group_embedding {

// As the sink of update_any_table.cuh, for a rule known at compile time and float32 slots. The
// rules of most models are worth kernels of their own. In tables of kOneWord this one updates long
// rows alone: stream_rows.cuh has the others.
//
// Rows and slots are copied to shared memory while gradients are still added up: copies in flight
// need no registers. A thread copies, reads and writes only its own columns. A staging slot `place`
// holds a thread's vector of a row; a thread with several vectors has a staging slot for each.
template <typename T, typename Rule>
struct ApplyPlainRule {
  using Table = RuleTable<T>;
  using Common = RuleArgs;
  using UpdateRule = Rule;
  static constexpr TableKind kKind = kFewWords;
  static constexpr int kBlocks = 4;
  using Slots = PlainSlots<T, Rule>;
  static constexpr bool kHasRowSlot = Slots::kHasRowSlot;
  static constexpr int kSlots = Slots::kSlots, kCopiedSlots = Slots::kLoadedSlots;
  static constexpr int kSlotWords = Slots::kSlotWords;
  // Words, of a vector's bytes, that a thread has of a row: of its gradient, of itself and of the
  // slots or, of which it takes but a part, the slot per row.
  static constexpr int kWords = 2 + kCopiedSlots * kSlotWords + (kHasRowSlot ? 1 : 0);
  static constexpr int64_t kMaxTaken = std::min(4, 12 / kWords);  // within 48 KB
  static constexpr int kMaxColumns = static_cast<int>(kMaxTaken);
  struct Shared {
    uint4 words[kMaxTaken][kWords][kReduceThreads];
  };
  __device__ static bool IsActive(const Common& common) { return __ldg(&common.hyper->apply) != 0; }
  __device__ static bool NeedsRow(const Common&) { return Rule::kNeedsRow; }

  template <typename Vector, bool kAtOnce>
  class Team {
    using VectorWord = typename Vector::Word;
    static constexpr int kSize = Vector::kSize;
    static_assert(sizeof(VectorWord) >= kMinPlainBytes);

   public:
    __device__ Team(const ReduceArgs& args, int32_t table, const Table& sink, const Common& common,
                    const group_embedding::Team& team, Shared& shared)
        : args_(args),
          first_key_(static_cast<uint32_t>(args.tasks[table].first_key)),
          table_(sink),
          common_(common),
          team_(team),
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
        if (kHasRowSlot && Slot(0) != nullptr) {
          const float* slot = static_cast<const float*>(Slot(0)) + rows_[s];
          __pipeline_memcpy_async(&Word(s, kWords - 1), slot, sizeof(float));
        }
        if (!has_column) continue;
        const int64_t at = rows_[s] * table_.dim + column;
        __pipeline_memcpy_async(&Word(s, 1), Rows() + at, sizeof(VectorWord));
#pragma unroll
        for (int k = 0; k < kCopiedSlots; ++k) {
          if (Slot(k) == nullptr) continue;
          const VectorWord* slot =
              reinterpret_cast<const VectorWord*>(static_cast<const float*>(Slot(k)) + at);
#pragma unroll
          for (int w = 0; w < kSlotWords; ++w) {
            __pipeline_memcpy_async(&Word(s, 2 + k * kSlotWords + w), slot + w, sizeof(VectorWord));
          }
        }
      }
      __pipeline_commit();
    }

    __device__ void Take(int place, int64_t, int32_t, bool, const float (&sum)[kSize]) {
      *reinterpret_cast<Vector*>(&Word(place, 0)) = Vector::Round(sum);
    }

    __device__ void Finish(int, int64_t, int count, int32_t, bool) {
      __pipeline_wait_prior(0);
      __syncwarp();  // or the compiler may read before it has waited
      const Hyper hyper = ReadHyper(common_.hyper);
      float factor = 0;
      if constexpr (!Rule::kNeedsRow) factor = Rule::Factor(hyper);
      if constexpr (Rule::kNeedsRow && kAtOnce) {
        if (count == 0) return;  // of a whole warp
        float sum = 0;
        for (int s = 0; s < count; ++s) sum += SumOfColumns(hyper, ReadGradient(hyper, s), s);
        factor = FactorOfRow(hyper, sum, /*place=*/0);
      }
#pragma unroll(kSlots > 0 ? 1 : static_cast<int>(kMaxTaken))
      for (int s = 0; s < kMaxTaken; ++s) {
        if (s >= count) continue;
        const Gradient g = ReadGradient(hyper, s);
        if constexpr (Rule::kNeedsRow && !kAtOnce) {
          factor = FactorOfRow(hyper, SumOfColumns(hyper, g, s), s);
        }
        if (ColumnOf(s) < table_.dim) UpdateColumns(hyper, factor, s, g);
      }
    }

    __device__ void EndSum(int64_t, bool) {}

   private:
    // Read again wherever they are needed: all of them together would take too many registers.
    __device__ T* Rows() const { return LoadPointer(&table_.rows); }
    __device__ void* Slot(int k) const { return LoadPointer(&table_.slots[k]); }

    // Each warp in its own share: another may have words of another size.
    __device__ VectorWord& Word(int place, int word) {
      constexpr int kWordsOfPlace = sizeof(uint4) / sizeof(VectorWord);
      const int lane = threadIdx.x % kWarpSize, first_of_warp = threadIdx.x - lane;
      VectorWord* words = reinterpret_cast<VectorWord*>(shared_.words[place][word]);
      return words[first_of_warp * kWordsOfPlace + lane];
    }

    __device__ int32_t ColumnOf(int place) const {
      return ((kAtOnce ? place * team_.size : 0) + team_.lane) * kSize;
    }

    __device__ uint32_t RowOf(int place) const {
      uint32_t row = rows_[0];
#pragma unroll
      for (int other = 1; other < kMaxTaken; ++other) {  // registers have no index
        if (place == other) row = rows_[other];
      }
      return row;
    }

    struct Gradient {
      float of[kSize];
    };

    __device__ Gradient ReadGradient(const Hyper& hyper, int place) {
      const Vector taken{Word(place, 0)};
      Gradient g;
#pragma unroll
      for (int j = 0; j < kSize; ++j) g.of[j] = PrepareGradient(hyper, taken[j]);
      return g;
    }

    // No rule here looks at the row itself.
    __device__ float SumOfColumns(const Hyper& hyper, const Gradient& g, int place) const {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float of_column = Rule::Sum(hyper, g.of[j], 0.0f, static_cast<float*>(nullptr)).a;
        sum = __fadd_rn(sum, ColumnOf(place) < table_.dim ? of_column : 0.0f);
      }
      return sum;
    }

    // sum: over the thread's columns of the row in staging slot `place`. Updates the row's slot.
    __device__ float FactorOfRow(const Hyper& hyper, float sum, int place) {
      const bool has_slot = kHasRowSlot && Slot(0) != nullptr;
      float slot = has_slot ? *reinterpret_cast<float*>(&Word(place, kWords - 1)) : 0.0f;
      RowSums sums;
      sums.a = team_.Sum(sum);
      const float factor = Rule::Factor(hyper, sums, table_.dim, &slot);
      if (has_slot && team_.lane == 0) {
        __stcs(static_cast<float*>(Slot(0)) + RowOf(place), slot);
      }
      return factor;
    }

    __device__ void UpdateColumns(const Hyper& hyper, float factor, int s, const Gradient& g) {
      const uint32_t row = RowOf(s);
      const int32_t column = ColumnOf(s);
      const int64_t at = row * table_.dim + column;
      float slots[kMaxSlots][kSize] = {};
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (Slot(k) == nullptr) continue;
#pragma unroll
        for (int w = 0; w < kSlotWords; ++w) {
          float values[kFloats];
          if (k < kCopiedSlots) {
            const Columns word{Word(s, 2 + k * kSlotWords + w)};
#pragma unroll
            for (int i = 0; i < kFloats; ++i) values[i] = word[i];
          } else {
            ReadColumns<float>(Slot(k), at + w * kFloats, values);
          }
#pragma unroll
          for (int i = 0; i < kFloats; ++i) slots[k][w * kFloats + i] = values[i];
        }
      }
      const Vector x{Word(s, 1)};
      float updated[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        updated[j] = DecayRow(hyper, x[j]);
        float of_column[kMaxSlots] = {slots[0][j], slots[1][j], slots[2][j]};
        Rule::Update(hyper, factor, g.of[j], updated[j], of_column);
#pragma unroll
        for (int k = 0; k < kMaxSlots; ++k) slots[k][j] = of_column[k];
      }
      if constexpr (sizeof(T) == 2) {
        if (common_.stochastic_rounding)
          RoundColumns<T>(hyper, table_.keys.Of(row), column, updated);
      }
      Vector::Round(updated).Stream(Rows() + at);
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (Slot(k) == nullptr) continue;
#pragma unroll
        for (int w = 0; w < kSlotWords; ++w) {
          float values[kFloats];
#pragma unroll
          for (int i = 0; i < kFloats; ++i) values[i] = slots[k][w * kFloats + i];
          WriteColumns<float>(Slot(k), at + w * kFloats, values);
        }
      }
    }

    static constexpr int kFloats = sizeof(VectorWord) / sizeof(float);  // of a slot, in a word
    using Columns = group_embedding::Vector<float, sizeof(VectorWord)>;

    const ReduceArgs& args_;
    const uint32_t first_key_;
    const Table& table_;
    const Common& common_;
    const group_embedding::Team& team_;
    Shared& shared_;
    uint32_t rows_[kMaxTaken];  // that were started
  };
};

}  // namespace group_embedding
