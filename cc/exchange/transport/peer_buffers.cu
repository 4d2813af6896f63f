#include <cstdio>
#include <new>

#include "core/device_buffer.h"
#include "exchange/transport/peer_buffers.h"

namespace group_embedding {
namespace {

constexpr int kMaxRanks = PeerSignals::kMaxRanks;
constexpr uint64_t kLookNs = 100'000;  // between looks at the host's memory

// What comes after a barrier that ended in vain works with whatever is in the peer buffers. So it
// outlasts all who watch over the ranks, which wait for the time-out and some seconds, and end the
// process.
constexpr double kTimeouts = 2;

struct WaitArgs {
  PeerSignals signals;
  int channel;
  bool signals_peers;
  uint64_t timeout_ns;
  volatile int64_t* late;
  volatile int32_t* ended;
};

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// One block. Thread n signals rank n, if signals_peers, and waits for the signal of rank n.
__global__ void WaitKernel(const __grid_constant__ WaitArgs args) {
  const int peer = threadIdx.x;
  if (peer >= args.signals.num_ranks || peer == args.signals.rank) return;
  if (args.signals_peers) args.signals.Signal(peer, args.channel);
  const uint64_t start = Nanoseconds();
  uint64_t look_at = start + kLookNs;
  while (!args.signals.HasSignalled(peer, args.channel)) {
    const uint64_t now = Nanoseconds();
    if (now < look_at) continue;
    look_at = now + kLookNs;
    if (*args.ended != 0) break;
    if (now - start > args.timeout_ns) {
      *args.late = 1 + peer;
      *args.ended = 1;
      break;
    }
  }
  __threadfence_system();
}

}  // namespace

std::unique_ptr<PeerBufferPool> PeerBufferPool::Make(Communicator* communicator,
                                                     double timeout_seconds, cudaStream_t stream,
                                                     Status* why_not) {
  if (communicator->num_ranks() > kMaxRanks) {
    *why_not = "expected at most " + std::to_string(kMaxRanks) + " ranks, got " +
               std::to_string(communicator->num_ranks());
    return nullptr;
  }
  const int64_t bytes = PeerSignals::BytesOf(communicator->num_ranks());
  auto words = PeerMemory::Make(communicator, bytes, stream, why_not);
  if (words == nullptr) return nullptr;
  return std::unique_ptr<PeerBufferPool>(
      new PeerBufferPool(communicator, std::move(words), timeout_seconds));
}

PeerBufferPool::PeerBufferPool(Communicator* communicator, std::unique_ptr<PeerMemory> words,
                               double timeout_seconds)
    : communicator_(communicator), words_(std::move(words)), timeout_seconds_(timeout_seconds) {
  void* board;
  RequireCuda(cudaHostAlloc(&board, sizeof(Board), cudaHostAllocMapped));
  board_ = new (board) Board{};
}

PeerBufferPool::~PeerBufferPool() {
  cudaDeviceSynchronize();
  cudaFreeHost(const_cast<Board*>(board_));
}

void PeerBufferPool::Begin(cudaStream_t stream) {
  if (has_stream_ && stream != stream_) RequireCuda(cudaDeviceSynchronize());
  has_stream_ = true;
  stream_ = stream;
}

int64_t PeerBufferPool::FindFree() const {
  int64_t best = kNone;
  for (size_t n = 0; n < peer_buffers_.size(); ++n) {
    if (peer_buffers_[n].use_count() == 1 && peer_buffers_[n]->bytes() > Bytes(best)) best = n;
  }
  return best;
}

int64_t PeerBufferPool::Add(int64_t bytes, cudaStream_t stream) {
  std::unique_ptr<PeerMemory> peer_buffer = PeerMemory::Make(communicator_, bytes, stream, &lack_);
  if (peer_buffer == nullptr) {
    too_many_bytes_ = bytes;
    return kNone;
  }
  peer_buffers_.push_back(std::move(peer_buffer));
  return static_cast<int64_t>(peer_buffers_.size()) - 1;
}

PeerSignals PeerBufferPool::NextSignals() {
  PeerSignals signals = {};
  signals.num_ranks = communicator_->num_ranks();
  signals.rank = communicator_->rank();
  for (int n = 0; n < signals.num_ranks; ++n) {
    signals.words[n] = reinterpret_cast<uint64_t*>(words_->data(n));
  }
  signals.epoch = ++epoch_;
  return signals;
}

void PeerBufferPool::EnqueueBarrier(cudaStream_t stream) {
  Enqueue(NextSignals(), /*channel=*/0, /*signals_peers=*/true, stream);
}

void PeerBufferPool::EnqueueWait(const PeerSignals& signals, int channel, cudaStream_t stream) {
  Enqueue(signals, channel, /*signals_peers=*/false, stream);
}

void PeerBufferPool::Enqueue(const PeerSignals& signals, int channel, bool signals_peers,
                             cudaStream_t stream) {
  WaitArgs args = {signals, channel, signals_peers};
  args.timeout_ns = static_cast<uint64_t>(kTimeouts * timeout_seconds_ * 1e9);
  args.late = &board_->late;
  args.ended = &board_->ended;
  WaitKernel<<<1, kMaxRanks, 0, stream>>>(args);
  RequireCuda(cudaGetLastError());
}

void PeerBufferPool::Abort() { board_->ended = 1; }

Status PeerBufferPool::status() const {
  const int64_t late = board_->late;
  if (late == 0) return {};
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", timeout_seconds_);
  return "waited for rank " + std::to_string(late - 1) + " longer than " + seconds +
         " s, which hangs or is gone";
}

}  // namespace group_embedding
