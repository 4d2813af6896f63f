#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exchange/host/progress_board.h"
#include "exchange/transport/nccl_api.h"
#include "exchange/transport/nccl_communicator.h"

namespace group_embedding {
namespace {

using Clock = std::chrono::steady_clock;

// Wait queries the stream kBusyTurns times, about 2 ms, which covers the usual lag between ranks.
// Then it sleeps between queries, so that cores are free for the ranks that are behind.
constexpr int64_t kBusyTurns = 2000;
constexpr std::chrono::microseconds kIdle{20};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const NcclApi* api, NcclApi::Comm* comm, std::unique_ptr<ProgressBoard> board,
                   int rank, int num_ranks, double timeout_seconds)
      : Communicator(rank, num_ranks),
        api_(api),
        comm_(comm),
        board_(std::move(board)),
        timeout_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(timeout_seconds))),
        timeout_seconds_(timeout_seconds) {
    cudaEventCreateWithFlags(&last_call_, cudaEventDisableTiming);
  }

  ~NcclCommunicator() override {
    if (comm_ != nullptr) api_->comm_destroy(comm_);
    cudaEventDestroy(last_call_);
  }

  Status AllToAll(const void* send, const int64_t* send_bytes, void* receive,
                  const int64_t* receive_bytes, Stream stream) override {
    std::vector<Message> sent;
    const char* from = static_cast<const char*>(send);
    for (int n = 0; n < num_ranks(); ++n) {
      sent.push_back({from, send_bytes[n]});
      from += send_bytes[n];
    }
    return Exchange("all-to-all", sent, receive, receive_bytes, stream);
  }

  Status AllGather(const void* send, int64_t bytes, void* receive, const int64_t* receive_bytes,
                   Stream stream) override {
    const std::vector<Message> sent(num_ranks(), {static_cast<const char*>(send), bytes});
    return Exchange("all-gather", sent, receive, receive_bytes, stream);
  }

  Status Wait(Stream stream) override {
    const Clock::time_point start = Clock::now();
    for (int64_t turn = 0;; ++turn) {
      const cudaError_t state = cudaStreamQuery(stream);
      if (state == cudaSuccess) break;
      if (turn > kBusyTurns) std::this_thread::sleep_for(kIdle);
      std::lock_guard<std::mutex> lock(mutex_);
      if (!error_.ok()) return error_;
      if (state != cudaErrorNotReady) return AbortLocked(Text(state));
      NcclApi::Result result = NcclApi::kSuccess;
      if (turn % 64 == 63) api_->comm_get_async_error(comm_, &result);
      if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) {
        return AbortLocked(Text(result));
      }
      if (turn % 64 == 63 && Clock::now() - start > timeout_) return AbortLocked(Late());
    }
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

  void Abort(const std::string& reason) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (error_.ok()) AbortLocked(reason);
  }

 private:
  struct Message {
    const char* from;
    int64_t bytes;
  };

  // sent: [num_ranks] what each rank gets.
  Status Exchange(const char* what, const std::vector<Message>& sent, void* receive,
                  const int64_t* receive_bytes, Stream stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_.ok()) return error_;
    const Message& own = sent[rank()];
    if (own.bytes != receive_bytes[rank()]) {
      return std::string(what) + ": expected rank " + std::to_string(rank()) +
             " to receive from itself the " + std::to_string(own.bytes) +
             " bytes that it sends, got " + std::to_string(receive_bytes[rank()]);
    }
    ++num_calls_;
    board_->SetNumCalls(num_calls_);
    if (stream != last_stream_ && num_calls_ > 1) {
      const cudaError_t failed = cudaStreamWaitEvent(stream, last_call_, 0);
      if (failed != cudaSuccess) return AbortLocked(Text(failed));
    }
    char *to = static_cast<char*>(receive), *own_to = nullptr;
    NcclApi::Result result = api_->group_start();
    for (int n = 0; n < num_ranks() && result == NcclApi::kSuccess; ++n) {
      if (n == rank()) {
        own_to = to;
      } else {
        if (sent[n].bytes > 0) {
          result = api_->send(sent[n].from, sent[n].bytes, NcclApi::kInt8, n, comm_, stream);
        }
        if (receive_bytes[n] > 0 && result == NcclApi::kSuccess) {
          result = api_->recv(to, receive_bytes[n], NcclApi::kInt8, n, comm_, stream);
        }
      }
      to += receive_bytes[n];
    }
    const NcclApi::Result ended = api_->group_end();
    if (result == NcclApi::kSuccess) result = ended;
    if (result != NcclApi::kSuccess) return AbortLocked(Text(result));
    // Enqueued last, so that the other ranks' bytes are being sent meanwhile.
    cudaError_t copied = cudaSuccess;
    if (own.bytes > 0) {
      copied = cudaMemcpyAsync(own_to, own.from, own.bytes, cudaMemcpyDeviceToDevice, stream);
    }
    if (copied == cudaSuccess) copied = cudaEventRecord(last_call_, stream);
    if (copied != cudaSuccess) return AbortLocked(Text(copied));
    last_stream_ = stream;
    return {};
  }

  const Status& AbortLocked(const std::string& reason) {
    error_ = "exchange of rank " + std::to_string(rank()) + " of " + std::to_string(num_ranks()) +
             ", call " + std::to_string(num_calls_) + ": " + reason;
    if (comm_ != nullptr) api_->comm_abort(comm_);
    comm_ = nullptr;
    return error_;
  }

  std::string Late() const {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", timeout_seconds_);
    return std::string("did not end within ") + seconds + " s; " + board_->WhoIsBehind(num_calls_);
  }

  std::string Text(NcclApi::Result result) const {
    const char* more = comm_ == nullptr ? nullptr : api_->get_last_error(comm_);
    std::string text = std::string("NCCL: ") + api_->get_error_string(result);
    return more == nullptr || *more == '\0' ? text : text + " (" + more + ")";
  }
  static std::string Text(cudaError_t error) {
    return std::string("CUDA: ") + cudaGetErrorString(error);
  }

  const NcclApi* const api_;
  NcclApi::Comm* comm_;  // null once aborted
  const std::unique_ptr<ProgressBoard> board_;
  const Clock::duration timeout_;
  const double timeout_seconds_;
  std::mutex mutex_;
  Status error_;
  int64_t num_calls_ = 0;
  Stream last_stream_ = nullptr;
  cudaEvent_t last_call_;
};

// NCCL takes seconds to start, as does each rank's process.
constexpr double kStartSeconds = 60;

// Forms a group with all ranks. Null if they do not all call it in time; *error says so. NCCL
// itself waits for ever, so a thread makes the call, and is left behind after the time-out.
NcclApi::Comm* FormGroup(const NcclApi* api, const NcclApi::UniqueId& id, int rank, int num_ranks,
                         double timeout_seconds, Status* error) {
  struct Result {
    NcclApi::Comm* comm = nullptr;
    Status status;
  };
  int device = 0;
  cudaGetDevice(&device);
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  std::thread([=] {
    Result formed;
    cudaSetDevice(device);
    const NcclApi::Result result = api->comm_init_rank(&formed.comm, num_ranks, id, rank);
    if (result != NcclApi::kSuccess) {
      formed.status = std::string("NCCL: ") + api->get_error_string(result) + " (" +
                      api->get_last_error(nullptr) + ")";
    }
    promise->set_value(formed);
  }).detach();
  const double seconds = std::max(timeout_seconds, kStartSeconds);
  if (future.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    *error = "NCCL: rank " + std::to_string(rank) + " did not meet the other " +
             std::to_string(num_ranks - 1) + " ranks within " +
             std::to_string(static_cast<int>(seconds)) +
             " s; is one of them gone, or about other work?";
    return nullptr;
  }
  const Result formed = future.get();
  *error = formed.status;
  return formed.status.ok() ? formed.comm : nullptr;
}

}  // namespace

std::string MakeNcclId(Status* error) {
  const NcclApi* api = LoadNccl(error);
  if (api == nullptr) return "";
  NcclApi::UniqueId id;
  const NcclApi::Result result = api->get_unique_id(&id);
  if (result != NcclApi::kSuccess) {
    *error = std::string("NCCL: ") + api->get_error_string(result);
    return "";
  }
  return std::string(id.bytes, sizeof(id.bytes));
}

std::string PciBusIdOf(int device, Status* error) {
  char id[32];
  const cudaError_t found = cudaDeviceGetPCIBusId(id, sizeof(id), device);
  if (found == cudaSuccess) return id;
  *error = std::string("pci_bus_id: CUDA: ") + cudaGetErrorString(found);
  return "";
}

std::unique_ptr<Communicator> MakeNcclCommunicator(const std::string& id, int rank, int num_ranks,
                                                   double timeout_seconds, Status* error) {
  const NcclApi* api = LoadNccl(error);
  if (api == nullptr) return nullptr;
  if (id.size() != kNcclIdBytes || rank < 0 || rank >= num_ranks) {
    *error = "NCCL: expected an id of " + std::to_string(kNcclIdBytes) + " bytes and a rank of " +
             std::to_string(num_ranks) + ", got " + std::to_string(id.size()) + " bytes, rank " +
             std::to_string(rank);
    return nullptr;
  }
  std::unique_ptr<ProgressBoard> board = ProgressBoard::Open(id, rank, num_ranks);
  NcclApi::UniqueId unique;
  std::memcpy(unique.bytes, id.data(), sizeof(unique.bytes));
  NcclApi::Comm* comm = FormGroup(api, unique, rank, num_ranks, timeout_seconds, error);
  if (comm == nullptr) return nullptr;
  board->RemoveName();  // each rank opens it before it forms the group, which ends with the last
  return std::make_unique<NcclCommunicator>(api, comm, std::move(board), rank, num_ranks,
                                            timeout_seconds);
}

}  // namespace group_embedding
