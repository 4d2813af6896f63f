#include "python/sharded_lookup.h"

#if GROUP_EMBEDDING_CUDA

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/device_buffer.h"
#include "exchange/gpu/number_keys.h"
#include "exchange/gpu/serve_rows.h"
#include "exchange/gpu/sharded_lookup.h"
#include "exchange/gpu/sums_lookup.h"
#include "python/array.h"
#include "python/run.h"
#include "python/update.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

// Page-locked host memory by name, kept as long as this object.
class PageLockedScratch {
 public:
  void* Get(const std::string& name, int64_t bytes) {
    Piece& piece = pieces_[name];
    if (piece.bytes < bytes) {
      void* memory = nullptr;
      CheckCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "page-locked memory");
      piece = {{memory, cudaFreeHost}, bytes};
    }
    return piece.memory.get();
  }

 private:
  struct Piece {
    std::unique_ptr<void, cudaError_t (*)(void*)> memory{nullptr, cudaFreeHost};
    int64_t bytes = 0;
  };
  std::map<std::string, Piece> pieces_;
};

// A lookup over ranks, and the Python objects that it borrows from.
template <typename LookupOfRanks>
class PyLookupOfRanks {
 public:
  PyLookupOfRanks(py::object group, std::vector<int64_t> num_rows, py::object communicator,
                  py::object allocate)
      : group_object_(std::move(group)),
        communicator_object_(std::move(communicator)),
        num_rows_(std::move(num_rows)),
        scratch_(std::move(allocate), /*on_gpu=*/true),
        fault_(&scratch_) {
    RequireCount("num_rows", py_group().tables().size(), num_rows_.size());
  }

  void Lookup(uintptr_t stream) {
    sent_before_ = SentBytes();
    lookup_->Lookup(fault_.pointer(), reinterpret_cast<cudaStream_t>(stream));
  }

  void Update(const PyUpdate& update, uintptr_t stream) {
    lookup_->Update(update.get(), reinterpret_cast<cudaStream_t>(stream));
  }

  void Check(uintptr_t stream) {
    const Fault fault = fault_.Take(stream);
    Require(ranks().Wait(reinterpret_cast<Stream>(stream)));
    if (fault.kind == FaultKind::kNone) return;
    const int32_t table = py_group().features()[fault.feature].table;
    throw py::value_error(
        Describe(fault, std::to_string(fault.feature), std::to_string(table), num_rows_[table]));
  }

  // Bytes that the last Lookup and Update sent to other ranks.
  int64_t BytesOnTheWire() const { return SentBytes() - sent_before_; }

 protected:
  PyGroup& py_group() const { return group_object_.cast<PyGroup&>(); }

  Communicator& ranks() const { return communicator_object_.cast<Communicator&>(); }

  int64_t SentBytes() const {
    const std::vector<int64_t> sent = ranks().SentBytes();
    return std::accumulate(sent.begin(), sent.end(), int64_t{0});
  }

  NamedMemory Memory() {
    return {
        [this](const std::string& name, int64_t bytes) { return scratch_.Get(name, bytes); },
        [this](const std::string& name, int64_t bytes) { return page_locked_.Get(name, bytes); }};
  }

  py::object group_object_, communicator_object_;  // kept alive
  const std::vector<int64_t> num_rows_;            // [tables] of the whole tables
  Scratch scratch_;
  PageLockedScratch page_locked_;
  DeviceFault fault_;
  std::unique_ptr<LookupOfRanks> lookup_;
  int64_t sent_before_ = 0;  // the last Lookup
};

class PyShardedLookup : public PyLookupOfRanks<ShardedLookup> {
 public:
  PyShardedLookup(py::object group, std::vector<int64_t> num_rows, py::object communicator,
                  py::object allocate, const std::string& description, DataType comm_type)
      : PyLookupOfRanks(std::move(group), std::move(num_rows), std::move(communicator),
                        std::move(allocate)) {
    CheckShards(ranks().rank(), ranks().num_ranks());
    lookup_ = std::make_unique<ShardedLookup>(Whole(), &ranks(), description, comm_type, Memory());
  }

 private:
  void CheckShards(int rank, int num_ranks) const {
    for (size_t t = 0; t < num_rows_.size(); ++t) {
      const int64_t expected = (num_rows_[t] - rank + num_ranks - 1) / num_ranks;
      if (py_group().tables()[t].num_rows != expected) {
        throw py::value_error(At("tables", t) + ": expected the " + std::to_string(expected) +
                              " rows of rank " + std::to_string(rank) + ", got " +
                              std::to_string(py_group().tables()[t].num_rows));
      }
    }
  }

  Group Whole() {
    tables_ = py_group().tables();
    for (size_t t = 0; t < tables_.size(); ++t) tables_[t].num_rows = num_rows_[t];
    Group whole = py_group().group();
    whole.tables = tables_.data();
    return whole;
  }

  std::vector<Table> tables_;
};

class PySumsLookup : public PyLookupOfRanks<SumsLookup> {
 public:
  // owners: [tables] of TableOwner.
  PySumsLookup(py::object group, std::vector<int64_t> num_rows, const std::vector<int>& owners,
               py::object communicator, py::object allocate, const std::string& description,
               DataType comm_type)
      : PyLookupOfRanks(std::move(group), std::move(num_rows), std::move(communicator),
                        std::move(allocate)) {
    RequireCount("owners", num_rows_.size(), owners.size());
    std::vector<TableOwner> of_tables;
    for (size_t t = 0; t < owners.size(); ++t) of_tables.push_back({owners[t], num_rows_[t]});
    lookup_ = std::make_unique<SumsLookup>(py_group().group(), std::move(of_tables), &ranks(),
                                           description, comm_type, Memory());
  }
};

std::unique_ptr<PyShardedLookup> MakeShardedLookup(py::object group, std::vector<int64_t> num_rows,
                                                   py::object communicator, py::object allocate,
                                                   const std::string& description,
                                                   const std::string& comm_dtype) {
  return std::make_unique<PyShardedLookup>(std::move(group), std::move(num_rows),
                                           std::move(communicator), std::move(allocate),
                                           description, ParseDataType("comm_dtype", comm_dtype));
}

std::unique_ptr<PySumsLookup> MakeSumsLookup(py::object group, std::vector<int64_t> num_rows,
                                             const std::vector<int>& owners,
                                             py::object communicator, py::object allocate,
                                             const std::string& description,
                                             const std::string& comm_dtype) {
  return std::make_unique<PySumsLookup>(std::move(group), std::move(num_rows), owners,
                                        std::move(communicator), std::move(allocate), description,
                                        ParseDataType("comm_dtype", comm_dtype));
}

template <typename PyLookup>
void BindLookup(py::module_& m, const char* name, const char* doc) {
  py::class_<PyLookup>(m, name, doc)
      .def("lookup", &PyLookup::Lookup, "stream"_a = 0)
      .def("update", &PyLookup::Update, "update"_a, "stream"_a = 0,
           "Updates this rank's rows. Call it after lookup, once the outputs hold their gradients.")
      .def("check", &PyLookup::Check, "stream"_a = 0,
           "Waits for the stream. Raises ValueError if a lookup had a bad id, RuntimeError if a "
           "rank is gone.")
      .def_property_readonly("bytes_on_the_wire", &PyLookup::BytesOnTheWire);
}

// features: (first id, number of ids, table) of each feature whose ids are keys; other ids stay as
// they are.
py::tuple NumberKeys(const std::vector<std::tuple<int64_t, int64_t, int64_t>>& features,
                     py::object ids, int64_t num_tables, int64_t num_ranks) {
  const ArrayView view = ViewArray(ids, "ids", "i8", 1, /*on_gpu=*/true);
  RequireContiguous(view);
  std::vector<KeyedFeature> keyed;
  for (const auto& [first_id, num_ids, table] : features) {
    if (first_id < 0 || num_ids < 0 || first_id + num_ids > view.shape[0]) {
      throw py::value_error("features: expected ids of the batch");
    }
    keyed.push_back({first_id, num_ids, table});
  }
  const int64_t num_ids = view.shape[0];
  DeviceBuffer<char> workspace(NumberKeysWorkspaceBytesCuda(keyed, num_ids, num_tables, num_ranks));
  NumberedKeys numbered;
  RequireCuda(NumberKeysCuda(keyed, static_cast<const int64_t*>(view.data), num_ids, num_tables,
                             num_ranks, workspace.data(), &numbered, nullptr));
  const auto first_keys = ToHost(numbered.first_keys, num_ranks * num_tables + 1, nullptr);
  return py::make_tuple(ToHost(numbered.ids, num_ids, nullptr),
                        ToHost(numbered.keys, first_keys.back(), nullptr), first_keys);
}

// Copies the requested rows of each table to one output per table. requests: table after table.
void ServeRows(const std::vector<py::object>& tables, py::object requests,
               const std::vector<py::object>& outputs, const std::string& dtype,
               const std::string& wire) {
  RequireCount("outputs", tables.size(), outputs.size());
  const ArrayView rows = ViewArray(requests, "requests", "i8", 1, /*on_gpu=*/true);
  RequireContiguous(rows);
  const DataType type = ParseDataType("dtype", dtype), wire_type = ParseDataType("wire", wire);
  std::vector<ServedPart> parts;
  int64_t first = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const ArrayView table = ViewRows(tables[t], At("tables", t), type, 2, /*on_gpu=*/true);
    const ArrayView output = ViewRows(outputs[t], At("outputs", t), wire_type, 2, /*on_gpu=*/true);
    RequireContiguous(table);
    RequireContiguous(output);
    RequireShape(output, {output.shape[0], table.shape[1]});
    const int64_t count = output.shape[0];
    parts.push_back({{table.data, table.shape[0], static_cast<int32_t>(table.shape[1]), 0},
                     first,
                     count,
                     static_cast<char*>(output.data)});
    first += count;
  }
  RequireShape(rows, {first});
  DeviceBuffer<char> scratch(ServeRowsScratchBytes(static_cast<int64_t>(parts.size())));
  RequireCuda(ServeRowsCuda(parts, static_cast<const int64_t*>(rows.data), type, wire_type,
                            scratch.data(), nullptr));
  RequireCuda(cudaDeviceSynchronize());
}

}  // namespace

void BindShardedLookups(py::module_& m) {
  BindLookup<PyShardedLookup>(m, "ShardedLookup",
                              R"(A lookup in tables that are sharded over ranks.

The group's tables are this rank's shards: row r of a table is row r // num_ranks of rank r % num_ranks.
All ranks call lookup, and then update, together.)");
  BindLookup<PySumsLookup>(m, "SumsLookup", R"(A lookup in tables whose owners combine rows.

The group's tables are this rank's part: all rows or none, as many columns of all rows, or some rows. Its outputs are
this rank's columns, beside those of other ranks. All ranks call lookup, and then update, together.)");
  m.def("sharded_lookup", &MakeShardedLookup, "group"_a, "num_rows"_a, "communicator"_a,
        "allocate"_a, "description"_a, "comm_dtype"_a,
        "Returns a ShardedLookup that sends rows through the Communicator, or through its peer "
        "buffers, in comm_dtype. num_rows: [tables] of the whole tables. description: a text that "
        "has to be the same on all ranks; else lookup raises RuntimeError.");
  m.def("sums_lookup", &MakeSumsLookup, "group"_a, "num_rows"_a, "owners"_a, "communicator"_a,
        "allocate"_a, "description"_a, "comm_dtype"_a,
        "Returns a SumsLookup. owners: [tables] the rank that has the table; -1: each rank has as "
        "many "
        "of its columns; -2: row r is local row r // num_ranks of rank r % num_ranks. Other "
        "arguments as of sharded_lookup.");
  m.def("serve_rows", &ServeRows, "tables"_a, "requests"_a, "outputs"_a, "dtype"_a, "wire"_a,
        "Copies the requested rows of each table to its output, converted to type wire. requests: "
        "row numbers, table after table; a number outside the table reads zeros.");
  m.def(
      "number_keys", &NumberKeys, "features"_a, "ids"_a, "num_tables"_a, "num_ranks"_a,
      "Returns (ids with numbers instead of keys, the keys of all parts, where each part begins). "
      "features: (first id, number of ids, table) of each feature whose ids are keys. The i-th key "
      "of rank n in a table, in ascending unsigned order, becomes i * num_ranks + n.");
}

}  // namespace group_embedding

#else

namespace group_embedding {

void BindShardedLookups(pybind11::module_&) {}

}  // namespace group_embedding

#endif
