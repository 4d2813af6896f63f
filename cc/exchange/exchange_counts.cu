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
//   | DescriptionHeader | its fault | rows of the first kFirstTables tables |
// Rows of further tables follow in a second one, once all know that they have the same group.
constexpr int64_t kWord = sizeof(int64_t);
constexpr int64_t kDescriptionWords = sizeof(DescriptionHeader) / kWord;
constexpr int64_t kFaultWords = sizeof(Fault) / kWord;
constexpr int64_t kHeaderWords = kDescriptionWords + kFaultWords;
constexpr int64_t kFirstWords = 256;
constexpr int64_t kFirstTables = kFirstWords - kHeaderWords;
static_assert(sizeof(Fault) % kWord == 0 && std::is_trivially_copyable_v<Fault>);
static_assert(sizeof(DescriptionHeader) % kWord == 0);

// messages: [num_ranks, kFirstWords].
__global__ void WriteFirstKernel(DescriptionHeader header, const Fault* fault,
                                 const int64_t* num_unique, int64_t num_tables, int64_t num_ranks,
                                 int64_t* messages) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t rank = i / kFirstWords, word = i % kFirstWords, table = word - kHeaderWords;
  if (rank >= num_ranks) return;
  if (word < kDescriptionWords) {
    messages[i] = reinterpret_cast<const int64_t*>(&header)[word];
  } else if (word < kHeaderWords) {
    const auto* words = reinterpret_cast<const int64_t*>(fault);
    messages[i] = fault == nullptr ? 0 : words[word - kDescriptionWords];
  } else if (table < num_tables) {
    const int64_t part = rank * num_tables + table;
    messages[i] = num_unique[part + 1] - num_unique[part];
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

// Messages of one length to and from each rank.
class EqualMessages {
 public:
  EqualMessages(const std::string& name, int64_t words, int num_ranks,
                const ShardedGroup::Memory& memory)
      : words_(words),
        num_words_(words * num_ranks),
        on_device_(Allocate(memory.on_device, name)),
        on_host_(Allocate(memory.on_host, name)) {}

  // write(blocks, threads, [num_ranks, words] messages): enqueues the kernel that writes them.
  template <typename Write>
  void Exchange(const Write& write, Communicator* communicator, cudaStream_t stream) {
    constexpr int kThreads = 256;
    write(static_cast<unsigned>((num_words_ + kThreads - 1) / kThreads), kThreads, on_device_);
    RequireCuda(cudaGetLastError());
    Require(
        ExchangeEqual(communicator, on_device_, on_device_ + num_words_, words_ * kWord, stream));
    RequireCuda(cudaMemcpyAsync(on_host_, on_device_, 2 * num_words_ * kWord,
                                cudaMemcpyDeviceToHost, stream));
    Require(communicator->Wait(stream));
  }

  const int64_t* sent_to(int64_t rank) const { return on_host_ + rank * words_; }
  const int64_t* received_from(int64_t rank) const { return sent_to(rank) + num_words_; }

 private:
  int64_t* Allocate(const ShardedGroup::Allocate& allocate, const std::string& name) const {
    return static_cast<int64_t*>(allocate(name, 2 * num_words_ * kWord));
  }

  const int64_t words_, num_words_;
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
  const DescriptionHeader header = HeaderOf(mine.description);
  EqualMessages first("counts", kFirstWords, num_ranks, memory);
  first.Exchange(
      [&](unsigned blocks, int threads, int64_t* messages) {
        WriteFirstKernel<<<blocks, threads, 0, stream>>>(header, mine.fault, mine.num_unique,
                                                         num_tables, num_ranks, messages);
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
  for (int n = 0; n < num_ranks; ++n) {
    const Fault fault = Read<Fault>(first.received_from(n) + kDescriptionWords);
    if (told.fault_rank < 0 && fault.kind != FaultKind::kNone) {
      told.fault_rank = n;
      told.fault = fault;
    }
    CopyCounts(first.sent_to(n) + kHeaderWords, n, 0, num_first, num_tables, &told.asked);
    CopyCounts(first.received_from(n) + kHeaderWords, n, 0, num_first, num_tables, &told.served);
  }
  if (num_further == 0) return told;
  EqualMessages further("further_counts", num_further, num_ranks, memory);
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

}  // namespace group_embedding
