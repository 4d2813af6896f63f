#include "exchange/transport/peer_buffers.h"
#include "exchange/transport/peer_communicator.h"

namespace group_embedding {
namespace {

class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(std::unique_ptr<Communicator> base, std::unique_ptr<PeerBufferPool> peer_buffers)
      : Communicator(base->rank(), base->num_ranks()),
        base_(std::move(base)),
        peer_buffers_(std::move(peer_buffers)) {}

  Status AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                  const int64_t* receive_bytes, Stream stream) override {
    return base_->AllToAll(send, send_bytes, receive, receive_bytes, stream);
  }

  Status AllGather(const void* send, int64_t bytes, void* receive, const int64_t* receive_bytes,
                   Stream stream) override {
    return base_->AllGather(send, bytes, receive, receive_bytes, stream);
  }

  Status Wait(Stream stream) override {
    Status status = base_->Wait(stream);
    if (status.ok()) {
      const Status late = peer_buffers_->status();
      if (late.ok()) return late;
      base_->Abort(late.message());
      status = base_->Wait(stream);  // returns `late` in the form of all its errors
    }
    peer_buffers_->Abort();
    return status;
  }

  void Abort(const std::string& reason) override {
    peer_buffers_->Abort();
    base_->Abort(reason);
  }

  PeerBufferPool* peer_buffers() override { return peer_buffers_.get(); }

 private:
  const std::unique_ptr<Communicator> base_;
  const std::unique_ptr<PeerBufferPool> peer_buffers_;
};

}  // namespace

std::unique_ptr<Communicator> UsePeerMemory(std::unique_ptr<Communicator> communicator,
                                            double timeout_seconds, cudaStream_t stream,
                                            Status* why_not) {
  std::unique_ptr<PeerBufferPool> peer_buffers =
      PeerBufferPool::Make(communicator.get(), timeout_seconds, stream, why_not);
  if (peer_buffers == nullptr) return communicator;
  return std::make_unique<PeerCommunicator>(std::move(communicator), std::move(peer_buffers));
}

}  // namespace group_embedding
