// GroupAttrs: the attributes that GroupLookup, GroupLookupGrad and GroupUpdate share, and the
// conversion of their inputs to the core's types.
#pragma once

#include <string>
#include <vector>

#include "fused/group_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/batch_input.h"

namespace group_embedding {

DataType ToCore(tensorflow::DataType dtype);
tensorflow::DataType FromCore(DataType dtype);
// Reads the attribute "combiners", and appends one Combiner per feature.
absl::Status ReadCombiners(tensorflow::OpKernelConstruction* context,
                           std::vector<Combiner>* combiners);
// Reads the attribute "tables_with_sums": for each of so many tables, whether it is listed; empty:
// none is.
absl::Status GetTablesWithSums(tensorflow::OpKernelConstruction* context, size_t num_tables,
                               std::vector<bool>* with_sums);

// Refuses a batch with more ids or samples than those that sort them can number.
absl::Status CheckSortable(const Batch& batch);

struct GroupAttrs {
  // Where attributes do not belong together, the context has a status, and what is made here must
  // not be used.
  explicit GroupAttrs(tensorflow::OpKernelConstruction* context);

  // Reads the op's inputs "batch" and "sizes", and makes a feature for each line of `sizes`, its
  // output still null.
  absl::Status MakeFeatures(tensorflow::OpKernelContext* context, BatchCheck check,
                            BatchInput* batch, std::vector<Feature>* features) const;

  // Makes the op's first outputs, and points each feature to its part of them.
  absl::Status AllocateOutputs(tensorflow::OpKernelContext* context,
                               std::vector<Feature>* features) const;

  // Points each feature to its part of `outputs`: a tensor of its own, or columns of the only one.
  void PointTo(const std::vector<void*>& outputs, std::vector<Feature>* features) const;

  // Points each feature to its part of the op's input "grads": one tensor for each of
  // `grad_features`, or the only one of a concatenated output. Other features have no gradient.
  absl::Status ReadGradients(tensorflow::OpKernelContext* context,
                             const std::vector<int32_t>& grad_features,
                             std::vector<Feature>* features) const;

  // `batch`: in which the fault was found; null: that of another rank.
  absl::Status ToStatus(const Fault& fault, const std::vector<Table>& tables,
                        const BatchExtents* batch) const;
  int64_t Width() const;  // sum of the dims of all features
  int64_t NumOutputs() const { return concat ? 1 : static_cast<int64_t>(table_of_feature.size()); }

  tensorflow::DataType dtype;
  DataType core_dtype;
  std::vector<int32_t> table_of_feature;
  std::vector<Combiner> combiners;
  std::vector<int32_t> dims;
  std::vector<float> max_norms;
  std::vector<std::string> table_names, feature_names;
  bool concat, weighted;
  InvalidIds invalid_ids;
};

}  // namespace group_embedding
