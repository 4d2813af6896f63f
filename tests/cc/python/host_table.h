// Tables found by key, in host memory, on NumPy arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "python/array.h"
#include "table/disk/disk_tiered_table.h"
#include "table/file/table_file_header.h"
#include "table/host/host_table.h"

namespace group_embedding {

// What tables of both devices take from Python.
TableOptions MakeTableOptions(const std::string& name, int32_t dim, const std::string& dtype,
                              const std::string& distribution, float a, float b, uint64_t seed,
                              float no_row_value, const std::string& admission, int64_t min_count,
                              int64_t num_counters, int32_t num_hashes, int32_t counter_bytes,
                              int64_t max_bytes);
// The matrix's address, or null for None; options->initial.matrix_rows is set.
const void* TakeMatrix(pybind11::handle matrix, TableOptions* options);
std::vector<int64_t> Integers(pybind11::handle object);
KeyedRows KeyedRowsOf(const pybind11::dict& given, const EmbeddingTable& table);
AdmissionState AdmissionOf(const pybind11::dict& state);
CacheStrategy ParseCacheStrategy(const std::string& word);
// None; or some of {"steps_to_live": ..., "l2_weight": ..., "minutes_to_live": ...}.
Eviction EvictionOf(pybind11::handle given);

class PySnapshot {
 public:
  explicit PySnapshot(std::unique_ptr<Snapshot> snapshot)
      : snapshot_(std::move(snapshot)), header_(HeaderOf(snapshot_->table())) {}

  const TableFileHeader& header() const { return header_; }  // as of the snapshot
  int64_t NumRows() const { return snapshot_->num_rows(); }
  pybind11::dict Read(int64_t begin, int64_t end);
  pybind11::array Erased() const;
  pybind11::array Evicted() const;
  pybind11::dict Admission() const;
  void Keep() { snapshot_->Keep(); }
  Snapshot& get() { return *snapshot_; }

 private:
  std::unique_ptr<Snapshot> snapshot_;
  const TableFileHeader header_;
};

class PyHostTable {
 public:
  using Keys = pybind11::array_t<int64_t, pybind11::array::c_style | pybind11::array::forcecast>;

  // `disk`: null for a table in memory alone.
  PyHostTable(const TableOptions& options, const DiskTierOptions* disk, pybind11::object matrix,
              int num_threads);

  EmbeddingTable& get() { return *table_; }

  Keys Locate(Keys keys, bool train, int64_t step, int64_t batch);
  Keys Find(Keys keys) const;
  // [num_rows, dim], in place; 16-bit types as uint16. `self`: kept alive by the view.
  static pybind11::array Rows(pybind11::object self);
  static pybind11::array Slot(pybind11::object self, const std::string& name, bool per_row,
                              const std::string& dtype, float initial);
  pybind11::dict Info(Keys rows) const;
  // `rows`: {"keys": ..., "counts", "versions", "values", "slots": [...]}
  void Insert(pybind11::dict rows);
  int64_t Erase(Keys keys) { return table_->Erase(keys.data(), keys.size()); }
  int64_t Evict(const Eviction& eviction, int64_t step) { return table_->Evict(eviction, step); }
  void SetAdmission(pybind11::dict state);
  void BeforeWrite(Keys rows) { table_->BeforeWrite(rows.data(), rows.size()); }

 private:
  std::unique_ptr<EmbeddingTable> table_;
  ParallelFor parallel_for_;
};

// {max_keys, evicted, without_place, missed} of a table with a budget.
pybind11::dict CountsOf(const EmbeddingTable& table);
// {keys, counts, versions, values, slots}
pybind11::dict DictOf(const KeyedRows& rows, const EmbeddingTable& table);
std::unique_ptr<PySnapshot> TakeSnapshotOf(EmbeddingTable* table, bool changes_only,
                                           pybind11::handle evict, int64_t step, int64_t follower);
// {tiers, counts, versions} of keys.
pybind11::dict DescribeKeys(const EmbeddingTable& table, const PyHostTable::Keys& keys);

// What tables of both devices have for budgets, evictions and followers of changes.
template <typename PyTable>
void BindBudget(pybind11::class_<PyTable>* table) {
  namespace py = pybind11;
  using py::literals::operator""_a;
  using Scores = py::array_t<float, py::array::c_style | py::array::forcecast>;
  table
      ->def(
          "evict",
          [](PyTable& table, py::object evict, int64_t step) {
            return table.get().Evict(EvictionOf(evict), step);
          },
          "evict"_a, "step"_a = -1, "As of snapshot; how many.")
      .def(
          "budget_counts", [](PyTable& table) { return CountsOf(table.get()); },
          "What the table has done to keep its budget.")
      .def(
          "take_evicted",
          [](PyTable& table) {
            KeyedRows rows;
            table.get().TakeEvicted(&rows);
            return DictOf(rows, table.get());
          },
          "{keys, counts, versions, values} of keys evicted since the last call.")
      .def(
          "set_scores",
          [](PyTable& table, const PyHostTable::Keys& keys, const Scores& scores) {
            RequireCount("scores", keys.size(), scores.size());
            Require(table.get().SetScores(keys.data(), keys.size(), scores.data()));
          },
          "keys"_a, "scores"_a, "Of keys that have a row.")
      .def(
          "set_time", [](PyTable& table, int64_t minute) { Require(table.get().SetTime(minute)); },
          "minute"_a)
      .def("num_erased", [](PyTable& table) { return table.get().changes()->num_erased(); })
      .def(
          "follow",
          [](PyTable& table, int64_t follower, PySnapshot& snapshot) {
            table.get().changes()->Follow(follower, snapshot.get().mark());
          },
          "follower"_a, "snapshot"_a, "The follower's next changes are those since the snapshot.")
      .def(
          "follows",
          [](PyTable& table, int64_t follower) { return table.get().changes()->Has(follower); },
          "follower"_a, "Whether the follower has a mark.");
}

void BindHostTable(pybind11::module_& m);

}  // namespace group_embedding
