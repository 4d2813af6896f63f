#include "tf/support/feature_reader.h"

#include <string>

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

constexpr int64_t kMaxSamples = int64_t{1} << 40;

IdType ToIdType(tensorflow::DataType dtype) {  // the op's attribute admits no other type
  if (dtype == tensorflow::DT_INT32) return IdType::kInt32;
  if (dtype == tensorflow::DT_UINT32) return IdType::kUInt32;
  return dtype == tensorflow::DT_INT64 ? IdType::kInt64 : IdType::kUInt64;
}

}  // namespace

FeatureReader::FeatureReader(OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, context->GetAttr("layouts", &layouts_));
  OP_REQUIRES_OK(context, context->GetAttr("weighted_features", &weighted_features_));
  OP_REQUIRES_OK(context, context->GetAttr("feature_names", &names_));
  std::vector<int32_t> keyed_features;
  OP_REQUIRES_OK(context, context->GetAttr("keyed_features", &keyed_features));
  std::vector<tensorflow::DataType> value_types;
  OP_REQUIRES_OK(context, context->GetAttr("value_types", &value_types));
  int num_features, num_weighted;
  OP_REQUIRES_OK(context, context->GetAttr("num_features", &num_features));
  OP_REQUIRES_OK(context, context->GetAttr("num_weighted", &num_weighted));
  const size_t count = value_types.size();
  OP_REQUIRES(context,
              num_features == static_cast<int64_t>(count) && layouts_.size() == count &&
                  names_.size() == count &&
                  static_cast<int>(weighted_features_.size()) == num_weighted,
              absl::InvalidArgumentError("expected attributes of one length per feature"));
  weight_of_.assign(count, -1);
  for (int w = 0; w < num_weighted; ++w) {
    const int f = weighted_features_[w];
    OP_REQUIRES(context, f >= 0 && f < num_features,
                absl::InvalidArgumentError("weighted_features: expected indices of features"));
    weight_of_[f] = w;
  }
  is_keyed_.assign(num_features, false);
  for (const int32_t f : keyed_features) {
    OP_REQUIRES(context, f >= 0 && f < num_features,
                absl::InvalidArgumentError("keyed_features: expected indices of features"));
    is_keyed_[f] = true;
  }
}

absl::Status FeatureReader::Read(const FeatureTensors& tensors,
                                 std::vector<FeatureIds>* features) const {
  features->resize(names_.size());
  size_t next_partition = 0, next_shape = 0, next_weight_partition = 0;
  for (size_t f = 0; f < names_.size(); ++f) {
    FeatureIds& feature = (*features)[f];
    feature = {};
    const Tensor& values = *tensors.values[f];
    feature.values = values.data();
    feature.id_type = ToIdType(values.dtype());
    // A key is any 64 bits: uint64 keys are handled as int64.
    if (is_keyed_[f] && feature.id_type == IdType::kUInt64) feature.id_type = IdType::kInt64;
    feature.num_ids = values.NumElements();
    const bool dense = layouts_[f] == "dense" || layouts_[f] == "single";
    if (!dense && (next_partition == tensors.partitions.size() ||
                   (layouts_[f] == "sparse" && next_shape == tensors.dense_shapes.size()))) {
      return Wrong(f, "a partition, and of a SparseTensor a dense shape");
    }
    const Tensor* partition = dense ? nullptr : tensors.partitions[next_partition++];
    const Tensor* shape = layouts_[f] == "sparse" ? tensors.dense_shapes[next_shape++] : nullptr;
    TF_RETURN_IF_ERROR(ReadLayout(f, values, partition, shape, &feature));
    if (weight_of_[f] < 0) continue;
    TF_RETURN_IF_ERROR(ReadWeights(f, values, *tensors.weights[weight_of_[f]], &feature));
    if (dense) continue;
    if (next_weight_partition == tensors.weight_partitions.size())
      return Wrong(f, "indices of weights");
    TF_RETURN_IF_ERROR(ReadWeightPartition(
        f, *partition, *tensors.weight_partitions[next_weight_partition++], &feature));
  }
  return absl::OkStatus();
}

absl::Status FeatureReader::AllocateOutputs(OpKernelContext* context,
                                            const std::vector<FeatureIds>& features,
                                            Tensor** batch) const {
  Tensor* sizes;
  TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({num_features(), 2}), &sizes));
  auto size = sizes->matrix<int64_t>();
  int64_t num_samples = 0, num_ids = 0;
  for (int64_t f = 0; f < num_features(); ++f) {
    if (features[f].num_samples > kMaxSamples - num_samples) {
      return absl::InvalidArgumentError(
          "expected fewer than 2^40 samples of all features; are their shapes right?");
    }
    num_samples += size(f, 0) = features[f].num_samples;
    num_ids += size(f, 1) = features[f].num_ids;
  }
  const BatchLayout layout = LayOutBatch(num_samples, num_ids, weighted());
  return context->allocate_output(0, TensorShape({layout.size}), batch);
}

absl::Status FeatureReader::ToStatus(const Fault& fault,
                                     const std::vector<FeatureIds>& features) const {
  const FeatureIds& feature = features[fault.feature];
  const int64_t limit =
      fault.kind == FaultKind::kRowSplitsInvalid ? feature.num_ids : feature.num_samples;
  return absl::InvalidArgumentError(Describe(fault, names_[fault.feature], "", limit));
}

absl::Status FeatureReader::Wrong(size_t f, const std::string& what) const {
  return absl::InvalidArgumentError("feature '" + names_[f] + "': expected " + what);
}

absl::Status FeatureReader::ReadLayout(size_t f, const Tensor& values, const Tensor* partition,
                                       const Tensor* shape, FeatureIds* feature) const {
  if (layouts_[f] == "single") {
    feature->layout = Layout::kDense;
    feature->num_samples = feature->num_ids;
    return absl::OkStatus();
  }
  if (layouts_[f] == "dense") {
    feature->layout = Layout::kDense;
    if (values.dims() < 2) return Wrong(f, "dense ids of rank 2 or more");
    feature->num_samples = 1;
    for (int axis = 0; axis < values.dims() - 1; ++axis) {
      feature->num_samples *= values.dim_size(axis);
    }
    return absl::OkStatus();
  }
  if (values.dims() != 1) return Wrong(f, "ids in a vector, got " + values.shape().DebugString());
  feature->partition = partition->data();
  return layouts_[f] == "ragged" ? ReadRagged(f, *partition, feature)
                                 : ReadSparse(f, *partition, *shape, feature);
}

absl::Status FeatureReader::ReadRagged(size_t f, const Tensor& splits, FeatureIds* feature) const {
  feature->layout = Layout::kRagged;
  if (splits.dims() != 1 || splits.NumElements() < 1) {
    return Wrong(f, "row_splits of shape [samples + 1], got " + splits.shape().DebugString());
  }
  feature->num_samples = splits.NumElements() - 1;
  feature->int32_splits = splits.dtype() == tensorflow::DT_INT32;
  return absl::OkStatus();
}

absl::Status FeatureReader::ReadSparse(size_t f, const Tensor& indices, const Tensor& shape,
                                       FeatureIds* feature) const {
  feature->layout = Layout::kSparse;
  if (indices.dtype() != tensorflow::DT_INT64 || indices.dims() != 2 ||
      indices.dim_size(0) != feature->num_ids || indices.dim_size(1) != shape.NumElements()) {
    return Wrong(f, "indices of shape [" + std::to_string(feature->num_ids) + ", " +
                        std::to_string(shape.NumElements()) + "], got " +
                        indices.shape().DebugString());
  }
  feature->rank = static_cast<int32_t>(shape.NumElements());
  if (feature->rank < 2 || feature->rank > kMaxSparseRank) {
    return Wrong(f, "a SparseTensor of rank 2 to " + std::to_string(kMaxSparseRank) +
                        ", got rank " + std::to_string(feature->rank));
  }
  feature->num_samples = 1;
  for (int axis = feature->rank - 2; axis >= 0; --axis) {
    const int64_t size = static_cast<const int64_t*>(shape.data())[axis];
    if (size < 0) return Wrong(f, "a dense_shape without negative sizes");
    feature->sample_shape[axis] = size;
    feature->sample_strides[axis] = feature->num_samples;
    if (size > 0 && feature->num_samples > kMaxSamples / size) {
      return Wrong(f, "fewer than 2^40 samples; is its dense_shape right?");
    }
    feature->num_samples *= size;
  }
  return absl::OkStatus();
}

absl::Status FeatureReader::ReadWeights(size_t f, const Tensor& values, const Tensor& weights,
                                        FeatureIds* feature) const {
  if (feature->layout == Layout::kDense && weights.shape() != values.shape()) {
    return Wrong(f, "weights of shape " + values.shape().DebugString() + ", as the ids, got " +
                        weights.shape().DebugString());
  }
  if (weights.NumElements() != feature->num_ids) {
    return Wrong(f, std::to_string(feature->num_ids) + " weights, one per id, got " +
                        std::to_string(weights.NumElements()));
  }
  feature->weights = static_cast<const float*>(weights.data());
  return absl::OkStatus();
}

absl::Status FeatureReader::ReadWeightPartition(size_t f, const Tensor& partition,
                                                const Tensor& of_weights,
                                                FeatureIds* feature) const {
  if (of_weights.shape() != partition.shape() || of_weights.dtype() != partition.dtype()) {
    return Wrong(f, "sp_weights with the indices of sp_ids, of shape " +
                        partition.shape().DebugString() + ", got " +
                        of_weights.shape().DebugString());
  }
  const bool same = of_weights.data() == partition.data();
  feature->weight_partition = same ? nullptr : of_weights.data();
  return absl::OkStatus();
}

}  // namespace group_embedding
