#include "tf/support/group_attrs.h"

#include "core/words.h"
#include "fused/group_lookup_grad.h"
#include "tf/support/located_batch.h"
#include "tf/support/shared_buffer.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::Tensor;

}  // namespace

absl::Status ReadCombiners(OpKernelConstruction* context, std::vector<Combiner>* combiners) {
  std::vector<std::string> words;
  TF_RETURN_IF_ERROR(context->GetAttr("combiners", &words));
  for (const std::string& word : words) {
    const std::optional<Combiner> combiner = Parse(CombinerWords(), word);
    if (!combiner) {
      return absl::InvalidArgumentError(UnknownWord("combiners", CombinerWords(), word));
    }
    combiners->push_back(*combiner);
  }
  return absl::OkStatus();
}

absl::Status GetTablesWithSums(OpKernelConstruction* context, size_t num_tables,
                               std::vector<bool>* with_sums) {
  std::vector<int32_t> indices;
  TF_RETURN_IF_ERROR(context->GetAttr("tables_with_sums", &indices));
  if (!indices.empty()) with_sums->assign(num_tables, false);
  for (const int32_t index : indices) {
    if (index < 0 || static_cast<size_t>(index) >= num_tables) {
      return absl::InvalidArgumentError("tables_with_sums: expected indices into num_rows, got " +
                                        std::to_string(index));
    }
    (*with_sums)[index] = true;
  }
  return absl::OkStatus();
}

DataType ToCore(tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_FLOAT) return DataType::kFloat32;
  return dtype == tensorflow::DT_HALF ? DataType::kFloat16 : DataType::kBFloat16;
}

tensorflow::DataType FromCore(DataType dtype) {
  if (dtype == DataType::kFloat32) return tensorflow::DT_FLOAT;
  return dtype == DataType::kFloat16 ? tensorflow::DT_HALF : tensorflow::DT_BFLOAT16;
}

absl::Status CheckSortable(const Batch& batch) {
  if (batch.num_ids < kMaxBatchIds && batch.num_samples < kMaxBatchIds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "expected fewer than 2^32 - 1 ids and samples in one group; split the batch");
}

GroupAttrs::GroupAttrs(OpKernelConstruction* context) {
  std::string invalid;
  OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype));
  OP_REQUIRES_OK(context, context->GetAttr("table_of_feature", &table_of_feature));
  OP_REQUIRES_OK(context, ReadCombiners(context, &combiners));
  OP_REQUIRES_OK(context, context->GetAttr("dims", &dims));
  OP_REQUIRES_OK(context, context->GetAttr("max_norms", &max_norms));
  OP_REQUIRES_OK(context, context->GetAttr("table_names", &table_names));
  OP_REQUIRES_OK(context, context->GetAttr("feature_names", &feature_names));
  OP_REQUIRES_OK(context, context->GetAttr("concat", &concat));
  OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted));
  OP_REQUIRES_OK(context, context->GetAttr("prune_negative", &invalid_ids.prune_negative));
  OP_REQUIRES_OK(context, context->GetAttr("invalid_ids", &invalid));
  invalid_ids.read_zeros = invalid == "ignore";
  core_dtype = ToCore(dtype);

  const size_t num_features = table_of_feature.size(), num_tables = dims.size();
  OP_REQUIRES(context,
              num_features > 0 && combiners.size() == num_features &&
                  feature_names.size() == num_features && table_names.size() == num_tables &&
                  max_norms.size() == num_tables,
              absl::InvalidArgumentError(
                  "expected attributes of one length per feature and one per table"));
  for (const int32_t table : table_of_feature) {
    OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(num_tables),
                absl::InvalidArgumentError("table_of_feature: expected indices into tables"));
  }
  for (const int32_t dim : dims) {
    OP_REQUIRES(context, dim >= 1 && dim <= kMaxDim,
                absl::InvalidArgumentError("dims: expected 1 <= dim <= " + std::to_string(kMaxDim) +
                                           ", got " + std::to_string(dim)));
  }
}

int64_t GroupAttrs::Width() const {
  int64_t width = 0;
  for (const int32_t table : table_of_feature) width += dims[table];
  return width;
}

absl::Status GroupAttrs::MakeFeatures(tensorflow::OpKernelContext* context, BatchCheck check,
                                      BatchInput* batch, std::vector<Feature>* features) const {
  const Tensor *buffer, *sizes;
  TF_RETURN_IF_ERROR(context->input("batch", &buffer));
  TF_RETURN_IF_ERROR(context->input("sizes", &sizes));
  const int64_t num_features = static_cast<int64_t>(table_of_feature.size());
  TF_RETURN_IF_ERROR(
      ReadBatch(context, *buffer, *sizes, num_features, weighted, check, &feature_names, batch));
  TF_RETURN_IF_ERROR(FindReads(*buffer, &batch->view));
  const BatchExtents& extents = batch->extents;
  for (int64_t f = 0; f < num_features; ++f) {
    const int64_t num_samples = extents.num_samples(f);
    if (concat && num_samples != extents.num_samples(0)) {
      return absl::InvalidArgumentError(
          "feature '" + feature_names[f] + "': expected " + std::to_string(extents.num_samples(0)) +
          " samples, as feature '" + feature_names[0] + "' has, got " +
          std::to_string(num_samples) + "; only features of one batch can be concatenated");
    }
    features->push_back(
        {extents.first_samples[f], num_samples, nullptr, 0, table_of_feature[f], combiners[f]});
  }
  return absl::OkStatus();
}

absl::Status GroupAttrs::AllocateOutputs(tensorflow::OpKernelContext* context,
                                         std::vector<Feature>* features) const {
  std::vector<tensorflow::TensorShape> shapes;
  for (int64_t f = 0; f < NumOutputs(); ++f) {
    const Feature& feature = (*features)[f];
    shapes.push_back(
        tensorflow::TensorShape({feature.num_samples, concat ? Width() : dims[feature.table]}));
  }
  std::vector<void*> outputs;
  TF_RETURN_IF_ERROR(AllocateOutputsTogether(context, 0, dtype, shapes, &outputs));
  PointTo(outputs, features);
  return absl::OkStatus();
}

void GroupAttrs::PointTo(const std::vector<void*>& outputs, std::vector<Feature>* features) const {
  const int64_t element_bytes = SizeOf(core_dtype);
  const int64_t width = Width();
  int64_t column = 0;
  for (size_t f = 0; f < features->size(); ++f) {
    Feature& feature = (*features)[f];
    const int64_t dim = dims[feature.table];
    feature.output = concat ? static_cast<char*>(outputs[0]) + column * element_bytes : outputs[f];
    feature.output_stride = concat ? width : dim;
    column += dim;
  }
}

absl::Status GroupAttrs::ReadGradients(tensorflow::OpKernelContext* context,
                                       const std::vector<int32_t>& grad_features,
                                       std::vector<Feature>* features) const {
  tensorflow::OpInputList inputs;
  TF_RETURN_IF_ERROR(context->input_list("grads", &inputs));
  const int64_t num_outputs = NumOutputs();
  if (inputs.size() != static_cast<int>(grad_features.size())) {
    return absl::InvalidArgumentError("grads: expected one for each of grad_features");
  }
  std::vector<void*> gradients(num_outputs, nullptr);
  for (int i = 0; i < inputs.size(); ++i) {
    const int32_t f = grad_features[i];
    if (f < 0 || f >= num_outputs) {
      return absl::InvalidArgumentError("grad_features: expected indices into the outputs");
    }
    const Feature& feature = (*features)[f];
    const int64_t width = concat ? Width() : dims[feature.table];
    if (inputs[i].shape() != tensorflow::TensorShape({feature.num_samples, width})) {
      return absl::InvalidArgumentError(
          "feature '" + feature_names[f] + "': expected a gradient of shape [" +
          std::to_string(feature.num_samples) + ", " + std::to_string(width) + "], got " +
          inputs[i].shape().DebugString());
    }
    gradients[f] = inputs[i].data();
  }
  PointTo(gradients, features);
  return absl::OkStatus();
}

absl::Status GroupAttrs::ToStatus(const Fault& fault, const std::vector<Table>& tables,
                                  const BatchExtents* batch) const {
  if (fault.kind == FaultKind::kNone) return absl::OkStatus();
  if (fault.feature < 0 || fault.feature >= static_cast<int32_t>(table_of_feature.size())) {
    return absl::InvalidArgumentError("bad input of a feature unknown to this rank");
  }
  const int32_t table = table_of_feature[fault.feature];
  int64_t limit = tables[table].num_rows;
  if (fault.kind == FaultKind::kRowSplitsInvalid) {
    limit = batch == nullptr ? -1 : batch->num_ids(fault.feature);
  }
  return absl::InvalidArgumentError(
      Describe(fault, feature_names[fault.feature], table_names[table], limit));
}

}  // namespace group_embedding
