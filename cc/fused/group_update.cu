#include "fused/group_update.h"
#include "fused/launch_reduce.cuh"
#include "fused/update_any_table.cuh"
#include "fused/update_plain_table.cuh"

namespace group_embedding {
namespace {

using PlainRules = RuleList<Sgd, Adagrad, RowwiseAdagrad, Adam>;

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
  int64_t max_plain_columns = 0;
  if (args.has_float_slots && !sorted.has_wide_keys) {
    ForPlainSink<T>(update.rule, PlainRules{},
                    [&](auto sink) { max_plain_columns = decltype(sink)::kMaxTaken; });
  }
  ReducePlan plan = PlanReduce(group, alignments, max_plain_columns);
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
  std::vector<int64_t> first_rows;
  for (int64_t t = 0; t < group.num_tables; ++t) first_rows.push_back(update.tables[t].first_row);
  SortedRows sorted;
  SortOptions options;
  options.first_rows = first_rows.data();
  const cudaError_t error = SortRowsCuda(updated, workspace, &sorted, stream, options);
  if (error != cudaSuccess) return error;
  void* scratch = static_cast<char*>(workspace) + SortRowsWorkspaceBytesCuda(group);
  return ForDeviceType(group.dtype, [&](auto* type) {
    return Apply<std::remove_pointer_t<decltype(type)>>(updated, sorted, update, scratch, stream);
  });
}

}  // namespace group_embedding
