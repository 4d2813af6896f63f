// The first step of a backward pass on the host: the looked-up ids of a batch, sorted by table and
// row. The CUDA version is SortRowsCuda in group_lookup_grad.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "fused/feature_pieces.h"
#include "fused/group_lookup.h"

namespace group_embedding {

// The upper bits hold a looked-up row, the lower bits the source of its gradient: the sample or, in
// a batch with weights, the position in batch.ids. Sorting keeps the order of the entries of one
// row.
using RowEntry = uint64_t;

// Entries of one table whose rows no other run has: what one thread sorts and walks at a time.
struct RowRun {
  int64_t table;
  int64_t begin, end;       // of its ids among the group's; once sorted, of those with a gradient
  int bits;                 // significant bits of the rows, as far as they differ
  bool is_expanded;         // its entries are written, but not yet sorted
  const RowEntry* entries;  // [end - begin] once sorted
  int64_t num_unique;       // rows; set by CountRows
  int64_t first_unique;     // rows of the table in the runs before this one; set by SumRows
};

// Decodes the entries of a run.
struct RowEntries {
  const uint32_t* samples;  // [num_ids] the sample of each position; null: a source is a sample
  const float* scales;      // [num_samples] of a sample after its combiner, 1, 1 / sum w or
                            // 1 / sqrt(sum w^2); null: all are 1
  int source_bits;

  int64_t RowOf(RowEntry entry) const { return static_cast<int64_t>(entry >> source_bits); }
  int64_t SourceOf(RowEntry entry) const {
    return static_cast<int64_t>(entry & ((RowEntry{1} << source_bits) - 1));
  }
};

// Sorts the ids of a group in two steps, so that a run may be walked while it is in the cache.
//
//   RowSorter sorter(group, workspace, parallel_for);    cuts the ids into runs
//   sorter.Sort(&sorter.runs()[r], &scratch);            by any thread, once for each run
//
// A row that a sample's lookup left out, or read as zeros, has no entry, and neither has a feature
// whose `output` is null.
class RowSorter {
 public:
  // A row and a source share an entry: no table of the group may have more rows than this.
  static int64_t MaxRows(const Group& group);
  static int64_t WorkspaceBytes(const Group& group);
  RowSorter(const Group& group, void* workspace, const ParallelFor& parallel_for);

  std::vector<RowRun>& runs() { return runs_; }
  const std::vector<RowRun>& runs() const { return runs_; }

  // `scratch`: any memory of the calling thread, grown as needed. With the workspace it comes to 16
  // bytes per id, over all threads, and half a megabyte per thread. A run's entries may lie in it,
  // and are there until its next use: what a thread sorts and walks stays in its cache.
  void Sort(RowRun* run, std::vector<RowEntry>* scratch) const;
  // As Sort, but the entries stay valid until the RowSorter is destroyed.
  void SortToKeep(RowRun* run, std::vector<RowEntry>* scratch) const;

  // Who writes a gradient per unique row counts these: those of a run, once it is sorted, and then
  void CountRows(RowRun* run) const;
  // those of each table: [num_tables + 1], each the sum of those before.
  std::vector<int64_t> SumRows();

  // For ParallelFor over the runs, if each element of their rows is touched `passes` times.
  int64_t CostOfRun(int64_t passes) const;

  const Group& group() const { return group_; }
  const std::vector<int64_t>& features_of(int64_t table) const { return features_of_[table]; }
  RowEntries entries() const { return {samples_, scales_, source_bits_}; }

 private:
  void AddRuns(int64_t table, int64_t begin, int64_t end, const ParallelFor& parallel_for);
  void SplitTable(int64_t table, int64_t begin, int64_t end, const ParallelFor& parallel_for);
  template <typename Use>
  void ForEachRow(const FeaturePiece& piece, const Use& use) const;
  template <typename Use>
  void Expand(const FeaturePiece& piece, const Use& use) const;
  void ExpandSorted(RowRun* run, RowEntry* to, RowEntry* spare) const;
  void SortExpanded(RowRun* run, std::vector<RowEntry>* scratch) const;
  void DropIdsWithoutGradient(RowRun* run) const;

  const Group group_;
  std::vector<std::vector<int64_t>> features_of_;  // those with samples and a gradient, ascending
  RowEntry* entries_;                              // [num_ids]
  uint32_t* samples_;                              // [num_ids] with weights, else null
  float* scales_;                                  // [num_samples], or null if all are 1
  int source_bits_;
  bool has_long_spares_;  // for runs of kManyEntries and more
  std::vector<RowRun> runs_;
};

}  // namespace group_embedding
