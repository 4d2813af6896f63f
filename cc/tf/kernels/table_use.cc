#include "table/use_counts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/guarded_op.h"
#include "tf/support/table_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Sets outputs one after the other.
class ScalarOutputs {
 public:
  explicit ScalarOutputs(OpKernelContext* context) : context_(context) {}

  template <typename T>
  absl::Status Add(T value) {
    Tensor* output;
    TF_RETURN_IF_ERROR(context_->allocate_output(next_++, TensorShape({}), &output));
    output->scalar<T>()() = value;
    return absl::OkStatus();
  }

 private:
  OpKernelContext* const context_;
  int next_ = 0;
};

class TableUseOp : public TableOp {
  using TableOp::TableOp;

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const UseCounts counts = table->use_counts();
    ScalarOutputs outputs(context);
    for (const int64_t count :
         {counts.num_looked_up, counts.num_found[0], counts.num_found[1], counts.num_found[2],
          counts.num_admitted, counts.expired.by_steps, counts.expired.by_minutes,
          counts.expired.by_norm, counts.wait_nanoseconds, counts.num_sampled_ids,
          counts.num_sampled_keys}) {
      TF_RETURN_IF_ERROR(outputs.Add(count));
    }
    TF_RETURN_IF_ERROR(outputs.Add(counts.hottest_share));
    TF_RETURN_IF_ERROR(outputs.Add(counts.oldest_steps));
    TF_RETURN_IF_ERROR(outputs.Add(table->host_bytes()));
    return outputs.Add(table->disk_bytes());
  }
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TableUse").Device(tensorflow::DEVICE_CPU),
                        Guarded<TableUseOp>);

#if GOOGLE_CUDA
// For tables on the GPU too, all of it is in host memory.
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>TableUse")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("looked_up")
                            .HostMemory("in_first_tier")
                            .HostMemory("in_second_tier")
                            .HostMemory("in_third_tier")
                            .HostMemory("admitted")
                            .HostMemory("expired_by_steps")
                            .HostMemory("expired_by_minutes")
                            .HostMemory("expired_by_norm")
                            .HostMemory("wait_nanoseconds")
                            .HostMemory("sampled_ids")
                            .HostMemory("sampled_keys")
                            .HostMemory("hottest_share")
                            .HostMemory("oldest_steps")
                            .HostMemory("host_bytes")
                            .HostMemory("disk_bytes"),
                        Guarded<TableUseOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
