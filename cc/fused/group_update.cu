#include "fused/group_update.h"
#include "fused/launch_reduce.cuh"
#include "optimizer/apply_rule.cuh"

namespace group_embedding {
namespace {

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

// The sink that updates the row of the gradient. A team keeps the gradients of several rows in
// shared memory; then those rows and their slots are read together.
template <typename T>
struct ApplyRule {
  using Table = RuleTable<T>;
  using Common = RuleArgs;
  using Shared = TakenRows;
  static constexpr bool kTakesRow = false;
  static constexpr bool kPlain = false;
  static constexpr int kBlocks = 3;
  static constexpr int64_t kMaxTaken = kTakenRows;
  __device__ static bool IsActive(const Common& common) { return __ldg(&common.hyper->apply) != 0; }
  __device__ static bool NeedsRow(const Common& common) { return common.needs_row; }

  template <typename Vector>
  class Team {
   public:
    __device__ Team(const ReduceArgs& args, int32_t table, const Table& sink, const Common& common,
                    const group_embedding::Team& team, Shared& shared)
        : args_(args),
          task_(args.tasks[table]),
          table_(sink),
          common_(common),
          team_(team),
          shared_(shared) {}

    __device__ void Take(int s, int64_t, int64_t, int32_t, bool,
                         const float (&sum)[Vector::kSize]) {
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
    // Of a wide row.
    RowSums sums_;
    float factor_ = 0;
  };
};

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

using PlainRules = RuleList<Sgd, Adagrad, RowwiseAdagrad, Adam>;

template <typename... Rules>
bool IsPlainRule(RuleIndex rule, RuleList<Rules...>) {
  bool is_plain = false;
  ForRule(rule, [&](auto chosen) { is_plain = (std::is_same_v<decltype(chosen), Rules> || ...); });
  return is_plain;
}

// Calls `body` with the sink of plain tables for the rule.
template <typename T, typename Body, typename... Rules>
void ForPlainSink(RuleIndex rule, RuleList<Rules...>, Body&& body) {
  ForRule(rule, [&](auto chosen) {
    if constexpr ((std::is_same_v<decltype(chosen), Rules> || ...)) {
      body(ApplyPlainRule<T, decltype(chosen)>{});
    }
  });
}

template <typename T>
cudaError_t Apply(const Group& group, const SortedRows& sorted, const Update& update, void* scratch,
                  cudaStream_t stream) {
  const RuleArgs args = RuleArgs::Of(update);
  std::vector<RuleTable<T>> sinks;
  std::vector<int64_t> alignments;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const TableUpdate& table = update.tables[t];
    RuleTable<T> sink{static_cast<T*>(table.rows), {}, group.tables[t].dim};
    int64_t alignment = Alignment(table.rows);
    for (int k = 0; k < kMaxSlots; ++k) {
      sink.slots[k] = table.slots[k];
      // Slots of twice the size are read in words of twice the size.
      const int64_t times = args.has_float_slots ? 4 / static_cast<int64_t>(sizeof(T)) : 1;
      if (!args.has_slot_per_row) alignment |= Alignment(table.slots[k]) / times;
    }
    sinks.push_back(sink);
    alignments.push_back(alignment);
  }
  const bool may_be_plain =
      args.has_float_slots && !sorted.has_wide_keys && IsPlainRule(update.rule, PlainRules{});
  ReducePlan plan = PlanReduce(group, alignments, may_be_plain);
  if (plan.max_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  ReduceLauncher<T> launcher(group, sorted, &plan, sinks, scratch, stream);
  auto segments_and_pieces = [&](auto sink) {
    using Sink = decltype(sink);
    if constexpr (!Sink::kPlain) {  // one for all weightings: these take long to compile
      launcher.template Segments<Sink, Weighting::kClipping>(args);
    } else if (plan.weighting == Weighting::kNone) {
      launcher.template Segments<Sink, Weighting::kNone>(args);
      return launcher.template Pieces<Sink, Weighting::kNone>(args);
    } else {
      launcher.template Segments<Sink, Weighting::kWeights>(args);
    }
    launcher.template Pieces<Sink, Weighting::kWeights>(args);
  };
  auto long_rows = [&](auto sink) { launcher.template TakeLongRows<decltype(sink)>(args); };
  if (plan.any_plain) ForPlainSink<T>(update.rule, PlainRules{}, segments_and_pieces);
  if (plan.any_other) segments_and_pieces(ApplyRule<T>{});
  launcher.AddPieces();
  if (plan.any_plain) ForPlainSink<T>(update.rule, PlainRules{}, long_rows);
  if (plan.any_other) long_rows(ApplyRule<T>{});
  return launcher.error();
}

}  // namespace

int64_t GroupUpdateWorkspaceBytesCuda(const Group& group) {
  return SortRowsWorkspaceBytesCuda(group) + ReduceScratchBytes<ApplyRule<float>>(group);
}

cudaError_t GroupUpdateCuda(const Group& group, const Update& update, void* workspace,
                            cudaStream_t stream) {
  if (group.batch.num_ids == 0) return cudaSuccess;
  // The ids of a table that stays as it is need not be sorted.
  std::vector<Feature> features(group.features, group.features + group.num_features);
  for (Feature& feature : features) {
    if (update.tables[feature.table].rows == nullptr) feature.output = nullptr;
  }
  Group updated = group;
  updated.features = features.data();
  SortedRows sorted;
  if (const cudaError_t error = SortRowsCuda(updated, workspace, &sorted, stream)) return error;
  void* scratch = static_cast<char*>(workspace) + SortRowsWorkspaceBytesCuda(group);
  return ForDeviceType(group.dtype, [&](auto* type) {
    return Apply<std::remove_pointer_t<decltype(type)>>(updated, sorted, update, scratch, stream);
  });
}

}  // namespace group_embedding
