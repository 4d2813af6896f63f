#include "python/group.h"

#include "core/words.h"

namespace group_embedding {
namespace {

namespace py = pybind11;

Combiner ParseCombiner(const std::string& word) {
  const std::optional<Combiner> combiner = Parse(CombinerWords(), word);
  if (!combiner) throw py::value_error(UnknownWord("combiners", CombinerWords(), word));
  return *combiner;
}

}  // namespace

PyGroup::PyGroup(const std::vector<py::object>& tables, const std::vector<py::object>& outputs,
                 py::object ids, py::object row_splits, py::object weights,
                 const std::string& dtype, const std::vector<int64_t>& table_of_feature,
                 const std::vector<std::string>& combiners, const std::vector<float>& max_norms,
                 bool prune_negative, bool read_zeros, py::object allocate, int num_threads,
                 const std::optional<std::vector<int64_t>>& first_host_rows)
    : dtype_(ParseDataType("dtype", dtype)),
      invalid_ids_{prune_negative, read_zeros},
      on_gpu_(ViewArray(ids, "ids").on_gpu),
      scratch_(std::move(allocate), on_gpu_),
      parallel_for_(ThreadedFor(num_threads)) {
#if !GROUP_EMBEDDING_CUDA
  if (on_gpu_) throw py::value_error("ids: in GPU memory, but this build is without CUDA");
#endif
  RequireCount("max_norms", tables.size(), max_norms.size());
  RequireCount("table_of_feature", outputs.size(), table_of_feature.size());
  RequireCount("combiners", outputs.size(), combiners.size());
  for (size_t t = 0; t < tables.size(); ++t) AddTable(tables[t], max_norms[t]);
  if (first_host_rows) {
    RequireCount("first_host_rows", tables.size(), first_host_rows->size());
    for (size_t t = 0; t < tables.size(); ++t) tables_[t].first_host_row = (*first_host_rows)[t];
  }
  for (size_t f = 0; f < outputs.size(); ++f) {
    AddFeature(outputs[f], table_of_feature[f], combiners[f]);
  }
  const ArrayView ids_view = ViewArray(ids, "ids", "i8", 1, on_gpu_);
  RequireContiguous(ids_view);
  if (row_splits.is_none()) {
    RequireShape(ids_view, {batch_.num_samples});
  } else {
    const ArrayView view = ViewArray(row_splits, "row_splits", "i8", 1, on_gpu_);
    RequireContiguous(view);
    RequireShape(view, {batch_.num_samples + 1});
    batch_.row_splits = static_cast<const int64_t*>(view.data);
  }
  batch_.ids = static_cast<const int64_t*>(ids_view.data);
  batch_.num_ids = ids_view.shape[0];
  if (!weights.is_none()) {
    const ArrayView view = ViewArray(weights, "weights", "f4", 1, on_gpu_);
    RequireContiguous(view);
    RequireShape(view, ids_view.shape);
    batch_.weights = static_cast<const float*>(view.data);
  }
  arrays_.insert(arrays_.end(), {ids, row_splits, weights});
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) fault_ = std::make_unique<DeviceFault>(&scratch_);
#endif
}

void PyGroup::AddTable(py::object array, float max_norm) {
  const ArrayView view = ViewRows(array, At("tables", tables_.size()), dtype_, 2, on_gpu_);
  RequireContiguous(view);
  tables_.push_back({view.data, view.shape[0], static_cast<int32_t>(view.shape[1]), max_norm});
  table_arrays_.push_back(std::move(array));
}

void PyGroup::AddFeature(py::object output, int64_t table, const std::string& combiner) {
  const size_t f = features_.size();
  if (table < 0 || table >= static_cast<int64_t>(tables_.size())) {
    throw py::value_error(At("table_of_feature", f) + ": expected an index of " +
                          std::to_string(tables_.size()) + " tables, got " + std::to_string(table));
  }
  if (py::isinstance<py::int_>(output)) {  // so many samples without a gradient
    const int64_t num_samples = output.cast<int64_t>();
    features_.push_back({batch_.num_samples, num_samples, nullptr, tables_[table].dim,
                         static_cast<int32_t>(table), ParseCombiner(combiner)});
    batch_.num_samples += num_samples;
    return;
  }
  const ArrayView view = ViewRows(output, At("outputs", f), dtype_, 2, on_gpu_);
  RequireShape(view, {view.shape[0], tables_[table].dim});
  RequireWritable(view);
  if (!view.IsContiguousFrom(1) || view.strides[0] % SizeOf(dtype_) != 0) {
    throw py::value_error(view.name + ": expected samples whose elements follow each other");
  }
  features_.push_back({batch_.num_samples, view.shape[0], view.data,
                       view.strides[0] / SizeOf(dtype_), static_cast<int32_t>(table),
                       ParseCombiner(combiner)});
  batch_.num_samples += view.shape[0];
  arrays_.push_back(std::move(output));
}

Group PyGroup::group() const {
  return {tables_.data(),   static_cast<int64_t>(tables_.size()),
          features_.data(), static_cast<int64_t>(features_.size()),
          batch_,           dtype_,
          invalid_ids_};
}

void PyGroup::Raise(const Fault& fault) const {
  if (fault.kind == FaultKind::kNone) return;
  const int32_t table = features_[fault.feature].table;
  throw py::value_error(Describe(fault, std::to_string(fault.feature), std::to_string(table),
                                 tables_[table].num_rows));
}

void PyGroup::Lookup(uintptr_t stream) {
  for (const Feature& feature : features_) {
    if (feature.output == nullptr && feature.num_samples > 0) {
      throw py::value_error("lookup: every feature needs an output");
    }
  }
  if (!on_gpu_) {
    Fault fault;
    {
      py::gil_scoped_release release;
      fault = GroupLookupCpu(group(), parallel_for_);
    }
    return Raise(fault);
  }
#if GROUP_EMBEDDING_CUDA
  void* scratch = scratch_.Get("lookup", GroupLookupScratchBytes(group()));
  py::gil_scoped_release release;
  CheckCuda(
      GroupLookupCuda(group(), scratch, fault_->pointer(), reinterpret_cast<cudaStream_t>(stream)),
      "lookup");
#endif
}

void PyGroup::Check(uintptr_t stream) {
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) Raise(fault_->Take(stream));
#endif
}

void PyGroup::RequireFewRows() const {
  const int64_t max_rows = RowSorter::MaxRows(group());
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].num_rows <= max_rows) continue;
    throw py::value_error(At("tables", t) + ": expected at most " + std::to_string(max_rows) +
                          " rows for a batch of " + std::to_string(group().batch.num_ids) +
                          " ids, got " + std::to_string(tables_[t].num_rows));
  }
}

void PyGroup::SortRows(uintptr_t stream) {
  num_unique_.clear();
  if (!on_gpu_) {
    RequireFewRows();
    void* workspace = scratch_.Get("sort_rows", RowSorter::WorkspaceBytes(group()));
    py::gil_scoped_release release;
    sorter_ = std::make_unique<RowSorter>(group(), workspace, parallel_for_);
    SortRowsCpu(sorter_.get(), parallel_for_);
    num_unique_ = sorter_->SumRows();
    return;
  }
#if GROUP_EMBEDDING_CUDA
  void* workspace = scratch_.Get("sort_rows", SortRowsWorkspaceBytesCuda(group()));
  py::gil_scoped_release release;
  CheckCuda(SortRowsCuda(group(), workspace, &sorted_, reinterpret_cast<cudaStream_t>(stream)),
            "sort_rows");
#endif
}

std::vector<int64_t> PyGroup::NumUnique(uintptr_t stream) {
  if (!num_unique_.empty()) return num_unique_;
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_ && sorted_.num_unique != nullptr) return CopyNumUnique(stream);
#endif
  throw py::value_error("num_unique: call sort_rows first");
}

#if GROUP_EMBEDDING_CUDA
std::vector<int64_t> PyGroup::CopyNumUnique(uintptr_t stream) {
  std::vector<int64_t> counts(tables_.size() + 1);
  CheckCuda(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream)), "num_unique");
  CheckCuda(cudaMemcpy(counts.data(), sorted_.num_unique, counts.size() * sizeof(int64_t),
                       cudaMemcpyDeviceToHost),
            "num_unique");
  return num_unique_ = std::move(counts);
}
#endif

void PyGroup::ReduceRows(const std::vector<py::object>& indices,
                         const std::vector<py::object>& values, uintptr_t stream) {
  if (num_unique_.empty()) throw py::value_error("reduce_rows: call num_unique first");
  RequireCount("indices", tables_.size(), indices.size());
  RequireCount("values", tables_.size(), values.size());
  std::vector<TableGrad> grads;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int64_t count = num_unique_[t + 1] - num_unique_[t];
    const ArrayView index = ViewArray(indices[t], At("indices", t), "i8", 1, on_gpu_);
    const ArrayView value = ViewRows(values[t], At("values", t), dtype_, 2, on_gpu_);
    RequireShape(index, {count});
    RequireShape(value, {count, tables_[t].dim});
    for (const ArrayView& array : {index, value}) RequireContiguous(array), RequireWritable(array);
    grads.push_back({static_cast<int64_t*>(index.data), value.data});
  }
  if (!on_gpu_) {
    py::gil_scoped_release release;
    return ReduceRowsCpu(*sorter_, grads.data(), parallel_for_);
  }
#if GROUP_EMBEDDING_CUDA
  void* scratch = scratch_.Get("reduce_rows", ReduceRowsScratchBytesCuda(group()));
  py::gil_scoped_release release;
  CheckCuda(ReduceRowsCuda(group(), sorted_, grads.data(), scratch,
                           reinterpret_cast<cudaStream_t>(stream)),
            "reduce_rows");
#endif
}

void PyGroup::WeightGrad(py::object weight_grad, uintptr_t stream) {
  const ArrayView view = ViewArray(weight_grad, "weight_grad", "f4", 1, on_gpu_);
  RequireShape(view, {batch_.num_ids});
  RequireContiguous(view);
  RequireWritable(view);
  float* to = static_cast<float*>(view.data);
  if (!on_gpu_) {
    py::gil_scoped_release release;
    return WeightGradCpu(group(), to, parallel_for_);
  }
#if GROUP_EMBEDDING_CUDA
  void* scratch = scratch_.Get("weight_grad", WeightGradScratchBytesCuda(group()));
  py::gil_scoped_release release;
  CheckCuda(WeightGradCuda(group(), to, scratch, reinterpret_cast<cudaStream_t>(stream)),
            "weight_grad");
#endif
}

void PyGroup::Update(const group_embedding::Update& update, uintptr_t stream) {
  if (!on_gpu_) {
    RequireFewRows();
    void* workspace = scratch_.Get("update", GroupUpdateWorkspaceBytes(group()));
    py::gil_scoped_release release;
    return GroupUpdateCpu(group(), update, workspace, parallel_for_);
  }
#if GROUP_EMBEDDING_CUDA
  void* workspace = scratch_.Get("update", GroupUpdateWorkspaceBytesCuda(group()));
  py::gil_scoped_release release;
  CheckCuda(GroupUpdateCuda(group(), update, workspace, reinterpret_cast<cudaStream_t>(stream)),
            "update");
#endif
}

py::dict PyGroup::ScratchBytes() const {
  py::dict bytes;
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) {
    bytes["lookup"] = GroupLookupScratchBytes(group());
    bytes["sort_rows"] = SortRowsWorkspaceBytesCuda(group());
    bytes["reduce_rows"] = ReduceRowsScratchBytesCuda(group());
    bytes["weight_grad"] = WeightGradScratchBytesCuda(group());
    bytes["update"] = GroupUpdateWorkspaceBytesCuda(group());
    return bytes;
  }
#endif
  bytes["sort_rows"] = RowSorter::WorkspaceBytes(group());
  bytes["update"] = GroupUpdateWorkspaceBytes(group());
  return bytes;
}

}  // namespace group_embedding
