// The sink that updates rows by any rule, of any table.
#pragma once

#include "fused/reduce_rows.cuh"
#include "optimizer/apply_rule.cuh"

namespace group_embedding {

inline constexpr int kTakenRows = 4;

// The gradients that threads took, each for itself alone: a vector of each row, rounded to the type
// of the rows.
struct TakenRows {
  uint4 gradients[kTakenRows][kReduceThreads];
};

// The rows that a team took, and how a thread takes part in their update.
struct Landing {
  int64_t first;  // unique row, over all tables
  int count;
  int pass;
  int num_columns;  // of the thread's vector
  int32_t column;   // the first of them
  bool has_column;  // otherwise the thread only helps to add up
  bool is_wide;     // a row has more columns than the team's threads have now
  float factor;     // of a wide row
};

// The update of the rows that a warp's teams have taken: kBatch rows of each team are read before
// the first is written, and kWidth columns of a thread at a time. Returns the thread's part of the
// sums of a wide row, in the pass that asks for them.
template <typename T, int kWidth>
__device__ __noinline__ RowSums UpdateRows(const ReduceArgs& reduce, const ReduceTask& task,
                                           const RuleTable<T>& table, const RuleArgs& args,
                                           const Landing& landing, const TakenRows& taken) {
  constexpr int kBatch = 2;
  const Team team(task.shape.team_bits);
  const bool finds_factors = args.needs_row && (!landing.is_wide || landing.pass == kSumOfRow);
  RuleColumns<T, kWidth> columns[kBatch];
  int64_t rows[kBatch];
  RowSums wide_sums;
  auto read = [&](int s, int64_t row, int j, RuleColumns<T, kWidth>& to) {
    const T* gradient = reinterpret_cast<const T*>(&taken.gradients[s][threadIdx.x]) + j;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to.g[i] = ToFloat(gradient[i]);
    to.Read(args, table, row * table.dim + landing.column + j);
  };
  for (int first = 0; __any_sync(kFullWarp, first < landing.count); first += kBatch) {
    float factors[kBatch], row_slots[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool is_there = first + b < landing.count;
      rows[b] = is_there ? reduce.RowOf(task, landing.first + first + b) : -1;
      factors[b] = landing.factor;
      row_slots[b] =
          finds_factors && is_there && !landing.is_wide ? ReadRowSlot(args, table, rows[b]) : 0.0f;
    }
    if (finds_factors) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        RowSums sums;
        const bool adds = rows[b] >= 0 && landing.has_column;
#pragma unroll 1
        for (int j = 0; adds && j < landing.num_columns; j += kWidth) {
          read(first + b, rows[b], j, columns[b]);
          ForRule(args.rule, [&](auto rule) {
            if constexpr (decltype(rule)::kNeedsRow) {
              const Hyper hyper = ReadHyper(args.hyper);
              columns[b].Prepare(hyper);
              columns[b].template AddTo<decltype(rule)>(hyper, &sums);
            }
          });
        }
        wide_sums = {wide_sums.a + sums.a, wide_sums.b + sums.b};
        if (landing.is_wide) continue;
        sums = {team.Sum(sums.a), team.Sum(sums.b)};
        factors[b] = FactorOfRow(args, sums, table.dim, &row_slots[b]);
        if (rows[b] >= 0 && team.lane == 0) WriteRowSlot(args, table, rows[b], row_slots[b]);
      }
      if (landing.is_wide) continue;
    }
#pragma unroll 1
    for (int j = 0; landing.has_column && j < landing.num_columns; j += kWidth) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (rows[b] >= 0) read(first + b, rows[b], j, columns[b]);
      }
      ForRule(args.rule, [&](auto rule) {
        const Hyper hyper = ReadHyper(args.hyper);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          RowSums known;
          columns[b].Prepare(hyper);
          columns[b].template AddTo<decltype(rule)>(hyper, &known);
          columns[b].template Update<decltype(rule)>(hyper, factors[b]);
        }
      });
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (rows[b] < 0) continue;
        columns[b].Write(args, table, rows[b], rows[b] * table.dim + landing.column + j);
      }
    }
  }
  return wide_sums;
}

// The sink that updates rows by their gradients. A team keeps the gradients of several rows in
// shared memory, then reads these rows and their slots together.
template <typename T>
struct ApplyRule {
  using Table = RuleTable<T>;
  using Common = RuleArgs;
  using Shared = TakenRows;
  static constexpr TableKind kKind = kAnyTable;
  static constexpr int kBlocks = 3;
  static constexpr int64_t kMaxTaken = kTakenRows;
  __device__ static bool IsActive(const Common& common) { return __ldg(&common.hyper->apply) != 0; }
  __device__ static bool NeedsRow(const Common& common) { return common.needs_row; }

  template <typename Vector, bool kAtOnce>
  class Team {
    static_assert(!kAtOnce);

   public:
    __device__ Team(const ReduceArgs& args, int32_t table, const Table& sink, const Common& common,
                    const group_embedding::Team& team, Shared& shared)
        : args_(args),
          task_(args.tasks[table]),
          table_(sink),
          common_(common),
          team_(team),
          shared_(shared) {}

    __device__ void Start(int64_t, int, int, int32_t, bool) {}

    __device__ void Take(int s, int64_t, int32_t, bool, const float (&sum)[Vector::kSize]) {
      *reinterpret_cast<Vector*>(&shared_.gradients[s][threadIdx.x]) = Vector::Round(sum);
    }

    __device__ void Finish(int pass, int64_t first, int count, int32_t column, bool has_column) {
      const Landing landing{
          first,  count, pass, Vector::kSize, column, has_column, task_.shape.num_columns > 1,
          factor_};
      const RowSums sums = UpdateRows < T,
                    Vector::kSize % 4 == 0 ? 4
                                           : 1 > (args_, task_, table_, common_, landing, shared_);
      sums_ = {sums_.a + sums.a, sums_.b + sums.b};
    }

    __device__ void EndSum(int64_t unique, bool is_there) {
      const RowSums sums{team_.Sum(sums_.a), team_.Sum(sums_.b)};
      const int64_t row = is_there ? args_.RowOf(task_, unique) : 0;
      float slot = is_there ? ReadRowSlot(common_, table_, row) : 0.0f;
      __syncwarp(team_.mask);
      factor_ = FactorOfRow(common_, sums, table_.dim, &slot);
      if (is_there && team_.lane == 0) WriteRowSlot(common_, table_, row, slot);
      sums_ = {};
    }

   private:
    const ReduceArgs& args_;
    const ReduceTask& task_;
    const RuleTable<T>& table_;
    const Common& common_;
    const group_embedding::Team& team_;
    Shared& shared_;
    // The sums of a row that is wider than the team.
    RowSums sums_;
    float factor_ = 0;
  };
};

}  // namespace group_embedding
