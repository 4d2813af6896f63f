#include "fused/group_update.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/trace.h"
#include "fused/group_lookup_grad.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/check_rows.h"
#include "tf/support/device.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/large_page_variables.h"
#include "tf/support/located_batch.h"
#include "tf/support/written_tables.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

struct Cpu {
  static constexpr bool kIsHost = true;

  static absl::Status Run(OpKernelContext* context, const Group& group, const Update& update) {
    TF_RETURN_IF_ERROR(CheckRows(group));
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateScratch(context, GroupUpdateWorkspaceBytes(group), &workspace));
    GroupUpdateCpu(group, update, workspace.data(), ThreadsOf(context));
    return absl::OkStatus();
  }

  // Refuses an index outside its table.
  static absl::Status CheckIndices(const Tensor& indices, const std::vector<Feature>& features,
                                   const std::vector<Table>& tables,
                                   const std::vector<std::string>& names) {
    const auto index = indices.flat<int64_t>();
    for (const Feature& feature : features) {
      const int64_t num_rows = tables[feature.table].num_rows;
      for (int64_t i = 0; i < feature.num_samples; ++i) {
        const int64_t row = index(feature.first_sample + i);
        if (row >= 0 && row < num_rows) continue;
        return absl::InvalidArgumentError(
            "table '" + names[feature.table] + "': index " + std::to_string(row) + " at position " +
            std::to_string(i) + " of its gradient is outside the table; expected 0 <= index < " +
            std::to_string(num_rows));
      }
    }
    return absl::OkStatus();
  }
};

#if GOOGLE_CUDA
struct Gpu {
  static constexpr bool kIsHost = false;

  static absl::Status Run(OpKernelContext* context, const Group& group, const Update& update) {
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateScratch(context, GroupUpdateWorkspaceBytesCuda(group), &workspace));
    return ToStatus(GroupUpdateCuda(group, update, workspace.data(), StreamOf(context)),
                    "GroupUpdate");
  }

  // Nothing waits for the GPU: there an index outside its table is passed over, as TensorFlow's own
  // sparse updates do.
  static absl::Status CheckIndices(const Tensor&, const std::vector<Feature>&,
                                   const std::vector<Table>&, const std::vector<std::string>&) {
    return absl::OkStatus();
  }
};
#endif

// What the op's rule does to `tables`, one for each of the group's.
absl::Status MakeUpdate(OpKernelContext* context, const RuleAttrs& rule,
                        const std::vector<TableUpdate>& tables, Update* update) {
  const Tensor* hyper;
  TF_RETURN_IF_ERROR(context->input("hyper", &hyper));
  if (hyper->shape() != TensorShape({kNumHyper})) {
    return absl::InvalidArgumentError("hyper: expected shape [" + std::to_string(kNumHyper) +
                                      "], got " + hyper->shape().DebugString());
  }
  *update = {rule.rule,
             static_cast<const Hyper*>(hyper->data()),
             tables.data(),
             ToCore(rule.slot_dtype),
             rule.stochastic_rounding,
             rule.stochastic_slots};
  return absl::OkStatus();
}

template <typename Device>
class GroupUpdateOp : public OpKernel {
 public:
  explicit GroupUpdateOp(OpKernelConstruction* context)
      : OpKernel(context), attrs_(context), rule_(context) {
    if (!context->status().ok()) return;  // of attributes that do not belong together
    std::vector<int32_t> keyed;
    OP_REQUIRES_OK(context, context->GetAttr("updated_tables", &updated_));
    OP_REQUIRES_OK(context, context->GetAttr("updated_keyed", &keyed));
    num_variables_ = updated_.size();
    updated_.insert(updated_.end(), keyed.begin(), keyed.end());
    OP_REQUIRES_OK(context, context->GetAttr("grad_features", &grad_features_));
    for (const int32_t table : updated_) {
      OP_REQUIRES(context, table >= 0 && table < static_cast<int32_t>(attrs_.dims.size()),
                  absl::InvalidArgumentError("updated_tables: expected indices into the tables"));
      names_.push_back(attrs_.table_names[table]);
    }
    large_pages_ = LargePageVariables(num_variables_ * (1 + rule_.slots.size()));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("update");
    WrittenTables written;
    OP_REQUIRES_OK(context, written.Open(context, rule_, names_));
    if constexpr (Device::kIsHost) MoveToLargePages(written);
    std::vector<Table> tables;
    std::vector<TableUpdate> updates;
    OP_REQUIRES_OK(context, Place(written, &tables, &updates));
    std::vector<Feature> features;
    BatchInput batch;
    Group group;
    OP_REQUIRES_OK(context,
                   attrs_.MakeFeatures(context, BatchCheck::kRowSplits, &batch, &features));
    group.batch = batch.view;
    OP_REQUIRES_OK(context, CheckSortable(group.batch));
    OP_REQUIRES_OK(context, attrs_.ReadGradients(context, grad_features_, &features));
    OP_REQUIRES_OK(context, BeforeWrite(context, batch, features, written));
    group.tables = tables.data();
    group.num_tables = static_cast<int64_t>(tables.size());
    group.features = features.data();
    group.num_features = static_cast<int64_t>(features.size());
    group.dtype = attrs_.core_dtype;
    group.invalid_ids = attrs_.invalid_ids;
    Update update;
    OP_REQUIRES_OK(context, MakeUpdate(context, rule_, updates, &update));
    OP_REQUIRES_OK(context, Device::Run(context, group, update));
  }

 private:
  // Fills in the group's tables that are updated. The other tables, of which only the dim is known,
  // stay as they are.
  absl::Status Place(const WrittenTables& written, std::vector<Table>* tables,
                     std::vector<TableUpdate>* updates) const {
    tables->reserve(attrs_.dims.size());
    updates->reserve(attrs_.dims.size());
    for (size_t t = 0; t < attrs_.dims.size(); ++t) {
      tables->push_back({nullptr, 0, attrs_.dims[t], attrs_.max_norms[t]});
      updates->push_back({});
    }
    for (size_t i = 0; i < updated_.size(); ++i) {
      const Table& table = written.tables()[i];
      Table& place = (*tables)[updated_[i]];
      if (table.dim != place.dim) {
        return absl::InvalidArgumentError("table '" + names_[i] + "': expected dim " +
                                          std::to_string(place.dim) + ", got " +
                                          std::to_string(table.dim));
      }
      place.rows = table.rows;
      place.num_rows = table.num_rows;
      (*updates)[updated_[i]] = written.updates()[i];
    }
    return absl::OkStatus();
  }

  // Variables and their slots; keyed tables are in large pages from the first.
  void MoveToLargePages(const WrittenTables& written) const {
    size_t next = 0;
    for (size_t i = 0; i < num_variables_; ++i) {
      const Table& table = written.tables()[i];
      const int64_t elements = table.num_rows * table.dim;
      large_pages_.Move(next++, table.rows, elements * SizeOf(ToCore(rule_.dtype)));
      for (const int32_t slot : rule_.slots) {
        const int64_t slot_elements = slot == rule_.row_slot ? table.num_rows : elements;
        large_pages_.Move(next++, written.updates()[i].slots[slot],
                          slot_elements * SizeOf(ToCore(rule_.slot_dtype)));
      }
    }
  }

  // Keyed tables hear which of their rows are written.
  absl::Status BeforeWrite(OpKernelContext* context, const BatchInput& batch,
                           const std::vector<Feature>& features,
                           const WrittenTables& written) const {
    const std::vector<int32_t> keyed(updated_.begin() + num_variables_, updated_.end());
    const Tensor* located;
    TF_RETURN_IF_ERROR(context->input("batch", &located));
    TF_RETURN_IF_ERROR(CheckLocatedForTraining(*located, attrs_, keyed));
    for (size_t f = 0; f < features.size(); ++f) {
      const auto at = std::find(keyed.begin(), keyed.end(), features[f].table);
      if (at != keyed.end() && features[f].output != nullptr) {
        const size_t table = num_variables_ + (at - keyed.begin());
        const int64_t* ids = batch.view.ids + batch.extents.first_ids[f];
        TF_RETURN_IF_ERROR(written.BeforeWrite(context, table, ids, batch.extents.num_ids(f)));
      }
    }
    return absl::OkStatus();
  }

  const GroupAttrs attrs_;
  const RuleAttrs rule_;
  std::vector<int32_t> updated_, grad_features_;  // those of keyed tables last
  size_t num_variables_;                          // of updated_
  std::vector<std::string> names_;                // of the updated tables
  LargePageVariables large_pages_;
};

template <typename Device>
class GroupUpdateSlicesOp : public OpKernel {
 public:
  explicit GroupUpdateSlicesOp(OpKernelConstruction* context) : OpKernel(context), rule_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_names", &names_));
  }

  void Compute(OpKernelContext* context) override {
    const Stage stage("update");
    WrittenTables written;
    OP_REQUIRES_OK(context, written.Open(context, rule_, names_));
    const Tensor* indices;
    std::vector<Feature> features;
    Group group;
    OP_REQUIRES_OK(context, context->input("indices", &indices));
    OP_REQUIRES_OK(context, MakeFeatures(context, written.tables(), *indices, &features));
    const int64_t num_ids = indices->NumElements();
    group.batch = {nullptr, indices->flat<int64_t>().data(), nullptr, num_ids, num_ids};
    OP_REQUIRES_OK(context, CheckSortable(group.batch));
    OP_REQUIRES_OK(context, Device::CheckIndices(*indices, features, written.tables(), names_));
    for (const Feature& f : features) {
      const int64_t* rows = group.batch.ids + f.first_sample;
      OP_REQUIRES_OK(context, written.BeforeWrite(context, f.table, rows, f.num_samples));
    }
    group.tables = written.tables().data();
    group.num_tables = static_cast<int64_t>(names_.size());
    group.features = features.data();
    group.num_features = static_cast<int64_t>(features.size());
    group.dtype = ToCore(rule_.dtype);
    Update update;
    OP_REQUIRES_OK(context, MakeUpdate(context, rule_, written.updates(), &update));
    OP_REQUIRES_OK(context, Device::Run(context, group, update));
  }

 private:
  // One feature per table, whose samples are the indices.
  absl::Status MakeFeatures(OpKernelContext* context, const std::vector<Table>& tables,
                            const Tensor& indices, std::vector<Feature>* features) const {
    OpInputList values;
    TF_RETURN_IF_ERROR(context->input_list("values", &values));
    if (values.size() != static_cast<int>(tables.size())) {
      return absl::InvalidArgumentError("values: expected one per table");
    }
    int64_t first = 0;
    for (int t = 0; t < values.size(); ++t) {
      const Tensor& value = values[t];
      if (value.dims() != 2 || value.dim_size(1) != tables[t].dim) {
        return absl::InvalidArgumentError(
            "table '" + names_[t] + "': expected gradients of shape [indices, " +
            std::to_string(tables[t].dim) + "], got " + value.shape().DebugString());
      }
      features->push_back(
          {first, value.dim_size(0), value.data(), tables[t].dim, t, Combiner::kSum});
      first += value.dim_size(0);
    }
    if (indices.dims() == 1 && indices.NumElements() == first) return absl::OkStatus();
    return absl::InvalidArgumentError("indices: expected shape [" + std::to_string(first) +
                                      "], as there are rows of values, got " +
                                      indices.shape().DebugString());
  }

  const RuleAttrs rule_;
  std::vector<std::string> names_;
};

// For all types: the core looks at dtype and slot_dtype.
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdate").Device(tensorflow::DEVICE_CPU),
                        Guarded<GroupUpdateOp<Cpu>>)
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdateRef").Device(tensorflow::DEVICE_CPU),
                        Guarded<GroupUpdateOp<Cpu>>)
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdateSlices").Device(tensorflow::DEVICE_CPU),
                        Guarded<GroupUpdateSlicesOp<Cpu>>)
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdateSlicesRef").Device(tensorflow::DEVICE_CPU),
                        Guarded<GroupUpdateSlicesOp<Cpu>>)

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>GroupUpdate").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<GroupUpdateOp<Gpu>>)
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>GroupUpdateRef").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"),
    Guarded<GroupUpdateOp<Gpu>>)
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdateSlices").Device(tensorflow::DEVICE_GPU),
                        Guarded<GroupUpdateSlicesOp<Gpu>>)
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>GroupUpdateSlicesRef").Device(tensorflow::DEVICE_GPU),
                        Guarded<GroupUpdateSlicesOp<Gpu>>)
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
