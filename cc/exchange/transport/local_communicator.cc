#include "exchange/transport/local_communicator.h"

#include <cstring>

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {
namespace {

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator() : Communicator(0, 1) {}

  Status AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                  const int64_t* receive_bytes, Stream stream) override {
    if (!error_.ok()) return error_;
    if (send_bytes[0] != receive_bytes[0]) {
      return "all-to-all of one rank: expected as many bytes to receive as are sent, " +
             std::to_string(send_bytes[0]) + ", got " + std::to_string(receive_bytes[0]);
    }
    if (send_bytes[0] == 0) return {};
#if GROUP_EMBEDDING_CUDA
    if (has_gpu_) {
      return Text(cudaMemcpyAsync(receive, send, send_bytes[0], cudaMemcpyDefault, stream));
    }
#endif
    std::memcpy(receive, send, send_bytes[0]);
    return {};
  }

  Status AllGather(const void* send, int64_t bytes, void* receive, const int64_t* receive_bytes,
                   Stream stream) override {
    return AllToAll(send, &bytes, receive, receive_bytes, stream);
  }

  Status Wait(Stream stream) override {
    if (!error_.ok()) return error_;
#if GROUP_EMBEDDING_CUDA
    if (has_gpu_) return Text(cudaStreamSynchronize(stream));
#endif
    return {};
  }

  void Abort(const std::string& reason) override { error_ = reason; }

 private:
#if GROUP_EMBEDDING_CUDA
  static std::string Text(cudaError_t error) {
    return error == cudaSuccess ? "" : std::string("CUDA: ") + cudaGetErrorString(error);
  }

  static bool HasGpu() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }

  const bool has_gpu_ = HasGpu();
#endif
  Status error_;
};

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator() {
  return std::make_unique<LocalCommunicator>();
}

}  // namespace group_embedding
