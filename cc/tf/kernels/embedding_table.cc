// Keyed tables are made and initialized.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/group_attrs.h"
#include "tf/support/guarded_op.h"
#include "tf/support/make_table.h"
#include "tf/support/table_writers.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The loader of SavedModels appends "_load_<number>" to the shared names of a model's functions,
// also to TensorFlow's anonymous name.
bool IsAnonymous(const std::string& shared_name) {
  return shared_name.rfind(ResourceHandle::ANONYMOUS_NAME, 0) == 0;
}

class EmbeddingTableHandleOp : public OpKernel {
 public:
  explicit EmbeddingTableHandleOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("container", &container_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &table_name_));
    if (shared_name_.empty()) shared_name_ = name();
  }

  void Compute(OpKernelContext* context) override {
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    ResourceHandle& handle = output->scalar<ResourceHandle>()();
    if (IsAnonymous(shared_name_)) {
      handle = ResourceHandle::MakeRefCountingHandle(new EmbeddingTableResource(table_name_),
                                                     context->device()->name());
      return;
    }
    EmbeddingTableResource* table;
    auto make = [this](EmbeddingTableResource** made) {
      *made = new EmbeddingTableResource(table_name_);
      return absl::OkStatus();
    };
    handle =
        tensorflow::MakeResourceHandle<EmbeddingTableResource>(context, container_, shared_name_);
    OP_REQUIRES_OK(context, context->resource_manager()->LookupOrCreate<EmbeddingTableResource>(
                                handle.container(), handle.name(), &table, make));
    table->Unref();  // the manager has it
  }

 private:
  std::string container_, shared_name_, table_name_;
};

Distribution ToDistribution(const std::string& word) {  // the op's attribute admits no other word
  if (word == "matrix") return Distribution::kMatrix;
  if (word == "constant") return Distribution::kConstant;
  if (word == "uniform") return Distribution::kUniform;
  return word == "normal" ? Distribution::kNormal : Distribution::kTruncatedNormal;
}

Admission::Kind ToAdmission(const std::string& word) {
  if (word == "all") return Admission::Kind::kAll;
  return word == "counter" ? Admission::Kind::kCounter : Admission::Kind::kBloom;
}

KeyType ToKeyType(tensorflow::DataType dtype) {  // the attribute admits no other
  switch (dtype) {
    case tensorflow::DT_INT32:
      return KeyType::kInt32;
    case tensorflow::DT_UINT32:
      return KeyType::kUint32;
    case tensorflow::DT_UINT64:
      return KeyType::kUint64;
    default:
      return KeyType::kInt64;
  }
}

// The share that an attribute of 32 bits stands for: 0.9, not the float next to it.
double RoundedShare(float share) { return std::round(share * 1e6) / 1e6; }

// Words of the attributes, in the order of the enums.
int32_t PlaceOf(const std::string& word, std::initializer_list<const char*> words) {
  const auto at = std::find(words.begin(), words.end(), word);
  return static_cast<int32_t>(at - words.begin());
}

absl::Status ReadBudget(OpKernelConstruction* context, Budget* budget) {
  std::string first, hands_out;
  float keep;
  TF_RETURN_IF_ERROR(context->GetAttr("budget_keys", &budget->max_keys));
  TF_RETURN_IF_ERROR(context->GetAttr("budget_bytes", &budget->max_bytes));
  TF_RETURN_IF_ERROR(context->GetAttr("budget_keep", &keep));
  TF_RETURN_IF_ERROR(context->GetAttr("evict_first", &first));
  TF_RETURN_IF_ERROR(context->GetAttr("decay_steps", &budget->decay_steps));
  TF_RETURN_IF_ERROR(context->GetAttr("safe_steps", &budget->safe_steps));
  TF_RETURN_IF_ERROR(context->GetAttr("hands_out", &hands_out));
  TF_RETURN_IF_ERROR(context->GetAttr("budget_shares", &budget->num_shares));
  TF_RETURN_IF_ERROR(context->GetAttr("budget_rank", &budget->rank));
  TF_RETURN_IF_ERROR(context->GetAttr("budget_ranks", &budget->num_ranks));
  budget->keep = RoundedShare(keep);
  budget->first =
      static_cast<EvictFirst>(PlaceOf(first, {"least_recent", "least_frequent", "decayed_frequency",
                                              "smallest_norm", "score", "earliest"}));
  budget->hands_out = static_cast<HandsOut>(PlaceOf(hands_out, {"nothing", "keys", "rows"}));
  return absl::OkStatus();
}

bool IsInitialized(EmbeddingTableResource* resource) {
  tensorflow::tf_shared_lock lock(*resource->mu());
  return resource->table() != nullptr;
}

class InitializeEmbeddingTableOp : public OpKernel {
 public:
  explicit InitializeEmbeddingTableOp(OpKernelConstruction* context)
      : OpKernel(context), storage_(context) {
    std::string distribution, admission, slot_dtype;
    tensorflow::DataType dtype, key_dtype;
    int64_t seed;
    float probability;
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype));
    OP_REQUIRES_OK(context, context->GetAttr("key_dtype", &key_dtype));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &options_.dim));
    OP_REQUIRES_OK(context, context->GetAttr("distribution", &distribution));
    OP_REQUIRES_OK(context, context->GetAttr("a", &options_.initial.a));
    OP_REQUIRES_OK(context, context->GetAttr("b", &options_.initial.b));
    OP_REQUIRES_OK(context, context->GetAttr("seed", &seed));
    OP_REQUIRES_OK(context, context->GetAttr("no_row_value", &options_.no_row_value));
    OP_REQUIRES_OK(context, context->GetAttr("admission", &admission));
    OP_REQUIRES_OK(context, context->GetAttr("min_count", &options_.admission.min_count));
    OP_REQUIRES_OK(context, context->GetAttr("num_counters", &options_.admission.num_counters));
    OP_REQUIRES_OK(context, context->GetAttr("num_hashes", &options_.admission.num_hashes));
    OP_REQUIRES_OK(context, context->GetAttr("counter_bytes", &options_.admission.counter_bytes));
    OP_REQUIRES_OK(context, context->GetAttr("keeps_time", &options_.keeps_time));
    OP_REQUIRES_OK(context, context->GetAttr("slot_dtype", &slot_dtype));
    OP_REQUIRES_OK(context, context->GetAttr("probability", &probability));
    OP_REQUIRES_OK(context, ReadBudget(context, &options_.budget));
    OP_REQUIRES_OK(context, context->GetAttr("if_needed", &if_needed_));
    options_.admission.probability = RoundedShare(probability);
    options_.dtype = ToCore(dtype);
    options_.slot_dtype = options_.dtype;
    if (slot_dtype == "float32") options_.slot_dtype = DataType::kFloat32;
    if (slot_dtype == "bfloat16") options_.slot_dtype = DataType::kBFloat16;
    options_.key_type = ToKeyType(key_dtype);
    options_.initial.seed = static_cast<uint64_t>(seed);
    options_.initial.distribution = ToDistribution(distribution);
    options_.admission.kind = ToAdmission(admission);
    TableWriters();
  }

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    if (if_needed_ && IsInitialized(resource.get())) return;
    const Tensor& matrix = context->input(1);
    TableOptions options = options_;
    options.name = resource->name();
    const bool has_matrix = options.initial.distribution == Distribution::kMatrix;
    OP_REQUIRES(context,
                matrix.dims() == 2 && matrix.dim_size(1) == options.dim &&
                    (matrix.dim_size(0) > 0) == has_matrix,
                absl::InvalidArgumentError(
                    "table '" + options.name + "': expected initial values of shape [" +
                    (has_matrix ? "default_value_dim" : "0") + ", " + std::to_string(options.dim) +
                    "], got " + matrix.shape().DebugString()));
    options.initial.matrix_rows = matrix.dim_size(0);
    std::shared_ptr<EmbeddingTable> table;
    OP_REQUIRES_OK(context, MakeTable(context, storage_, options,
                                      has_matrix ? matrix.data() : nullptr, &table));
    tensorflow::mutex_lock lock(*resource->mu());
    if (if_needed_ && resource->table() != nullptr) return;
    resource->Initialize(std::move(table));
  }

 private:
  TableOptions options_;
  const StorageAttrs storage_;
  bool if_needed_;
};

class EmbeddingTableIsInitializedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<bool>()() = IsInitialized(resource.get());
  }
};

REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>EmbeddingTableHandleOp").Device(tensorflow::DEVICE_CPU),
    Guarded<EmbeddingTableHandleOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>InitializeEmbeddingTable").Device(tensorflow::DEVICE_CPU),
    Guarded<InitializeEmbeddingTableOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>EmbeddingTableIsInitialized").Device(tensorflow::DEVICE_CPU),
    Guarded<EmbeddingTableIsInitializedOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EmbeddingTableHandleOp")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .AttrConstraint("in_host_memory", false),
                        Guarded<EmbeddingTableHandleOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>InitializeEmbeddingTable")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("matrix"),
                        Guarded<InitializeEmbeddingTableOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>EmbeddingTableIsInitialized")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("is_initialized"),
                        Guarded<EmbeddingTableIsInitializedOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
