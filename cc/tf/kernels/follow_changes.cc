// A publisher says from which mark on it wants a table's changes, and when it wants no more.
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/change_follower.h"
#include "tf/support/embedding_table_resource.h"
#include "tf/support/guarded_op.h"

namespace group_embedding {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class FollowChangesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    int64_t follower;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    OP_REQUIRES_OK(context, ReadFollower(context, &follower));
    const Tensor* mark;
    OP_REQUIRES_OK(context, context->input("mark", &mark));
    const bool is_now = mark->shape() == TensorShape({0});
    OP_REQUIRES(context, is_now || mark->shape() == TensorShape({2}),
                absl::InvalidArgumentError("mark: expected shape [0] or [2], got " +
                                           mark->shape().DebugString()));
    tensorflow::mutex_lock lock(*resource->mu());
    OP_REQUIRES_OK(context, resource->CheckInitialized());
    EmbeddingTable* table = resource->table().get();
    const ChangeMark now = table->Now();
    if (is_now) return table->changes()->Follow(follower, now);
    OP_REQUIRES_OK(context, CheckFollows(*resource, table, follower));
    const ChangeMark given = {mark->vec<int64_t>()(0), mark->vec<int64_t>()(1)};
    const ChangeMark& former = table->changes()->MarkOf(follower);
    OP_REQUIRES(context,
                given.clock >= former.clock && given.clock <= now.clock &&
                    given.num_erased >= former.num_erased && given.num_erased <= now.num_erased,
                absl::InvalidArgumentError("table '" + resource->name() +
                                           "': expected a mark of ReadChanges, between that of the "
                                           "follower and that of now"));
    table->changes()->Follow(follower, given);
  }
};

class DropChangesOp : public OpKernel {
 public:
  explicit DropChangesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("unfollow", &unfollow_));
  }

  void Compute(OpKernelContext* context) override {
    EmbeddingTablePtr resource;
    int64_t follower;
    OP_REQUIRES_OK(context, FindEmbeddingTable(context, 0, &resource));
    OP_REQUIRES_OK(context, ReadFollower(context, &follower));
    tensorflow::mutex_lock lock(*resource->mu());
    resource->saves().changes.erase(follower);
    if (unfollow_ && resource->table() != nullptr) resource->table()->changes()->Unfollow(follower);
  }

 private:
  bool unfollow_;
};

REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>FollowChanges").Device(tensorflow::DEVICE_CPU),
                        Guarded<FollowChangesOp>);
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>DropChanges").Device(tensorflow::DEVICE_CPU),
                        Guarded<DropChangesOp>);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("GroupEmbedding>FollowChanges")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("follower")
                            .HostMemory("mark"),
                        Guarded<FollowChangesOp>);
REGISTER_KERNEL_BUILDER(
    Name("GroupEmbedding>DropChanges").Device(tensorflow::DEVICE_GPU).HostMemory("follower"),
    Guarded<DropChangesOp>);
#endif  // GOOGLE_CUDA

}  // namespace
}  // namespace group_embedding
