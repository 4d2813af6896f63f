#include "python/grouping.h"

namespace group_embedding {
namespace {

namespace py = pybind11;

IdType ParseIdType(const ArrayView& values) {
  if (values.type == "i4") return IdType::kInt32;
  if (values.type == "i8") return IdType::kInt64;
  if (values.type == "u4") return IdType::kUInt32;
  if (values.type == "u8") return IdType::kUInt64;
  throw py::value_error("values: expected int32, int64, uint32 or uint64, got " + values.type);
}

// `values` has any rank; its items in order are the ids.
PyFeatureIds Start(py::object values, py::object weights) {
  PyFeatureIds feature;
  const ArrayView view = ViewArray(values, "values");
  RequireContiguous(view);
  feature.on_gpu = view.on_gpu;
  feature.ids.values = view.data;
  feature.ids.num_ids = view.num_items();
  feature.ids.id_type = ParseIdType(view);
  feature.arrays = {values, weights};
  if (!weights.is_none()) {
    const ArrayView weights_view =
        ViewArray(weights, "weights", "f4", view.shape.size(), view.on_gpu);
    RequireShape(weights_view, view.shape);
    RequireContiguous(weights_view);
    feature.ids.weights = static_cast<const float*>(weights_view.data);
  }
  return feature;
}

void SetWeightPartition(PyFeatureIds* feature, const ArrayView& partition, py::object other,
                        const std::string& name) {
  if (other.is_none()) return;
  const ArrayView view =
      ViewArray(other, name, partition.type, partition.shape.size(), feature->on_gpu);
  RequireShape(view, partition.shape);
  RequireContiguous(view);
  feature->ids.weight_partition = view.data;
  feature->arrays.push_back(std::move(other));
}

}  // namespace

PyFeatureIds SparseIds(py::object values, py::object indices,
                       const std::vector<int64_t>& dense_shape, py::object weights,
                       py::object weight_indices) {
  const int64_t rank = static_cast<int64_t>(dense_shape.size());
  if (rank < 2 || rank > kMaxSparseRank) {
    throw py::value_error("dense_shape: expected rank 2 to " + std::to_string(kMaxSparseRank) +
                          ", got " + std::to_string(rank));
  }
  PyFeatureIds feature = Start(values, weights);
  const ArrayView view = ViewArray(indices, "indices", "i8", 2, feature.on_gpu);
  RequireShape(view, {feature.ids.num_ids, rank});
  RequireContiguous(view);
  feature.arrays.push_back(std::move(indices));
  feature.ids.layout = Layout::kSparse;
  feature.ids.partition = view.data;
  feature.ids.rank = static_cast<int32_t>(rank);
  feature.ids.num_samples = 1;
  for (int64_t axis = rank - 2; axis >= 0; --axis) {
    feature.ids.sample_shape[axis] = dense_shape[axis];
    feature.ids.sample_strides[axis] = feature.ids.num_samples;
    feature.ids.num_samples *= dense_shape[axis];
  }
  SetWeightPartition(&feature, view, std::move(weight_indices), "weight_indices");
  return feature;
}

PyFeatureIds RaggedIds(py::object values, py::object row_splits, py::object weights,
                       py::object weight_row_splits) {
  PyFeatureIds feature = Start(values, weights);
  const ArrayView view = ViewArray(row_splits, "row_splits", "", 1, feature.on_gpu);
  RequireContiguous(view);
  if ((view.type != "i4" && view.type != "i8") || view.shape[0] < 1) {
    throw py::value_error("row_splits: expected int32 or int64 [num_samples + 1], got type " +
                          view.type + " [" + std::to_string(view.shape[0]) + "]");
  }
  feature.arrays.push_back(std::move(row_splits));
  feature.ids.layout = Layout::kRagged;
  feature.ids.partition = view.data;
  feature.ids.int32_splits = view.type == "i4";
  feature.ids.num_samples = view.shape[0] - 1;
  SetWeightPartition(&feature, view, std::move(weight_row_splits), "weight_row_splits");
  return feature;
}

PyFeatureIds DenseIds(py::object values, py::object weights) {
  PyFeatureIds feature = Start(values, weights);
  const ArrayView view = ViewArray(values, "values", "", 2, feature.on_gpu);
  feature.ids.layout = Layout::kDense;
  feature.ids.num_samples = view.shape[0];
  return feature;
}

PyGrouping::PyGrouping(const std::vector<PyFeatureIds>& features, bool weighted,
                       py::object allocate, int num_threads)
    : features_(features),
      weighted_(weighted),
      on_gpu_(!features.empty() && features[0].on_gpu),
      scratch_(std::move(allocate), on_gpu_),
      parallel_for_(ThreadedFor(num_threads)) {
#if !GROUP_EMBEDDING_CUDA
  if (on_gpu_) throw py::value_error("features: in GPU memory, but this build is without CUDA");
#endif
  for (size_t f = 0; f < features.size(); ++f) {
    if (features[f].on_gpu != on_gpu_) {
      throw py::value_error("features[" + std::to_string(f) +
                            "]: expected it in the same memory as features[0]");
    }
    ids_.push_back(features[f].ids);
    num_samples_ += features[f].ids.num_samples;
    num_ids_ += features[f].ids.num_ids;
  }
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) fault_ = std::make_unique<DeviceFault>(&scratch_);
#endif
}

py::dict PyGrouping::Layout() const {
  const BatchLayout layout = LayOutBatch(num_samples_, num_ids_, weighted_);
  py::dict result;
  result["num_samples"] = num_samples_;
  result["num_ids"] = num_ids_;
  result["ids"] = layout.ids;
  result["weights"] = layout.weights;
  result["size"] = layout.size;
  return result;
}

void PyGrouping::Raise(const Fault& fault) const {
  if (fault.kind == FaultKind::kNone) return;
  const FeatureIds& feature = ids_[fault.feature];
  const int64_t limit =
      fault.kind == FaultKind::kRowOutOfBatch ? feature.sample_shape[0] : feature.num_ids;
  throw py::value_error(Describe(fault, std::to_string(fault.feature), "", limit));
}

void PyGrouping::Run(py::object buffer, uintptr_t stream) {
  const ArrayView view = ViewArray(buffer, "buffer", "f4", 1, on_gpu_);
  RequireShape(view, {LayOutBatch(num_samples_, num_ids_, weighted_).size});
  RequireContiguous(view);
  RequireWritable(view);
  if (reinterpret_cast<uintptr_t>(view.data) % sizeof(int64_t) != 0) {
    throw py::value_error("buffer: expected an address that is a multiple of 8");
  }
  float* to = static_cast<float*>(view.data);
  const int64_t num_features = static_cast<int64_t>(ids_.size());
  if (!on_gpu_) {
    Fault fault;
    {
      py::gil_scoped_release release;
      fault = GroupIdsCpu(ids_.data(), num_features, weighted_, to, parallel_for_);
    }
    return Raise(fault);
  }
#if GROUP_EMBEDDING_CUDA
  void* scratch = scratch_.Get("group_ids", GroupIdsScratchBytes(num_features));
  py::gil_scoped_release release;
  CheckCuda(GroupIdsCuda(ids_.data(), num_features, weighted_, to, scratch, fault_->pointer(),
                         reinterpret_cast<cudaStream_t>(stream)),
            "group_ids");
#endif
}

void PyGrouping::Check(uintptr_t stream) {
#if GROUP_EMBEDDING_CUDA
  if (on_gpu_) Raise(fault_->Take(stream));
#endif
}

}  // namespace group_embedding
