#include "python/thread_communicator.h"

#if GROUP_EMBEDDING_CUDA

#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>

namespace group_embedding {
namespace {

// What a rank sends: size(n) bytes at from + offset(n) to each rank n.
struct Sent {
  const char* from = nullptr;
  std::vector<int64_t> offsets, sizes;
};

struct Meeting {
  Meeting(int num_ranks, double timeout_seconds)
      : sent(num_ranks), timeout(std::chrono::duration<double>(timeout_seconds)) {}

  // Returns whether all ranks came in time.
  bool Barrier() {
    std::optional<pybind11::gil_scoped_release> without_lock;
    if (PyGILState_Check()) without_lock.emplace();
    std::unique_lock<std::mutex> lock(mutex);
    const int64_t mine = generation;
    if (++num_here == static_cast<int>(sent.size())) {
      num_here = 0;
      ++generation;
      all_came.notify_all();
      return true;
    }
    return all_came.wait_for(lock, timeout, [&] { return generation != mine; });
  }

  std::vector<Sent> sent;
  const std::chrono::duration<double> timeout;
  std::mutex mutex;
  std::condition_variable all_came;
  int num_here = 0;
  int64_t generation = 0;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Meeting> meeting, int rank, int num_ranks)
      : Communicator(rank, num_ranks), meeting_(std::move(meeting)) {}

  Status AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                  const int64_t* receive_bytes, Stream stream) override {
    Sent sent{static_cast<const char*>(send), {}, {send_bytes, send_bytes + num_ranks()}};
    sent.offsets.resize(num_ranks());
    std::exclusive_scan(sent.sizes.begin(), sent.sizes.end(), sent.offsets.begin(), int64_t{0});
    return Exchange(std::move(sent), receive, receive_bytes, stream);
  }

  Status AllGather(const void* send, int64_t bytes, void* receive, const int64_t* receive_bytes,
                   Stream stream) override {
    Sent sent{static_cast<const char*>(send), std::vector<int64_t>(num_ranks(), 0),
              std::vector<int64_t>(num_ranks(), bytes)};
    return Exchange(std::move(sent), receive, receive_bytes, stream);
  }

  Status Wait(Stream stream) override {
    return error_.ok() ? Text(cudaStreamSynchronize(stream)) : error_;
  }

  void Abort(const std::string& reason) override { error_ = reason; }

 private:
  static std::string Text(cudaError_t error) {
    return error == cudaSuccess ? "" : std::string("CUDA: ") + cudaGetErrorString(error);
  }

  Status Exchange(Sent sent, void* receive, const int64_t* receive_bytes, Stream stream) {
    if (!error_.ok()) return error_;
    error_ = Text(cudaStreamSynchronize(stream));
    meeting_->sent[rank()] = std::move(sent);
    if (!meeting_->Barrier()) return error_ = "a rank's thread did not come";
    char* to = static_cast<char*>(receive);
    for (int n = 0; n < num_ranks() && error_.ok(); ++n) {
      const Sent& theirs = meeting_->sent[n];
      if (theirs.sizes[rank()] != receive_bytes[n]) {
        error_ = "expected " + std::to_string(receive_bytes[n]) + " bytes of rank " +
                 std::to_string(n) + ", which sends " + std::to_string(theirs.sizes[rank()]);
      } else if (receive_bytes[n] > 0) {
        error_ = Text(cudaMemcpyAsync(to, theirs.from + theirs.offsets[rank()], receive_bytes[n],
                                      cudaMemcpyDeviceToDevice, stream));
      }
      to += receive_bytes[n];
    }
    if (error_.ok()) error_ = Text(cudaStreamSynchronize(stream));
    // Nobody's buffer changes before all have read it.
    if (!meeting_->Barrier()) error_ = "a rank's thread did not come";
    return error_;
  }

  const std::shared_ptr<Meeting> meeting_;
  Status error_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int num_ranks,
                                                                   double timeout_seconds) {
  const auto meeting = std::make_shared<Meeting>(num_ranks, timeout_seconds);
  std::vector<std::unique_ptr<Communicator>> made;
  for (int rank = 0; rank < num_ranks; ++rank) {
    made.push_back(std::make_unique<ThreadCommunicator>(meeting, rank, num_ranks));
  }
  return made;
}

}  // namespace group_embedding

#endif
