#include "python/host_table.h"

#include <pybind11/stl.h>

#include <map>

#include "python/array.h"
#include "python/run.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::dtype NumpyType(DataType dtype) {
  return dtype == DataType::kFloat32 ? py::dtype("float32") : py::dtype("uint16");
}

py::array Copy(const std::vector<int64_t>& values) {
  return py::array_t<int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::array CopyBytes(const std::vector<char>& bytes, DataType dtype, int64_t width) {
  const auto type = NumpyType(dtype);
  const int64_t rows = static_cast<int64_t>(bytes.size()) / (width * SizeOf(dtype));
  return py::array(type, std::vector<py::ssize_t>{rows, width}, bytes.data());
}

}  // namespace

std::vector<int64_t> Integers(py::handle object) {
  const auto array = PyHostTable::Keys::ensure(object);
  if (!array) throw py::error_already_set();
  return {array.data(), array.data() + array.size()};
}

namespace {

std::vector<char> Bytes(py::handle object, const std::string& name, DataType dtype, int64_t rows,
                        int64_t width) {
  const ArrayView view = ViewRows(object, name, dtype, 2, /*on_gpu=*/false);
  RequireShape(view, {rows, width});
  RequireContiguous(view);
  const char* data = static_cast<const char*>(view.data);
  return {data, data + rows * width * SizeOf(dtype)};
}

}  // namespace

TableOptions MakeTableOptions(const std::string& name, int32_t dim, const std::string& dtype,
                              const std::string& distribution, float a, float b, uint64_t seed,
                              float no_row_value, const std::string& admission, int64_t min_count,
                              int64_t num_counters, int32_t num_hashes, int32_t counter_bytes,
                              int64_t max_bytes) {
  static const char* kDistributions[] = {"matrix", "constant", "uniform", "normal",
                                         "truncated_normal"};
  static const char* kAdmissions[] = {"all", "counter", "bloom"};
  auto index = [](const std::string& what, const auto& words, const std::string& word) {
    int32_t at = 0;
    for (const char* known : words) {
      if (word == known) return at;
      ++at;
    }
    throw py::value_error(what + ": unknown word '" + word + "'");
  };
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.dtype = ParseDataType("dtype", dtype);
  options.initial = {static_cast<Distribution>(index("distribution", kDistributions, distribution)),
                     a, b, seed, 0};
  options.no_row_value = no_row_value;
  Admission& filter = options.admission;
  filter.kind = static_cast<Admission::Kind>(index("admission", kAdmissions, admission));
  filter.min_count = min_count;
  filter.num_counters = num_counters;
  filter.num_hashes = num_hashes;
  filter.counter_bytes = counter_bytes;
  options.max_bytes = max_bytes;
  return options;
}

const void* TakeMatrix(py::handle matrix, TableOptions* options) {
  if (matrix.is_none()) return nullptr;
  const ArrayView view = ViewRows(matrix, "matrix", options->dtype, 2, /*on_gpu=*/false);
  RequireShape(view, {view.shape[0], options->dim});
  RequireContiguous(view);
  options->initial.matrix_rows = view.shape[0];
  return view.data;
}

PyHostTable::PyHostTable(const TableOptions& given, const DiskTierOptions* disk, py::object matrix,
                         int num_threads)
    : parallel_for_(ThreadedFor(num_threads)) {
  TableOptions options = given;
  const void* values = TakeMatrix(matrix, &options);
  Status status;
  table_ = disk == nullptr ? MakeHostTable(options, values, &status)
                           : MakeDiskTieredTable(options, *disk, values, &status);
  Require(status);
}

PyHostTable::Keys PyHostTable::Locate(Keys keys, bool train, int64_t step, int64_t batch) {
  Keys rows(keys.size());
  const KeysToLocate request = {table_->host(), keys.data(), keys.size(), rows.mutable_data(),
                                batch};
  Status status;
  {
    py::gil_scoped_release release;
    status =
        LocateRowsCpu(&request, 1, train ? Access::kTrain : Access::kRead, step, parallel_for_);
  }
  Require(status);
  return rows;
}

PyHostTable::Keys PyHostTable::Find(Keys keys) const {
  Keys rows(keys.size());
  table_->Find(keys.data(), keys.size(), rows.mutable_data());
  return rows;
}

py::array PyHostTable::Rows(py::object self) {
  auto& table = self.cast<PyHostTable&>().get();
  const Table rows = table.rows();
  return py::array(NumpyType(table.options().dtype),
                   std::vector<py::ssize_t>{rows.num_rows, rows.dim}, rows.rows, self);
}

py::array PyHostTable::Slot(py::object self, const std::string& name, bool per_row,
                            const std::string& dtype, float initial) {
  auto& table = self.cast<PyHostTable&>().get();
  const SlotOptions slot = {name, per_row ? 1 : table.options().dim, ParseDataType("dtype", dtype),
                            initial};
  void* array = nullptr;
  Require(table.Slot(slot, &array));
  return py::array(NumpyType(slot.dtype),
                   std::vector<py::ssize_t>{table.rows().num_rows, slot.width}, array, self);
}

py::dict PyHostTable::Info(Keys rows) const {
  std::vector<int64_t> keys, counts, versions;
  for (py::ssize_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows.data()[i];
    if (row < 0 || row >= table_->rows().num_rows) throw py::index_error("no such row");
    const RowInfo info = table_->Info(row);
    keys.push_back(info.key);
    counts.push_back(info.count);
    versions.push_back(info.version);
  }
  return py::dict("keys"_a = Copy(keys), "counts"_a = Copy(counts), "versions"_a = Copy(versions));
}

py::dict DescribeKeys(const EmbeddingTable& table, const PyHostTable::Keys& keys) {
  std::vector<KeyInfo> infos(keys.size());
  Require(table.Describe(keys.data(), keys.size(), infos.data()));
  std::vector<int64_t> tiers, counts, versions;
  for (const KeyInfo& info : infos) {
    tiers.push_back(info.tier);
    counts.push_back(info.count);
    versions.push_back(info.version);
  }
  return py::dict("tiers"_a = Copy(tiers), "counts"_a = Copy(counts),
                  "versions"_a = Copy(versions));
}

KeyedRows KeyedRowsOf(const py::dict& given, const EmbeddingTable& table) {
  KeyedRows rows;
  rows.keys = Integers(given["keys"]);
  const int64_t count = static_cast<int64_t>(rows.keys.size());
  rows.counts = given.contains("counts") ? Integers(given["counts"]) : std::vector<int64_t>(count);
  rows.versions =
      given.contains("versions") ? Integers(given["versions"]) : std::vector<int64_t>(count, -1);
  RequireCount("counts", count, rows.counts.size());
  RequireCount("versions", count, rows.versions.size());
  const TableOptions& options = table.options();
  rows.values = Bytes(given["values"], "values", options.dtype, count, options.dim);
  if (given.contains("slots")) {
    const auto arrays = given["slots"].cast<std::vector<py::object>>();
    RequireCount("slots", table.slots().size(), arrays.size());
    for (size_t s = 0; s < arrays.size(); ++s) {
      const SlotOptions& slot = table.slots()[s];
      rows.slots.push_back(Bytes(arrays[s], At("slots", s), slot.dtype, count, slot.width));
    }
  }
  return rows;
}

AdmissionState AdmissionOf(const py::dict& state) {
  AdmissionState given;
  given.keys = Integers(state["keys"]);
  given.counts = Integers(state["counts"]);
  RequireCount("counts", given.keys.size(), given.counts.size());
  const std::string counters = state["counters"].cast<py::bytes>();
  given.counters.assign(counters.begin(), counters.end());
  return given;
}

void PyHostTable::Insert(py::dict given) { Require(table_->Insert(KeyedRowsOf(given, *table_))); }

void PyHostTable::SetAdmission(py::dict state) { table_->SetAdmissionState(AdmissionOf(state)); }

std::unique_ptr<PySnapshot> TakeSnapshotOf(EmbeddingTable* table, bool changes_only,
                                           py::handle evict, int64_t step, int64_t follower) {
  if (changes_only && !table->changes()->Has(follower)) {
    throw py::value_error("follower: has no mark, so there are no changes since it");
  }
  return std::make_unique<PySnapshot>(
      table->TakeSnapshot(changes_only, EvictionOf(evict), step, follower));
}

py::dict DictOf(const KeyedRows& rows, const EmbeddingTable& table) {
  py::list slots;
  for (size_t s = 0; s < rows.slots.size(); ++s) {
    const SlotOptions& slot = table.slots()[s];
    slots.append(CopyBytes(rows.slots[s], slot.dtype, slot.width));
  }
  return py::dict("keys"_a = Copy(rows.keys), "counts"_a = Copy(rows.counts),
                  "versions"_a = Copy(rows.versions),
                  "values"_a = CopyBytes(rows.values, table.options().dtype, table.options().dim),
                  "slots"_a = slots);
}

py::dict PySnapshot::Read(int64_t begin, int64_t end) {
  KeyedRows rows;
  {
    py::gil_scoped_release release;
    snapshot_->Read(begin, end, &rows);
  }
  Require(snapshot_->status());
  return DictOf(rows, snapshot_->table());
}

py::dict CountsOf(const EmbeddingTable& table) {
  const BudgetCounts counts = table.budget_counts();
  return py::dict("max_keys"_a = counts.max_keys, "evicted"_a = counts.num_evicted,
                  "without_place"_a = counts.num_without_place, "missed"_a = counts.num_missed);
}

namespace {

Budget MakeBudget(int64_t max_keys, int64_t max_bytes, double keep, const std::string& evict,
                  int64_t decay_steps, int64_t safe_steps, const std::string& hands_out,
                  int64_t num_shares, int64_t rank, int64_t num_ranks) {
  static const std::map<std::string, EvictFirst> kFirst = {
      {"least_recent", EvictFirst::kLeastRecent},
      {"least_frequent", EvictFirst::kLeastFrequent},
      {"decayed_frequency", EvictFirst::kDecayedFrequency},
      {"smallest_norm", EvictFirst::kSmallestNorm},
      {"score", EvictFirst::kLowestScore},
      {"earliest", EvictFirst::kEarliest}};
  static const std::map<std::string, HandsOut> kHandsOut = {
      {"nothing", HandsOut::kNothing}, {"keys", HandsOut::kKeys}, {"rows", HandsOut::kRows}};
  Budget budget;
  budget.max_keys = max_keys;
  budget.max_bytes = max_bytes;
  budget.keep = keep;
  budget.first = kFirst.at(evict);
  budget.decay_steps = decay_steps;
  budget.safe_steps = safe_steps;
  budget.hands_out = kHandsOut.at(hands_out);
  budget.num_shares = num_shares;
  budget.rank = rank;
  budget.num_ranks = num_ranks;
  return budget;
}

}  // namespace

py::array PySnapshot::Erased() const { return Copy(snapshot_->erased()); }

py::array PySnapshot::Evicted() const { return Copy(snapshot_->evicted()); }

Eviction EvictionOf(py::handle given) {
  Eviction eviction;
  if (given.is_none()) return eviction;
  if (given.contains("l2_weight")) {
    eviction.Add(Eviction::Kind::kL2Weight).l2_weight = given["l2_weight"].cast<float>();
  }
  if (given.contains("steps_to_live")) {
    eviction.Add(Eviction::Kind::kGlobalStep).steps_to_live =
        given["steps_to_live"].cast<int64_t>();
  }
  if (given.contains("minutes_to_live")) {
    eviction.Add(Eviction::Kind::kTime).minutes_to_live = given["minutes_to_live"].cast<int64_t>();
  }
  return eviction;
}

CacheStrategy ParseCacheStrategy(const std::string& word) {
  if (word == "least_recent") return CacheStrategy::kLeastRecent;
  if (word == "least_frequent") return CacheStrategy::kLeastFrequent;
  throw py::value_error("cache_strategy: unknown word '" + word + "'");
}

py::dict PySnapshot::Admission() const {
  const AdmissionState& state = snapshot_->admission();
  return py::dict("keys"_a = Copy(state.keys), "counts"_a = Copy(state.counts),
                  "counters"_a = py::bytes(state.counters.data(), state.counters.size()));
}

void BindHostTable(py::module_& m) {
  py::class_<PySnapshot>(m, "Snapshot", R"(The content of a table at one instant.

Call the table's before_write before rows are written while a snapshot is read.)")
      .def_property_readonly("num_rows", &PySnapshot::NumRows)
      .def("read", &PySnapshot::Read, "begin"_a, "end"_a,
           "The keys among rows [begin, end): {keys, counts, versions, values, slots}; once each.")
      .def_property_readonly("erased", &PySnapshot::Erased)
      .def_property_readonly("evicted", &PySnapshot::Evicted,
                             "After all rows were read: the keys evicted with the snapshot.")
      .def_property_readonly("admission", &PySnapshot::Admission)
      .def("keep", &PySnapshot::Keep, "Later snapshots of changes start from this one.");
  py::class_<DiskTierOptions>(
      m, "DiskTier",
      R"(The disk tier of a table: rows that do not fit its memory are kept on disk.

Args:
  path: the folder; '' for a temporary one.
  max_bytes: the most bytes on disk; 0: no limit.
  cache_strategy: which rows move to disk first: 'least_recent' or 'least_frequent'.)")
      .def(py::init(
               [](const std::string& path, int64_t max_bytes, const std::string& cache_strategy) {
                 return DiskTierOptions{path, max_bytes, ParseCacheStrategy(cache_strategy)};
               }),
           py::kw_only(), "path"_a = "", "max_bytes"_a = 0, "cache_strategy"_a = "least_frequent");
  py::class_<Budget>(m, "Budget", "The budget of a table, as of cc/table/budget.h.")
      .def(py::init(&MakeBudget), py::kw_only(), "max_keys"_a = 0, "max_bytes"_a = 0,
           "keep"_a = 0.9, "evict"_a = "least_recent", "decay_steps"_a = 0, "safe_steps"_a = 0,
           "hands_out"_a = "nothing", "num_shares"_a = 0, "rank"_a = 0, "num_ranks"_a = 1);
  py::class_<PyHostTable> host_table(m, "HostTable",
                                     R"(A table in host memory whose rows are found by key.

Args:
  dim, dtype: of a row: float32, float16 or bfloat16.
  matrix: None, or the [matrix_rows, dim] array that keys start from, row key mod matrix_rows.
  distribution, a, b, seed: what keys start as without one: 'constant' (a), 'uniform' in [a, b),
    'normal' or 'truncated_normal' of mean a and standard deviation b.
  no_row_value: what is read for a key without a row.
  admission: 'all', or keys seen min_count times, by 'counter' or 'bloom' (of num_counters counters
    of counter_bytes bytes, num_hashes per key).
  max_bytes: of rows, slots and what is kept of each; 0: as much as there is.
  disk: None, or the DiskTier of a table that keeps on disk what is beyond max_bytes.
  budget: None, or a Budget.)");
  BindBudget(&host_table);
  host_table
      .def(py::init([](int32_t dim, const std::string& dtype, py::object matrix,
                       const std::string& distribution, float a, float b, uint64_t seed,
                       float no_row_value, const std::string& admission, int64_t min_count,
                       int64_t num_counters, int32_t num_hashes, int32_t counter_bytes,
                       int64_t max_bytes, const DiskTierOptions* disk, const std::string& name,
                       int num_threads, const Budget* budget, bool keeps_time, double probability) {
             TableOptions options =
                 MakeTableOptions(name, dim, dtype, matrix.is_none() ? distribution : "matrix", a,
                                  b, seed, no_row_value, admission, min_count, num_counters,
                                  num_hashes, counter_bytes, max_bytes);
             if (budget != nullptr) options.budget = *budget;
             options.keeps_time = keeps_time;
             options.admission.probability = probability;
             return std::make_unique<PyHostTable>(options, disk, std::move(matrix), num_threads);
           }),
           py::kw_only(), "dim"_a, "dtype"_a = "float32", "matrix"_a = py::none(),
           "distribution"_a = "constant", "a"_a = 0.0f, "b"_a = 0.0f, "seed"_a = 0,
           "no_row_value"_a = 0.0f, "admission"_a = "all", "min_count"_a = 0, "num_counters"_a = 0,
           "num_hashes"_a = 0, "counter_bytes"_a = 8, "max_bytes"_a = 0, "disk"_a = py::none(),
           "name"_a = "table", "num_threads"_a = 1, "budget"_a = py::none(), "keeps_time"_a = false,
           "probability"_a = 1.0)
      .def("locate", &PyHostTable::Locate, "keys"_a, py::kw_only(), "train"_a = false,
           "step"_a = -1, "batch"_a = 0,
           "Row numbers of keys, held for the batch; with train, keys are counted and get rows.")
      .def("find", &PyHostTable::Find, "keys"_a, "Rows of keys, -1 for those without.")
      .def_property_readonly("rows", &PyHostTable::Rows, "All rows in place, [num_rows, dim].")
      .def("slot", &PyHostTable::Slot, "name"_a, py::kw_only(), "per_row"_a = false,
           "dtype"_a = "float32", "initial"_a = 0.0f, "A slot in place; made if there is none.")
      .def("info", &PyHostTable::Info, "rows"_a, "{keys, counts, versions} of rows.")
      .def(
          "describe",
          [](PyHostTable& table, const PyHostTable::Keys& keys) {
            return DescribeKeys(table.get(), keys);
          },
          "keys"_a,
          "{tiers, counts, versions} of keys, wherever their rows are; -1 for those without.")
      .def("insert", &PyHostTable::Insert, "rows"_a, "As Snapshot.read gives them.")
      .def("erase", &PyHostTable::Erase, "keys"_a, "How many there were.")
      .def(
          "evict_old",
          [](PyHostTable& table, int64_t steps_to_live, int64_t step) {
            return table.Evict({Eviction::Kind::kGlobalStep, steps_to_live, 0}, step);
          },
          "steps_to_live"_a, "step"_a, "Erases keys not trained for longer; how many.")
      .def(
          "evict_small",
          [](PyHostTable& table, float l2_weight) {
            return table.Evict({Eviction::Kind::kL2Weight, 0, l2_weight}, -1);
          },
          "l2_weight"_a, "Erases keys whose row has a smaller sum of squares / 2; how many.")
      .def("clear", [](PyHostTable& table) { table.get().Clear(); })
      .def("set_admission", &PyHostTable::SetAdmission, "state"_a, "As Snapshot.admission.")
      .def(
          "snapshot",
          [](PyHostTable& table, bool changes_only, py::object evict, int64_t step,
             int64_t follower) {
            return TakeSnapshotOf(&table.get(), changes_only, evict, step, follower);
          },
          "changes_only"_a = false, py::kw_only(), "evict"_a = py::none(), "step"_a = -1,
          "follower"_a = kSaves, py::keep_alive<0, 1>(),
          "changes_only: since the mark of the follower. evict: {'steps_to_live', 'l2_weight', "
          "'minutes_to_live'}, those that are given: what goes at that instant.")
      .def("before_write", &PyHostTable::BeforeWrite, "rows"_a)
      .def("begin_batch", [](PyHostTable& table) { return table.get().BeginBatch(); })
      .def("end_batch", [](PyHostTable& table, int64_t batch) { table.get().EndBatch(batch); })
      .def_property_readonly("first_row", [](PyHostTable& t) { return t.get().first_row(); })
      .def_property_readonly("num_keys", [](PyHostTable& t) { return t.get().num_keys(); })
      .def_property_readonly("memory_bytes", [](PyHostTable& t) { return t.get().memory_bytes(); })
      .def_property_readonly("disk_bytes", [](PyHostTable& t) { return t.get().disk_bytes(); })
      .def_property_readonly("load_factor", [](PyHostTable& t) { return t.get().load_factor(); });
}

}  // namespace group_embedding
