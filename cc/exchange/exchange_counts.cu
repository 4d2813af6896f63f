#include <algorithm>
#include <type_traits>

#include "exchange/exchange_counts.h"
#include "exchange/messages.h"
#include "exchange/same_description.h"
#include "table/device_buffer.h"

namespace group_embedding {
namespace {

// A rank's first message to each other, of int64, is as long whatever its group has, so that ranks
// with different groups understand each other:
//   | DescriptionHeader | its fault | has it too many rows | number of rows |
//   | rows of each of the first kFirstTables tables |  which rows  |
// What is not used is 0. The numbers of rows of further tables follow in a second message, once all
// know that they have the same group; too many rows for the room, in one of ExchangedGroup.
constexpr int kThreads = 256;
constexpr int64_t kWord = sizeof(int64_t);
constexpr int64_t kDescriptionWords = sizeof(DescriptionHeader) / kWord;
constexpr int64_t kFaultWords = sizeof(Fault) / kWord;
constexpr int64_t kTooManyWord = kDescriptionWords + kFaultWords;
constexpr int64_t kNumRowsWord = kTooManyWord + 1;
constexpr int64_t kHeaderWords = kNumRowsWord + 1;
constexpr int64_t kFirstWords = 256;  // before the rows
constexpr int64_t kFirstTables = kFirstWords - kHeaderWords;
static_assert(sizeof(Fault) % kWord == 0 && std::is_trivially_copyable_v<Fault>);
static_assert(sizeof(DescriptionHeader) % kWord == 0);

// Room for rows in a message: a batch of 65,536 ids, spread evenly, has it. All messages of a rank
// come to half a megabyte, which is sent whether it is needed or not, in the place of another
// exchange.
int64_t RoomForRows(int64_t num_ranks) { return (int64_t{1} << 16) / num_ranks; }

struct FirstArgs {
  DescriptionHeader header;
  const Fault* fault;
  const int64_t* num_unique;
  const int64_t* local_rows;
  int64_t num_tables, num_ranks;
  int64_t room_for_rows;

  __device__ int64_t FirstRow(int64_t rank) const { return num_unique[rank * num_tables]; }
  __device__ int64_t NumRows(int64_t rank) const { return FirstRow(rank + 1) - FirstRow(rank); }
  __device__ int64_t HasTooMany() const {
    int64_t most = 0;
    for (int64_t rank = 0; rank < num_ranks; ++rank) most = max(most, NumRows(rank));
    return most > room_for_rows;
  }
  __device__ int64_t Word(int64_t rank, int64_t word) const {
    const int64_t table = word - kHeaderWords, row = word - kFirstWords;
    if (row >= 0) return row < NumRows(rank) ? local_rows[FirstRow(rank) + row] : 0;
    if (table >= num_tables) return 0;
    if (table >= 0) {
      const int64_t part = rank * num_tables + table;
      return num_unique[part + 1] - num_unique[part];
    }
    if (word == kNumRowsWord) return NumRows(rank);
    if (word == kTooManyWord) return HasTooMany();
    if (word < kDescriptionWords) return reinterpret_cast<const int64_t*>(&header)[word];
    const auto* of_fault = reinterpret_cast<const int64_t*>(fault);
    return fault == nullptr ? 0 : of_fault[word - kDescriptionWords];
  }
};

// messages: [num_ranks, kFirstWords + room_for_rows].
__global__ void WriteFirstKernel(const __grid_constant__ FirstArgs args, int64_t* messages) {
  const int64_t words = kFirstWords + args.room_for_rows;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.num_ranks * words) messages[i] = args.Word(i / words, i % words);
}

// messages: those received, from a rank for each blockIdx.y.
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

// counts: [num_ranks, num_tables - kFirstTables].
__global__ void WriteFurtherKernel(const int64_t* num_unique, int64_t num_tables, int64_t num_ranks,
                                   int64_t* counts) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t further = num_tables - kFirstTables, rank = i / further;
  if (rank >= num_ranks) return;
  const int64_t part = rank * num_tables + kFirstTables + i % further;
  counts[i] = num_unique[part + 1] - num_unique[part];
}

// Messages of one length to and from each rank, of which the host reads the first words.
class EqualMessages {
 public:
  EqualMessages(const std::string& name, int64_t words, int64_t host_words, int num_ranks,
                const ShardedGroup::Memory& memory)
      : words_(words),
        host_words_(host_words),
        num_ranks_(num_ranks),
        on_device_(Allocate(memory.on_device, name, words)),
        on_host_(Allocate(memory.on_host, name, host_words)) {}

  // write(blocks, threads, [num_ranks, words] messages): enqueues the kernel that writes them.
  template <typename Write>
  void Exchange(const Write& write, Communicator* communicator, cudaStream_t stream) {
    const int64_t num_words = words_ * num_ranks_;
    write(static_cast<unsigned>((num_words + kThreads - 1) / kThreads), kThreads, on_device_);
    RequireCuda(cudaGetLastError());
    Require(ExchangeEqual(communicator, on_device_, received(), words_ * kWord, stream));
    RequireCuda(cudaMemcpy2DAsync(on_host_, host_words_ * kWord, on_device_, words_ * kWord,
                                  host_words_ * kWord, 2 * num_ranks_, cudaMemcpyDeviceToHost,
                                  stream));
    Require(communicator->Wait(stream));
  }

  const int64_t* sent_to(int64_t rank) const { return on_host_ + rank * host_words_; }
  const int64_t* received_from(int64_t rank) const { return sent_to(num_ranks_ + rank); }
  int64_t* received() const { return on_device_ + num_ranks_ * words_; }  // on the device

 private:
  int64_t* Allocate(const ShardedGroup::Allocate& allocate, const std::string& name,
                    int64_t words) const {
    return static_cast<int64_t*>(allocate(name, 2 * num_ranks_ * words * kWord));
  }

  const int64_t words_, host_words_, num_ranks_;
  int64_t *const on_device_, *const on_host_;  // those that are sent, those that are received
};

template <typename Words>
Words Read(const int64_t* from) {
  Words words;
  std::copy_n(from, sizeof(Words) / kWord, reinterpret_cast<int64_t*>(&words));
  return words;
}

// counts: [num_ranks, num_tables], of which tables [first, first + num) are copied.
void CopyCounts(const int64_t* from, int64_t rank, int64_t first, int64_t num, int64_t num_tables,
                std::vector<int64_t>* counts) {
  std::copy_n(from, num, counts->begin() + rank * num_tables + first);
}

}  // namespace

ToldCounts ExchangeCounts(const CountsToTell& mine, Communicator* communicator,
                          const ShardedGroup::Memory& memory, cudaStream_t stream) {
  const int num_ranks = communicator->num_ranks();
  const int64_t num_tables = mine.num_tables;
  const int64_t num_first = std::min(num_tables, kFirstTables),
                num_further = num_tables - num_first;
  const FirstArgs args{HeaderOf(mine.description),
                       mine.fault,
                       mine.num_unique,
                       mine.local_rows,
                       num_tables,
                       num_ranks,
                       RoomForRows(num_ranks)};
  EqualMessages first("counts", kFirstWords + args.room_for_rows, kFirstWords, num_ranks, memory);
  first.Exchange(
      [&](unsigned blocks, int threads, int64_t* messages) {
        WriteFirstKernel<<<blocks, threads, 0, stream>>>(args, messages);
      },
      communicator, stream);

  ToldCounts told;
  std::vector<DescriptionHeader> headers;
  for (int n = 0; n < num_ranks; ++n) {
    headers.push_back(Read<DescriptionHeader>(first.received_from(n)));
  }
  told.disagreement = FindDisagreement(mine.description, headers, communicator, memory, stream);
  if (!told.disagreement.empty()) return told;

  told.asked.resize(num_ranks * num_tables);
  told.served.resize(num_ranks * num_tables);
  told.messages = first.received();
  for (int n = 0; n < num_ranks; ++n) {
    if (first.received_from(n)[kTooManyWord] != 0) told.messages = nullptr;
    const Fault fault = Read<Fault>(first.received_from(n) + kDescriptionWords);
    if (told.fault_rank < 0 && fault.kind != FaultKind::kNone) {
      told.fault_rank = n;
      told.fault = fault;
    }
    CopyCounts(first.sent_to(n) + kHeaderWords, n, 0, num_first, num_tables, &told.asked);
    CopyCounts(first.received_from(n) + kHeaderWords, n, 0, num_first, num_tables, &told.served);
  }
  if (num_further == 0) return told;
  EqualMessages further("further_counts", num_further, num_further, num_ranks, memory);
  further.Exchange(
      [&](unsigned blocks, int threads, int64_t* counts) {
        WriteFurtherKernel<<<blocks, threads, 0, stream>>>(mine.num_unique, num_tables, num_ranks,
                                                           counts);
      },
      communicator, stream);
  for (int n = 0; n < num_ranks; ++n) {
    CopyCounts(further.sent_to(n), n, num_first, num_further, num_tables, &told.asked);
    CopyCounts(further.received_from(n), n, num_first, num_further, num_tables, &told.served);
  }
  return told;
}

void CollectRows(const ToldCounts& told, int num_ranks, int64_t* requests, cudaStream_t stream) {
  const int64_t room = RoomForRows(num_ranks);
  const dim3 blocks(static_cast<unsigned>((room + 4 * kThreads - 1) / (4 * kThreads)), num_ranks);
  CollectRowsKernel<<<blocks, kThreads, 0, stream>>>(told.messages, kFirstWords + room, requests);
  RequireCuda(cudaGetLastError());
}

}  // namespace group_embedding
