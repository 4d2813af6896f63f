// FeatureReader: the ids of a group's features, as tensors of each layout, in the core's terms.
#pragma once

#include <string>
#include <vector>

#include "grouping/group_ids.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// The inputs of GroupIds, each a list in the order of features.
struct FeatureTensors {
  using List = std::vector<const tensorflow::Tensor*>;

  List values, partitions, dense_shapes, weights, weight_partitions;
};

// Every shape is checked here, every value in the core. Elements are read by pointer: tensors may
// lie where their element type may, which is not everywhere that TensorFlow's own ops want them.
class FeatureReader {
 public:
  // By the attributes of GroupIds. Where they do not belong together, the context has a status, and
  // what is made here must not be used.
  explicit FeatureReader(tensorflow::OpKernelConstruction* context);

  bool weighted() const { return !weighted_features_.empty(); }
  int64_t num_features() const { return static_cast<int64_t>(names_.size()); }

  absl::Status Read(const FeatureTensors& tensors, std::vector<FeatureIds>* features) const;
  // Allocates the op's outputs: the batch, and its sizes, which are written.
  absl::Status AllocateOutputs(tensorflow::OpKernelContext* context,
                               const std::vector<FeatureIds>& features,
                               tensorflow::Tensor** batch) const;
  absl::Status ToStatus(const Fault& fault, const std::vector<FeatureIds>& features) const;

 private:
  absl::Status Wrong(size_t f, const std::string& what) const;
  // partition: null for dense ids; shape: null except for a SparseTensor.
  absl::Status ReadLayout(size_t f, const tensorflow::Tensor& values,
                          const tensorflow::Tensor* partition, const tensorflow::Tensor* shape,
                          FeatureIds* feature) const;
  absl::Status ReadRagged(size_t f, const tensorflow::Tensor& splits, FeatureIds* feature) const;
  absl::Status ReadSparse(size_t f, const tensorflow::Tensor& indices,
                          const tensorflow::Tensor& shape, FeatureIds* feature) const;
  absl::Status ReadWeights(size_t f, const tensorflow::Tensor& values,
                           const tensorflow::Tensor& weights, FeatureIds* feature) const;
  absl::Status ReadWeightPartition(size_t f, const tensorflow::Tensor& partition,
                                   const tensorflow::Tensor& of_weights, FeatureIds* feature) const;

  std::vector<std::string> layouts_, names_;
  std::vector<int32_t> weighted_features_, weight_of_;
  std::vector<bool> is_keyed_;
};

}  // namespace group_embedding
