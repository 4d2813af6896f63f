#include "python/served_rows.h"

#include <pybind11/stl.h>

#include <utility>

#include "core/words.h"
#include "python/array.h"
#include "serving/device/stored_lookup.h"
#if GROUP_EMBEDDING_CUDA
#include "table/device/device_memory.h"
#endif

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

RowFormat ParseFormat(const std::string& word) {
  const std::optional<RowFormat> format = Parse(RowFormatWords(), word);
  if (!format) throw py::value_error(UnknownWord("format", RowFormatWords(), word));
  return *format;
}

std::unique_ptr<Memory> Reserve(bool device_reads, int64_t bytes) {
#if GROUP_EMBEDDING_CUDA
  if (device_reads) return ReserveTieredMemory(0, bytes);
#else
  if (device_reads) throw py::value_error("copies_bytes: this build is without CUDA");
#endif
  return ReserveHostMemory(bytes);
}

}  // namespace

PyServedRows::PyServedRows(const std::vector<py::object>& tables, const std::string& format,
                           std::optional<int64_t> copies_bytes, bool resident, py::object allocate,
                           int num_threads)
    : format_(ParseFormat(format)),
      on_gpu_(resident || copies_bytes.has_value()),
      scratch_(std::move(allocate), on_gpu_),
      parallel_for_(ThreadedFor(num_threads)) {
  for (size_t t = 0; t < tables.size(); ++t) {
    const ArrayView view =
        ViewArray(tables[t], group_embedding::At("tables", t), "f4", 2, /*on_gpu=*/false);
    RequireContiguous(view);
    const int64_t num_rows = view.shape[0], dim = view.shape[1];
    const int64_t row_bytes = RowBytes(format_, dim);
    tables_.push_back({Reserve(on_gpu_, num_rows * row_bytes), num_rows, dim});
    Memory& memory = *tables_.back().memory;
    if (const Status status = memory.Grow(num_rows * row_bytes); !status.ok()) {
      throw std::runtime_error(status.message());
    }
    const float* values = static_cast<const float*>(view.data);
    for (int64_t r = 0; r < num_rows; ++r) {
      EncodeRow(DataType::kFloat32, values + r * dim, dim, format_, memory.data() + r * row_bytes);
    }
#if GROUP_EMBEDDING_CUDA
    if (on_gpu_) {
      residents_.emplace_back();
      caches_.emplace_back();
      if (resident) {
        residents_.back() = std::make_unique<ResidentRows>(
            memory.data(), row_bytes, num_rows, ResidentRows::BytesFor(row_bytes, num_rows));
      } else {
        caches_.back() = std::make_unique<RowCache>(memory.data(), row_bytes, *copies_bytes);
      }
    }
#endif
  }
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) turns_ = std::make_unique<CacheTurns>();
#endif
}

const PyServedRows::Stored& PyServedRows::At(int64_t table) const {
  if (table < 0 || table >= static_cast<int64_t>(tables_.size())) {
    throw py::value_error("table: expected an index of " + std::to_string(tables_.size()) +
                          " tables, got " + std::to_string(table));
  }
  return tables_[table];
}

void PyServedRows::Lookup(py::object ids, const std::vector<int64_t>& num_ids,
                          py::object row_splits, py::object weights,
                          const std::vector<py::object>& outputs,
                          const std::vector<int64_t>& table_of_feature,
                          const std::vector<std::string>& combiners, uintptr_t stream) {
  RequireCount("num_ids", outputs.size(), num_ids.size());
  RequireCount("table_of_feature", outputs.size(), table_of_feature.size());
  RequireCount("combiners", outputs.size(), combiners.size());
  const ArrayView ids_view = ViewArray(ids, "ids", "i8", 1, on_gpu_);
  RequireContiguous(ids_view);
  std::vector<Table> tables;
  for (const Stored& stored : tables_) {
    tables.push_back({stored.memory->data(), stored.num_rows, static_cast<int32_t>(stored.dim), 0});
  }
#if GROUP_EMBEDDING_CUDA
  for (size_t t = 0; t < caches_.size(); ++t) {
    tables[t].rows = residents_[t] ? residents_[t]->rows() : nullptr;  // null: by address
    if (!residents_[t]) tables[t].num_rows = int64_t{1} << 60;
  }
#endif
  std::vector<Feature> features;
  Group group = {};
  for (size_t f = 0; f < outputs.size(); ++f) {
    const ArrayView view =
        ViewArray(outputs[f], group_embedding::At("outputs", f), "f4", 2, on_gpu_);
    RequireContiguous(view);
    RequireShape(view, {view.shape[0], At(table_of_feature[f]).dim});
    const std::optional<Combiner> combiner = Parse(CombinerWords(), combiners[f]);
    if (!combiner) throw py::value_error(UnknownWord("combiners", CombinerWords(), combiners[f]));
    features.push_back({group.batch.num_samples, view.shape[0], view.data, view.shape[1],
                        static_cast<int32_t>(table_of_feature[f]), *combiner});
    group.batch.num_samples += view.shape[0];
  }
  group.tables = tables.data();
  group.num_tables = static_cast<int64_t>(tables.size());
  group.features = features.data();
  group.num_features = static_cast<int64_t>(features.size());
  group.batch.num_ids = ids_view.shape[0];
  group.batch.ids = static_cast<const int64_t*>(ids_view.data);
  if (!row_splits.is_none()) {
    const ArrayView view = ViewArray(row_splits, "row_splits", "i8", 1, on_gpu_);
    RequireShape(view, {group.batch.num_samples + 1});
    group.batch.row_splits = static_cast<const int64_t*>(view.data);
  }
  if (!weights.is_none()) {
    const ArrayView view = ViewArray(weights, "weights", "f4", 1, on_gpu_);
    RequireShape(view, ids_view.shape);
    group.batch.weights = static_cast<const float*>(view.data);
  }
  const std::vector<RowFormat> formats(tables.size(), format_);
  if (!on_gpu_) {
    py::gil_scoped_release release;
    StoredLookupCpu(group, formats.data(), parallel_for_);
    return;
  }
#if GROUP_EMBEDDING_CUDA
  std::vector<CachedRows> requests;
  int64_t first = 0;
  for (size_t f = 0; f < outputs.size(); ++f) {
    const int32_t t = features[f].table;
    if (caches_[t]) requests.push_back({caches_[t]->ref(), t, first, num_ids[f]});
    first += num_ids[f];
  }
  if (!requests.empty()) RequireWritable(ids_view);  // addresses take the place of row numbers
  if (first != group.batch.num_ids) throw py::value_error("num_ids: expected them to add up");
  void* fetched = scratch_.Get("fetched", FetchedRows::Bytes(requests, group.batch.num_ids));
  void* memory = scratch_.Get("lookup", StoredLookupScratchBytes(group));
  const auto cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  py::gil_scoped_release release;
  cudaError_t error;
  const CacheTurns::Turn turn(turns_.get(), cuda_stream, &error);
  FetchedRows rows(std::move(requests), group.batch.num_ids, turn.call(), fetched);
  CheckCuda(error, "turn");
  CheckCuda(rows.FindRows(static_cast<int64_t*>(ids_view.data), cuda_stream), "FindRows");
  CheckCuda(StoredLookupCuda(group, formats.data(), memory, cuda_stream), "StoredLookup");
  CheckCuda(rows.KeepRows(cuda_stream), "KeepRows");
#endif
}

void PyServedRows::Write(int64_t table, int64_t row, py::object values) {
  const Stored& stored = At(table);
  const ArrayView view = ViewArray(values, "values", "f4", 1, /*on_gpu=*/false);
  RequireShape(view, {stored.dim});
  if (row < 0 || row >= stored.num_rows) throw py::value_error("row: expected one of the table");
#if GROUP_EMBEDDING_CUDA
  DeviceCopies* copies = nullptr;
  if (on_gpu_) copies = caches_[table].get();
  if (on_gpu_ && residents_[table]) copies = residents_[table].get();
  if (copies != nullptr) copies->Forget(&row, 1);
#endif
  EncodeRow(DataType::kFloat32, view.data, stored.dim, format_,
            stored.memory->data() + row * RowBytes(format_, stored.dim));
#if GROUP_EMBEDDING_CUDA
  if (copies != nullptr) copies->Refresh(&row, 1);
#endif
}

py::dict PyServedRows::Counts(int64_t table) const {
  At(table);
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_ && caches_[table]) {
    const RowCacheCounts counts = caches_[table]->counts();
    return py::dict("found"_a = counts.found, "brought"_a = counts.brought, "kept"_a = counts.kept,
                    "capacity"_a = counts.capacity, "bytes"_a = caches_[table]->bytes());
  }
#endif
  return py::dict();
}

}  // namespace group_embedding
