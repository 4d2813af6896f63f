#include <cstdio>
#include <new>

#include "exchange/peer_rooms.h"
#include "table/device_buffer.h"

namespace group_embedding {
namespace {

constexpr int kMaxRanks = 64;
constexpr uint64_t kLookNs = 100'000;  // between looks at the host's memory

// What comes after a barrier that ended in vain works with whatever is in the rooms. So it outlasts
// all who watch over the ranks, which wait for the time-out and some seconds, and end the process.
constexpr double kTimeouts = 2;

struct BarrierArgs {
  uint64_t* flags[kMaxRanks];  // of each rank: [num_ranks]
  int rank, num_ranks;
  uint64_t epoch;
  uint64_t timeout_ns;
  volatile int64_t* late;
  volatile int32_t* ended;
};

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Thread n tells rank n that this rank has come, and waits until rank n has said the same.
__global__ void BarrierKernel(const __grid_constant__ BarrierArgs args) {
  const int peer = threadIdx.x;
  if (peer >= args.num_ranks || peer == args.rank) return;
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.flags[peer] + args.rank),
               "l"(args.epoch)
               : "memory");
  const uint64_t* flag = args.flags[args.rank] + peer;
  const uint64_t start = Nanoseconds();
  uint64_t look_at = start + kLookNs;
  for (;;) {
    uint64_t seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
    if (seen >= args.epoch) break;
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

std::unique_ptr<PeerRooms> PeerRooms::Make(Communicator* communicator, double timeout_seconds,
                                           cudaStream_t stream, std::string* why_not) {
  if (communicator->num_ranks() > kMaxRanks) {
    *why_not = "expected at most " + std::to_string(kMaxRanks) + " ranks, got " +
               std::to_string(communicator->num_ranks());
    return nullptr;
  }
  const int64_t bytes = communicator->num_ranks() * sizeof(uint64_t);
  auto flags = PeerMemory::Make(communicator, bytes, stream, why_not);
  if (flags == nullptr) return nullptr;
  return std::unique_ptr<PeerRooms>(new PeerRooms(communicator, std::move(flags), timeout_seconds));
}

PeerRooms::PeerRooms(Communicator* communicator, std::unique_ptr<PeerMemory> flags,
                     double timeout_seconds)
    : communicator_(communicator), flags_(std::move(flags)), timeout_seconds_(timeout_seconds) {
  void* board;
  RequireCuda(cudaHostAlloc(&board, sizeof(Board), cudaHostAllocMapped));
  board_ = new (board) Board{};
}

PeerRooms::~PeerRooms() {
  cudaDeviceSynchronize();
  cudaFreeHost(const_cast<Board*>(board_));
}

void PeerRooms::Begin(cudaStream_t stream) {
  if (has_stream_ && stream != stream_) RequireCuda(cudaDeviceSynchronize());
  has_stream_ = true;
  stream_ = stream;
}

int64_t PeerRooms::FindFree() const {
  int64_t best = kNone;
  for (size_t n = 0; n < rooms_.size(); ++n) {
    if (rooms_[n].use_count() == 1 && rooms_[n]->bytes() > Bytes(best)) best = n;
  }
  return best;
}

int64_t PeerRooms::Add(int64_t bytes, cudaStream_t stream) {
  std::unique_ptr<PeerMemory> room = PeerMemory::Make(communicator_, bytes, stream, &lack_);
  if (room == nullptr) {
    too_many_bytes_ = bytes;
    return kNone;
  }
  rooms_.push_back(std::move(room));
  return static_cast<int64_t>(rooms_.size()) - 1;
}

void PeerRooms::EnqueueBarrier(cudaStream_t stream) {
  BarrierArgs args = {};
  args.num_ranks = communicator_->num_ranks();
  args.rank = communicator_->rank();
  for (int n = 0; n < args.num_ranks; ++n) {
    args.flags[n] = reinterpret_cast<uint64_t*>(flags_->data(n));
  }
  args.epoch = ++epoch_;
  args.timeout_ns = static_cast<uint64_t>(kTimeouts * timeout_seconds_ * 1e9);
  args.late = &board_->late;
  args.ended = &board_->ended;
  BarrierKernel<<<1, kMaxRanks, 0, stream>>>(args);
  RequireCuda(cudaGetLastError());
}

void PeerRooms::Abort() { board_->ended = 1; }

std::string PeerRooms::Error() const {
  const int64_t late = board_->late;
  if (late == 0) return "";
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", timeout_seconds_);
  return "waited for rank " + std::to_string(late - 1) + " longer than " + seconds +
         " s, which hangs or is gone";
}

}  // namespace group_embedding
