// The update of plain tables, row by row as their gradients come.
//
// A thread has one word of 16 bytes of a row. Where a row ends among the sorted entries, the row
// and its slots are loaded beside the gradients of its last entries, and written back at once: a
// row takes few instructions, which are what limits rows of few entries.
#pragma once

#include "fused/plain_slots.cuh"
#include "fused/reduce_rows.cuh"

namespace group_embedding {

// Loads a word that is read once, or returns zeros. It has no branch, as LoadIf.
__device__ inline uint4 LoadOnceIf(bool condition, const void* from) {
  uint4 word;
  asm volatile(
      "{.reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0;"
      " mov.u32 %3, 0; @p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
      : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}

// How rows of a team's table are updated by a rule known at compile time, with float32 slots.
template <typename T, typename Rule>
class StreamedRule {
 public:
  using Word = Vector<T, 16>;
  static constexpr int kSize = Word::kSize;  // columns of a thread
  using Slots = PlainSlots<T, Rule>;
  static constexpr bool kHasRowSlot = Slots::kHasRowSlot;
  static constexpr int kSlots = Slots::kSlots, kLoadedSlots = Slots::kLoadedSlots;
  static constexpr int kSlotWords = Slots::kSlotWords;
  static constexpr int kWords = 1 + kLoadedSlots * kSlotWords;
  // Entries in flight: as many as registers allow.
  static constexpr int kRows = kLoadedSlots > 0 ? 1 : kHasRowSlot || sizeof(T) == 2 ? 2 : 3;
  static constexpr int kBlocks = kWords > 3 ? 3 : 4;  // at most, on a multiprocessor

  // What a thread has of a row before it is updated.
  struct Landing {
    uint4 words[kWords];
    float row_slot;
  };

  // In shared memory, and read again for each flight: registers are what more rows in flight need.
  struct Shared {
    Hyper hyper;
    RuleTable<T> table;
  };

  __device__ StreamedRule(const Shared& shared, bool stochastic_rounding, const Team& team)
      : shared_(shared),
        stochastic_rounding_(stochastic_rounding),
        team_(team),
        column_(team.lane * kSize) {}

  __device__ __forceinline__ void Load(bool condition, uint32_t row, Landing* landing) const {
    const bool has_column = column_ < Dim();
    const int64_t at = uint64_t{row} * Dim() + column_;
    landing->words[0] = LoadOnceIf(condition && has_column, Rows() + at);
#pragma unroll
    for (int k = 0; k < kLoadedSlots; ++k) {
      const float* slot = static_cast<const float*>(Slot(k));
#pragma unroll
      for (int w = 0; w < kSlotWords; ++w) {
        landing->words[1 + k * kSlotWords + w] =
            LoadOnceIf(condition && has_column && slot != nullptr, slot + at + 4 * w);
      }
    }
    if (kHasRowSlot && condition && Slot(0) != nullptr) {
      landing->row_slot = static_cast<const float*>(Slot(0))[row];
    }
  }

  // Updates those rows that have a bit in `which`, from their gradients. All of them are worked on
  // together, as each waits for several results one after the other. All threads of the team call
  // it together.
  __device__ __forceinline__ void Update(unsigned which, const uint32_t (&rows)[kRows],
                                         const Word (&gradients)[kRows],
                                         const Landing (&landings)[kRows]) const {
    ReadAgain();
    const Hyper& hyper = shared_.hyper;
    float factors[kRows];
    if constexpr (Rule::kNeedsRow) {
      FactorsOfRows(hyper, which, rows, gradients, landings, factors);
    } else {
      const float factor = Rule::Factor(hyper);
#pragma unroll
      for (float& of_row : factors) of_row = factor;
    }
    if (column_ >= Dim()) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (which >> i & 1) UpdateColumns(hyper, rows[i], gradients[i], landings[i], factors[i]);
    }
  }

 private:
  __device__ T* Rows() const { return shared_.table.rows; }
  __device__ void* Slot(int k) const { return shared_.table.slots[k]; }
  __device__ uint32_t Dim() const { return static_cast<uint32_t>(shared_.table.dim); }
  __device__ static void ReadAgain() { asm volatile("" ::: "memory"); }

  // No rule here looks at the row itself.
  __device__ __forceinline__ void FactorsOfRows(const Hyper& hyper, unsigned which,
                                                const uint32_t (&rows)[kRows],
                                                const Word (&gradients)[kRows],
                                                const Landing (&landings)[kRows],
                                                float (&factors)[kRows]) const {
    const bool has_slot = kHasRowSlot && Slot(0) != nullptr;
    float sums[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums[i] = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float g = PrepareGradient(hyper, gradients[i][j]);
        const float of_column = Rule::Sum(hyper, g, 0.0f, static_cast<float*>(nullptr)).a;
        sums[i] = __fadd_rn(sums[i], column_ < Dim() ? of_column : 0.0f);
      }
    }
    for (int offset = team_.size / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (float& sum : sums) sum += __shfl_xor_sync(team_.mask, sum, offset);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float slot = has_slot ? landings[i].row_slot : 0.0f;
      RowSums of_row;
      of_row.a = sums[i];
      factors[i] = Rule::Factor(hyper, of_row, shared_.table.dim, &slot);
      if (has_slot && team_.lane == 0 && (which >> i & 1)) {
        __stcs(static_cast<float*>(Slot(0)) + rows[i], slot);
      }
    }
  }

  __device__ __forceinline__ void UpdateColumns(const Hyper& hyper, uint32_t row,
                                                const Word& gradient, const Landing& landing,
                                                float factor) const {
    const int64_t at = uint64_t{row} * Dim() + column_;
    float slots[kMaxSlots][kSize] = {};
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (Slot(k) == nullptr) continue;
#pragma unroll
      for (int w = 0; w < kSlotWords; ++w) {
        float values[4];
        if (k < kLoadedSlots) {
          const Vector<float, 16> word{landing.words[1 + k * kSlotWords + w]};
#pragma unroll
          for (int i = 0; i < 4; ++i) values[i] = word[i];
        } else {
          ReadColumns<float>(Slot(k), at + w * 4, values);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) slots[k][w * 4 + i] = values[i];
      }
    }
    const Word x{landing.words[0]};
    float updated[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      updated[j] = DecayRow(hyper, x[j]);
      float of_column[kMaxSlots] = {slots[0][j], slots[1][j], slots[2][j]};
      Rule::Update(hyper, factor, PrepareGradient(hyper, gradient[j]), updated[j], of_column);
#pragma unroll
      for (int k = 0; k < kMaxSlots; ++k) slots[k][j] = of_column[k];
    }
    if constexpr (sizeof(T) == 2) {
      if (stochastic_rounding_) {
        RoundColumns<T>(hyper, shared_.table.keys.Of(row), column_, updated);
      }
    }
    Word::Round(updated).Stream(Rows() + at);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (Slot(k) == nullptr) continue;
#pragma unroll
      for (int w = 0; w < kSlotWords; ++w) {
        float values[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = slots[k][w * 4 + i];
        WriteColumns<float>(Slot(k), at + w * 4, values);
      }
    }
  }

  const Shared& shared_;
  const bool stochastic_rounding_;
  const Team& team_;
  const uint32_t column_;
};

// Adds up the entries of a window, and updates each row where its last entry is.
template <typename T, typename Rule, Weighting weighting>
__device__ __forceinline__ void StreamWindow(const ReduceArgs& args, const ReduceTask& task,
                                             const Team& team, const Window& window,
                                             const StreamedRule<T, Rule>& rule) {
  using Streamed = StreamedRule<T, Rule>;
  using Word = Vector<T, 16>;
  constexpr int kRows = Streamed::kRows;
  const bool has_column = team.lane < task.shape.num_vectors;
  const GradientSource<weighting> source{args, task, team.lane * 16};
  const uint32_t* keys = static_cast<const uint32_t*>(args.sorted.keys);
  const auto first_key = static_cast<uint32_t>(task.first_key);
  float sum[Word::kSize] = {};
  typename GradientSource<weighting>::Fetched fetched[kRows];
  uint32_t key[kRows + 1];
  auto fetch = [&](uint32_t from) {
#pragma unroll
    for (int i = 0; i <= kRows; ++i) {
      if (from + i >= window.end) continue;
      if (i < kRows) fetched[i] = source.Fetch(from + i);
      key[i] = __ldg(keys + from + i);
    }
  };
  fetch(window.begin);
#pragma unroll 1
  for (uint32_t at = window.begin; at < window.end; at += kRows) {
    const char* places[kRows];
    Word vectors[kRows];
    float weights[kRows];
    uint32_t rows[kRows];
    typename Streamed::Landing landings[kRows];
    unsigned ends = 0;  // a bit per entry that is the last of a row, or of the window
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      weights[i] = source.Weight(fetched[i]);
      places[i] = source.Row(fetched[i]);
      rows[i] = key[i] - first_key;
      const bool is_last = at + i + 1 == window.end;
      const bool is_end = is_last || (at + i + 1 < window.end && key[i + 1] != key[i]);
      ends |= static_cast<unsigned>(is_end) << i;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      vectors[i] = Word::LoadIf(at + i < window.end && has_column, places[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) rule.Load(ends >> i & 1, rows[i], &landings[i]);
    fetch(at + kRows);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Word::kSize; ++j) {
        sum[j] = weighting == Weighting::kNone ? sum[j] + vectors[i][j]
                                               : fmaf(weights[i], vectors[i][j], sum[j]);
      }
      if (!(ends >> i & 1)) continue;
      vectors[i] = Word::Round(sum);
#pragma unroll
      for (float& value : sum) value = 0;
    }
    if (ends != 0) rule.Update(ends, rows, vectors, landings);
  }
}

// As ReduceRowsKernel, for tables of kOneWord.
template <typename T, Weighting weighting, typename Rule>
__global__ void __launch_bounds__(kReduceThreads, (StreamedRule<T, Rule>::kBlocks))
    StreamRowsKernel(const __grid_constant__ ReduceArgs args, const RuleTable<T>* sinks,
                     const __grid_constant__ RuleArgs common) {
  __shared__ typename StreamedRule<T, Rule>::Shared shared;
  const TableBlock at = FindTableBlock(args, kOneWord);
  if (at.table < 0 || __ldg(&common.hyper->apply) == 0) return;
  if (threadIdx.x == 0) shared = {ReadHyper(common.hyper), sinks[at.table]};
  __syncthreads();
  const ReduceTask task = args.tasks[at.table];
  const Team team(task.shape.team_bits);
  const int64_t index = WindowOf(args, task, at.table, at.block, team);
  if (index < 0) return;
  const Window window = FindWindow(args, at.table, index);
  ReducePieces<Vector<T, 16>, weighting>(args, task, team, at.table, index, window);
  const StreamedRule<T, Rule> rule(shared, common.stochastic_rounding, team);
  StreamWindow<T, Rule, weighting>(args, task, team, window, rule);
}

}  // namespace group_embedding
