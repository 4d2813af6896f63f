#include "fused/group_update.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "fused/row_gradients.h"
#include "optimizer/apply_rule.h"

namespace group_embedding {
namespace {

// Gradients are made for so many floats of rows at once, and meanwhile the rows before those are
// fetched, which then are updated. Summing leaves memory idle and updating does not: lines fetched
// while rows were updated came later.
constexpr int64_t kFloatsAtOnce = 512;

// Some rows of a run, ascending, with their gradients.
class RowBatch {
 public:
  // Empties it, for rows of that dim; its memory serves the next run.
  void Clear(int64_t dim) {
    dim_ = dim;
    space_ = std::max<int64_t>(1, kFloatsAtOnce / dim);
    count_ = 0;
    if (space_ > static_cast<int64_t>(rows_.size())) rows_.resize(space_);
    if (space_ * dim > static_cast<int64_t>(gradients_.size())) gradients_.resize(space_ * dim);
  }

  // Takes the next rows, none before `first_row`, and calls before_each() for each.
  template <typename T, typename BeforeEach>
  void Fill(RowGradients<T>* gradients, int64_t first_row, const BeforeEach& before_each) {
    for (count_ = 0; count_ < space_ && gradients->Next(gradient(count_));) {
      before_each();
      rows_[count_] = gradients->row();
      count_ += gradients->row() >= first_row;
    }
  }

  int64_t count() const { return count_; }
  int64_t row(int64_t r) const { return rows_[r]; }
  float* gradient(int64_t r) { return gradients_.data() + r * dim_; }

 private:
  int64_t dim_ = 0, space_ = 0, count_ = 0;
  std::vector<int64_t> rows_;
  std::vector<float> gradients_;
};

// The memory of a thread.
struct Scratch {
  std::vector<RowEntry> entries;
  RowBatch now, next;
};

template <typename Rule, typename T, typename S>
void UpdateRows(const RowSorter& sorter, const RowRun& run, const Update& update,
                Scratch* scratch) {
  const int64_t dim = sorter.group().tables[run.table].dim;
  const int64_t first_row = update.tables[run.table].first_row;
  RowUpdater<Rule, T, S> update_row(update, run.table, dim);
  RowGradients<T> gradients(sorter, run);
  RowBatch &now = scratch->now, &next = scratch->next;
  now.Clear(dim);
  next.Clear(dim);
  now.Fill(&gradients, first_row, [] {});
  while (now.count() > 0) {
    update_row.Aim(now.row(0), now.row(now.count() - 1), now.count());
    int64_t fetched = 0;
    auto fetch_one = [&] {
      if (fetched < now.count()) update_row.Fetch(now.row(fetched++));
    };
    next.Fill(&gradients, first_row, fetch_one);
    while (fetched < now.count()) fetch_one();
    for (int64_t r = 0; r < now.count(); ++r) update_row(now.row(r), now.gradient(r));
    std::swap(now, next);
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
                   Scratch scratch;
                   for (int64_t r = begin; r < end; ++r) {
                     sorter.Sort(&runs[r], &scratch.entries);
                     UpdateRows<decltype(rule), T, S>(sorter, runs[r], update, &scratch);
                   }
                 });
  });
}

}  // namespace group_embedding
