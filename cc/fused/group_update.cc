#include "fused/group_update.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "fused/row_gradients.h"
#include "optimizer/apply_rule.h"

namespace group_embedding {
namespace {

// Gradients are made for so many floats of rows before these are updated. Two short loops have
// more of the table's rows under way together than one that does both for each row.
constexpr int64_t kFloatsAtOnce = 512;

template <typename Rule, typename T, typename S>
void UpdateRows(const RowSorter& sorter, const RowRun& run, const Update& update) {
  const int64_t dim = sorter.group().tables[run.table].dim;
  const int64_t first_row = update.tables[run.table].first_row;
  const int64_t rows_at_once = std::max<int64_t>(1, kFloatsAtOnce / dim);
  RowUpdater<Rule, T, S> update_row(update, run.table, dim);
  RowGradients<T> gradients(sorter, run);
  std::vector<float> gradient(rows_at_once * dim);
  std::vector<int64_t> rows(rows_at_once);
  for (int64_t count = rows_at_once; count == rows_at_once;) {
    for (count = 0; count < rows_at_once && gradients.Next(gradient.data() + count * dim);) {
      if (gradients.row() < first_row) continue;
      rows[count] = gradients.row();
      update_row.Fetch(rows[count++]);
    }
    for (int64_t r = 0; r < count; ++r) update_row(rows[r], gradient.data() + r * dim);
  }
}

}  // namespace

int64_t GroupUpdateWorkspaceBytes(const Group& group) { return RowSorter::WorkspaceBytes(group); }

void GroupUpdateCpu(const Group& group, const Update& update, void* workspace,
                    const ParallelFor& parallel_for) {
  if (update.hyper->apply == 0) return;
  std::vector<Feature> features(group.features, group.features + group.num_features);
  for (Feature& feature : features) {
    if (update.tables[feature.table].rows == nullptr) feature.output = nullptr;
  }
  Group updated = group;
  updated.features = features.data();
  RowSorter sorter(updated, workspace, parallel_for);
  std::vector<RowRun>& runs = sorter.runs();
  ForUpdate(update.rule, group.dtype, update.slot_dtype, [&](auto rule, auto* row, auto* slot) {
    using T = std::remove_pointer_t<decltype(row)>;
    using S = std::remove_pointer_t<decltype(slot)>;
    parallel_for(static_cast<int64_t>(runs.size()), sorter.CostOfRun(/*passes=*/3),
                 [&](int64_t begin, int64_t end) {
                   std::vector<RowEntry> spare;
                   for (int64_t r = begin; r < end; ++r) {
                     sorter.Sort(&runs[r], &spare);
                     UpdateRows<decltype(rule), T, S>(sorter, runs[r], update);
                   }
                 });
  });
}

}  // namespace group_embedding
