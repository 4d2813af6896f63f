#include "exchange/peer_communicator.h"
#include "exchange/peer_rooms.h"

namespace group_embedding {
namespace {

class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(std::unique_ptr<Communicator> base, std::unique_ptr<PeerRooms> rooms)
      : Communicator(base->rank(), base->num_ranks()),
        base_(std::move(base)),
        rooms_(std::move(rooms)) {}

  std::string AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                       const int64_t* receive_bytes, Stream stream) override {
    return base_->AllToAll(send, send_bytes, receive, receive_bytes, stream);
  }

  std::string Wait(Stream stream) override {
    std::string error = base_->Wait(stream);
    if (error.empty()) {
      const std::string late = rooms_->Error();
      if (late.empty()) return "";
      base_->Abort(late);
      error = base_->Wait(stream);  // says it as any other of its errors
    }
    rooms_->Abort();
    return error;
  }

  void Abort(const std::string& reason) override {
    rooms_->Abort();
    base_->Abort(reason);
  }

  PeerRooms* rooms() override { return rooms_.get(); }

 private:
  const std::unique_ptr<Communicator> base_;
  const std::unique_ptr<PeerRooms> rooms_;
};

}  // namespace

std::unique_ptr<Communicator> WithRooms(std::unique_ptr<Communicator> communicator,
                                        double timeout_seconds, cudaStream_t stream,
                                        std::string* why_not) {
  std::unique_ptr<PeerRooms> rooms =
      PeerRooms::Make(communicator.get(), timeout_seconds, stream, why_not);
  if (rooms == nullptr) return communicator;
  return std::make_unique<PeerCommunicator>(std::move(communicator), std::move(rooms));
}

}  // namespace group_embedding
