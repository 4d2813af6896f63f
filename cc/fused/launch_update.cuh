// Which kernels update which tables.
#pragma once

#include "fused/launch_reduce.cuh"
#include "fused/launch_update.h"
#include "fused/stream_rows.cuh"
#include "fused/update_any_table.cuh"
#include "fused/update_plain_table.cuh"

namespace group_embedding {

using PlainRules = RuleList<Sgd, Adagrad, RowwiseAdagrad, Adam>;

// Calls `body` with the sink of plain tables for the rule, if there is one.
template <typename T, typename Body, typename... Rules>
void ForPlainSink(RuleIndex rule, RuleList<Rules...>, Body&& body) {
  ForRule(rule, [&](auto chosen) {
    if constexpr ((std::is_same_v<decltype(chosen), Rules> || ...)) {
      body(ApplyPlainRule<T, decltype(chosen)>{});
    }
  });
}

template <typename T>
cudaError_t LaunchUpdate(const Group& group, const SortedRows& sorted, const Update& update,
                         void* scratch, cudaStream_t stream) {
  const RuleArgs args = RuleArgs::Of(update);
  std::vector<RuleTable<T>> sinks;
  std::vector<int64_t> alignments;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const TableUpdate& table = update.tables[t];
    RuleTable<T> sink{static_cast<T*>(table.rows), {}, group.tables[t].dim, table.keys};
    int64_t alignment = Alignment(table.rows);
    for (int k = 0; k < kMaxSlots; ++k) {
      sink.slots[k] = table.slots[k];
      // Slots of twice the size are read in words of twice the size, and of half in words of half.
      const int64_t slot_bytes = SizeOf(args.slot_dtype), row_bytes = sizeof(T);
      if (k != args.row_slot) alignment |= Alignment(table.slots[k]) * row_bytes / slot_bytes;
    }
    sinks.push_back(sink);
    alignments.push_back(alignment);
  }
  int64_t max_plain_columns = 0;
  if (args.has_float_slots() && !sorted.has_wide_keys) {
    ForPlainSink<T>(update.rule, PlainRules{},
                    [&](auto sink) { max_plain_columns = decltype(sink)::kMaxColumns; });
  }
  ReducePlan plan = PlanReduce(group, alignments, max_plain_columns);
  if (plan.max_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  ReduceLauncher<T> launcher(group, sorted, &plan, sinks, scratch, stream);
  auto for_plain = [&](auto&& body) { ForPlainSink<T>(update.rule, PlainRules{}, body); };
  if (plan.has[kOneWord]) {
    for_plain([&](auto sink) {
      using Sink = decltype(sink);
      launcher.template ReduceWith<Sink>(args, [](auto weighting) {
        return StreamRowsKernel<T, decltype(weighting)::value, typename Sink::UpdateRule>;
      });
    });
  }
  if (plan.has[kFewWords]) {
    for_plain([&](auto sink) { launcher.template Reduce<decltype(sink)>(args); });
  }
  if (plan.has[kAnyTable]) launcher.template Reduce<ApplyRule<T>>(args);
  launcher.AddPieces();
  if (plan.HasPlain()) {
    for_plain([&](auto sink) { launcher.template TakeLongRows<decltype(sink)>(args); });
  }
  if (plan.has[kAnyTable]) launcher.template TakeLongRows<ApplyRule<T>>(args);
  return launcher.End();
}

}  // namespace group_embedding
