#include "tf/support/nccl_ranks.h"

#if GOOGLE_CUDA

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "exchange/transport/nccl_communicator.h"
#include "exchange/transport/peer_communicator.h"
#include "tf/support/device.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {
namespace {

// What changes it holds both locks, what reads it one: statistics do not wait for a meeting.
struct OfProcess {
  std::mutex meeting, mutex;
  std::string id;
  std::shared_ptr<Communicator> communicator;

  void Set(const std::string& new_id, std::shared_ptr<Communicator> made) {
    std::lock_guard<std::mutex> lock(mutex);
    id = new_id;
    communicator = std::move(made);
  }
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
  OP_REQUIRES_OK(context, context->GetAttr("use_peer_memory", &use_peer_memory_));
  OP_REQUIRES(context, rank_ < num_ranks_,
              absl::InvalidArgumentError("rank: expected less than num_ranks"));
}

absl::Status NcclRanks::Join(tensorflow::OpKernelContext* context,
                             std::shared_ptr<Communicator>* communicator) const {
  OfProcess& current = Current();
  std::lock_guard<std::mutex> lock(current.meeting);
  if (current.id != id_ || current.communicator == nullptr) {
    if (current.communicator != nullptr) current.communicator->Abort("the ranks met anew");
    current.Set(id_, nullptr);
    Status status;
    std::unique_ptr<Communicator> made =
        MakeNcclCommunicator(id_, rank_, num_ranks_, timeout_seconds_, &status);
    if (made == nullptr) return absl::UnavailableError(status.message());
    if (use_peer_memory_) {
      TF_RETURN_IF_ERROR(CatchErrors([&] {
        Status why_not;
        made = UsePeerMemory(std::move(made), timeout_seconds_, StreamOf(context), &why_not);
        if (!why_not.ok()) {
          LOG(WARNING) << "rows of tables on GPUs travel by NCCL: " << why_not.message();
        }
        return absl::OkStatus();
      }));
    }
    current.Set(id_, std::move(made));
  }
  *communicator = current.communicator;
  return absl::OkStatus();
}

std::vector<int64_t> NcclRanks::SentBytes(const std::string& id) {
  OfProcess& current = Current();
  std::lock_guard<std::mutex> lock(current.mutex);
  if (current.id != id || current.communicator == nullptr) return {};
  return current.communicator->SentBytes();
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA

void GroupEmbeddingNcclSentBytes(const char* id, int64_t id_bytes, int64_t* sent_bytes) {
#if GOOGLE_CUDA
  const auto sent = group_embedding::NcclRanks::SentBytes({id, static_cast<size_t>(id_bytes)});
  std::copy(sent.begin(), sent.end(), sent_bytes);
#endif  // without CUDA no op has used an id
}
