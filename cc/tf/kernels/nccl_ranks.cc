#include "tf/kernels/nccl_ranks.h"

#if GOOGLE_CUDA

#include <mutex>

#include "exchange/nccl_communicator.h"

namespace group_embedding {
namespace {

struct OfProcess {
  std::mutex mutex;
  std::string id;
  std::shared_ptr<Communicator> communicator;
};

// Never freed: where a process ends, the GPU may be gone before.
OfProcess& Current() {
  static OfProcess* current = new OfProcess;
  return *current;
}

}  // namespace

NcclRanks::NcclRanks(tensorflow::OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, context->GetAttr("nccl_id", &id_));
  OP_REQUIRES_OK(context, context->GetAttr("rank", &rank_));
  OP_REQUIRES_OK(context, context->GetAttr("num_ranks", &num_ranks_));
  OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
}

absl::Status NcclRanks::Join(std::shared_ptr<Communicator>* communicator) const {
  OfProcess& current = Current();
  std::lock_guard<std::mutex> lock(current.mutex);
  if (current.id != id_ || current.communicator == nullptr) {
    if (current.communicator != nullptr) current.communicator->Abort("the ranks met anew");
    std::string error;
    current.communicator = MakeNcclCommunicator(id_, rank_, num_ranks_, timeout_seconds_, &error);
    current.id = id_;
    if (current.communicator == nullptr) return absl::UnavailableError(error);
  }
  *communicator = current.communicator;
  return absl::OkStatus();
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
