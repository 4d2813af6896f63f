#include <algorithm>
#include <type_traits>

#include "core/device_buffer.h"
#include "exchange/gpu/exchange_counts.h"
#include "exchange/gpu/same_description.h"
#include "exchange/host/messages.h"
#include "fused/group_lookup_grad.h"

namespace group_embedding {
namespace {

// A rank's first message to each other rank consists of int64 words. Its length does not depend on
// the group, so that ranks with different groups can read it:
//   | DescriptionHeader | fault | rows do not fit | number of rows | peer buffer |
//   | for each rank, the numbers of rows of the first tables | requested rows of the receiver |
// Unused words are 0. If the groups are the same, a second message has the numbers of rows of
// further tables. Rows that do not fit are sent by ShardedLookup. Every rank receives the numbers
// for all owners: to write rows into a peer buffer, a rank needs to know how much the others write
// there.
constexpr int kThreads = 256;
constexpr int64_t kWord = sizeof(int64_t);
constexpr int64_t kDescriptionWords = sizeof(DescriptionHeader) / kWord;
constexpr int64_t kFaultWords = sizeof(Fault) / kWord;
constexpr int64_t kTooManyWord = kDescriptionWords + kFaultWords;
constexpr int64_t kNumRowsWord = kTooManyWord + 1;
constexpr int64_t kBufferWord = kNumRowsWord + 1;
constexpr int64_t kHeaderWords = kBufferWord + 1;
constexpr int64_t kFirstWords = 4096;  // before the rows
static_assert(sizeof(Fault) % kWord == 0 && std::is_trivially_copyable_v<Fault>);
static_assert(sizeof(DescriptionHeader) % kWord == 0);

// The number of rows that fit into a message: enough for a batch of 65,536 ids spread evenly over
// the ranks. The messages of a rank have half a megabyte together. It is always sent, which costs
// less than a second exchange.
int64_t SpaceForRows(int64_t num_ranks) { return (int64_t{1} << 16) / num_ranks; }

int64_t NumFirstTables(int64_t num_tables, int64_t num_ranks) {
  return std::min(num_tables, (kFirstWords - kHeaderWords) / num_ranks);
}

// The number of rows of the i-th part, counted over tables [first_table, first_table + count) of
// all ranks.
__device__ int64_t RowsOfPart(const int64_t* num_unique, int64_t num_tables, int64_t first_table,
                              int64_t count, int64_t i) {
  const int64_t part = i / count * num_tables + first_table + i % count;
  return num_unique[part + 1] - num_unique[part];
}

struct FirstArgs {
  DescriptionHeader header;
  const Fault* fault;
  const int64_t* num_unique;
  const int64_t* local_rows;
  int64_t num_tables, num_first, num_ranks;
  int64_t space_for_rows, peer_buffer;

  __device__ int64_t FirstRow(int64_t rank) const { return num_unique[rank * num_tables]; }
  __device__ int64_t NumRows(int64_t rank) const { return FirstRow(rank + 1) - FirstRow(rank); }
  __device__ int64_t HasTooMany() const {
    int64_t most = local_rows == nullptr ? space_for_rows + 1 : 0;
    for (int64_t rank = 0; rank < num_ranks; ++rank) most = max(most, NumRows(rank));
    return most > space_for_rows;
  }
  __device__ int64_t Word(int64_t rank, int64_t word) const {
    const int64_t count = word - kHeaderWords, row = word - kFirstWords;
    if (row >= 0) {
      return local_rows != nullptr && row < NumRows(rank) ? local_rows[FirstRow(rank) + row] : 0;
    }
    if (count >= num_first * num_ranks) return 0;
    if (count >= 0) return RowsOfPart(num_unique, num_tables, 0, num_first, count);
    if (word == kBufferWord) return peer_buffer;
    if (word == kNumRowsWord) return NumRows(rank);
    if (word == kTooManyWord) return HasTooMany();
    if (word < kDescriptionWords) return reinterpret_cast<const int64_t*>(&header)[word];
    const auto* of_fault = reinterpret_cast<const int64_t*>(fault);
    return fault == nullptr ? 0 : of_fault[word - kDescriptionWords];
  }
};

// A thread writes one word of the first messages. messages: [num_ranks, kFirstWords +
// space_for_rows].
__global__ void WriteFirstKernel(const __grid_constant__ FirstArgs args, int64_t* messages) {
  const int64_t words = kFirstWords + args.space_for_rows;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.num_ranks * words) messages[i] = args.Word(i / words, i % words);
}

// Blocks with blockIdx.y = n copy the rows of the message from rank n. messages: the received ones.
__global__ void CollectRowsKernel(const int64_t* messages, int64_t words, int64_t* requests) {
  const int64_t* message = messages + blockIdx.y * words;
  for (int64_t rank = 0; rank < blockIdx.y; ++rank) {
    requests += messages[rank * words + kNumRowsWord];
  }
  const int64_t num_rows = message[kNumRowsWord];
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * blockDim.x) {
    requests[row] = message[kFirstWords + row];
  }
}

// A thread writes one word of the second messages, which are the same for each rank: messages
// [num_ranks, num_ranks, num_tables - first].
__global__ void WriteFurtherKernel(const int64_t* num_unique, int64_t num_tables, int64_t first,
                                   int64_t num_ranks, int64_t* messages) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t further = num_tables - first, words = num_ranks * further;
  if (i >= num_ranks * words) return;
  messages[i] = RowsOfPart(num_unique, num_tables, first, further, i % words);
}

// Messages of one length to and from each rank. The first `host_words` words of each received
// message are copied to the host.
class EqualMessages {
 public:
  EqualMessages(const std::string& name, int64_t words, int64_t host_words, int num_ranks,
                const NamedMemory& memory)
      : words_(words),
        host_words_(host_words),
        num_ranks_(num_ranks),
        on_device_(Allocate(memory.on_device, name, 2 * words)),
        on_host_(Allocate(memory.on_host, name, host_words)) {}

  // write(blocks, threads, [num_ranks, words] messages): enqueues the kernel that writes them.
  template <typename Write>
  void Exchange(const Write& write, Communicator* communicator, cudaStream_t stream) {
    const int64_t num_words = words_ * num_ranks_;
    write(static_cast<unsigned>((num_words + kThreads - 1) / kThreads), kThreads, on_device_);
    RequireCuda(cudaGetLastError());
    Require(ExchangeEqual(communicator, on_device_, received(), words_ * kWord, stream));
    RequireCuda(cudaMemcpy2DAsync(on_host_, host_words_ * kWord, received(), words_ * kWord,
                                  host_words_ * kWord, num_ranks_, cudaMemcpyDeviceToHost, stream));
    Require(communicator->Wait(stream));
  }

  const int64_t* received_from(int64_t rank) const { return on_host_ + rank * host_words_; }
  int64_t* received() const { return on_device_ + num_ranks_ * words_; }  // on the device

 private:
  int64_t* Allocate(const NamedMemory::Allocate& allocate, const std::string& name,
                    int64_t words) const {
    return static_cast<int64_t*>(allocate(name, num_ranks_ * words * kWord));
  }

  const int64_t words_, host_words_, num_ranks_;
  int64_t *const on_device_, *const on_host_;  // sent messages then received ones; received words
};

template <typename Words>
Words Read(const int64_t* from) {
  Words words;
  std::copy_n(from, sizeof(Words) / kWord, reinterpret_cast<int64_t*>(&words));
  return words;
}

// Copies the counts that one rank sent, [num_ranks, num], of `num` tables from `first` on.
void CopyCounts(const int64_t* from, int64_t requester, int64_t first, int64_t num,
                int64_t num_tables, int64_t num_ranks, std::vector<int64_t>* counts) {
  for (int64_t owner = 0; owner < num_ranks; ++owner) {
    std::copy_n(from + owner * num, num,
                counts->begin() + (requester * num_ranks + owner) * num_tables + first);
  }
}

}  // namespace

ExchangedCounts ExchangeCounts(const CountsToSend& mine, Communicator* communicator,
                               const NamedMemory& memory, cudaStream_t stream) {
  const int num_ranks = communicator->num_ranks();
  const int64_t num_tables = mine.num_tables;
  const int64_t num_first = NumFirstTables(num_tables, num_ranks),
                num_further = num_tables - num_first;
  const FirstArgs args{HeaderOf(mine.description),
                       mine.fault,
                       mine.num_unique,
                       mine.local_rows,
                       num_tables,
                       num_first,
                       num_ranks,
                       SpaceForRows(num_ranks),
                       mine.peer_buffer};
  EqualMessages first("counts", kFirstWords + args.space_for_rows,
                      kHeaderWords + num_ranks * num_first, num_ranks, memory);
  first.Exchange(
      [&](unsigned blocks, int threads, int64_t* messages) {
        WriteFirstKernel<<<blocks, threads, 0, stream>>>(args, messages);
      },
      communicator, stream);

  ExchangedCounts counts;
  std::vector<DescriptionHeader> headers;
  for (int n = 0; n < num_ranks; ++n) {
    headers.push_back(Read<DescriptionHeader>(first.received_from(n)));
  }
  counts.disagreement = FindDisagreement(mine.description, headers, communicator, memory, stream);
  if (!counts.disagreement.ok()) return counts;

  counts.requested.resize(num_ranks * num_ranks * num_tables);
  counts.messages = first.received();
  for (int n = 0; n < num_ranks; ++n) {
    const int64_t* words = first.received_from(n);
    if (words[kTooManyWord] != 0) counts.messages = nullptr;
    counts.peer_buffers.push_back(words[kBufferWord]);
    const Fault fault = Read<Fault>(words + kDescriptionWords);
    if (counts.fault_rank < 0 && fault.kind != FaultKind::kNone) {
      counts.fault_rank = n;
      counts.fault = fault;
    }
    CopyCounts(words + kHeaderWords, n, 0, num_first, num_tables, num_ranks, &counts.requested);
  }
  if (num_further > 0) {
    const int64_t words = num_ranks * num_further;
    EqualMessages further("further_counts", words, words, num_ranks, memory);
    further.Exchange(
        [&](unsigned blocks, int threads, int64_t* messages) {
          WriteFurtherKernel<<<blocks, threads, 0, stream>>>(mine.num_unique, num_tables, num_first,
                                                             num_ranks, messages);
        },
        communicator, stream);
    for (int n = 0; n < num_ranks; ++n) {
      CopyCounts(further.received_from(n), n, num_first, num_further, num_tables, num_ranks,
                 &counts.requested);
    }
  }
  for (const int64_t count : counts.requested) {
    if (count >= 0 && count <= kMaxBatchIds) continue;
    if (counts.fault_rank < 0) Require("a rank sent no counts");
  }
  const int64_t rank = communicator->rank(), num_parts = num_ranks * num_tables;
  const auto of_requester = [&](int64_t n) { return counts.requested.begin() + n * num_parts; };
  counts.asked.assign(of_requester(rank), of_requester(rank + 1));
  for (int n = 0; n < num_ranks; ++n) {
    const auto of_this = of_requester(n) + rank * num_tables;
    counts.served.insert(counts.served.end(), of_this, of_this + num_tables);
  }
  return counts;
}

void CollectRows(const ExchangedCounts& counts, int num_ranks, int64_t* requests,
                 cudaStream_t stream) {
  const int64_t space = SpaceForRows(num_ranks);
  const dim3 blocks(static_cast<unsigned>((space + 4 * kThreads - 1) / (4 * kThreads)), num_ranks);
  CollectRowsKernel<<<blocks, kThreads, 0, stream>>>(counts.messages, kFirstWords + space,
                                                     requests);
  RequireCuda(cudaGetLastError());
}

}  // namespace group_embedding
