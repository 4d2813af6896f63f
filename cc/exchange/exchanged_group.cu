#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <type_traits>

#include "core/descriptors.cuh"
#include "exchange/exchanged_group.h"
#include "exchange/part_bytes.h"
#include "table/device_buffer.h"

namespace group_embedding {
namespace {

constexpr int64_t kFaultWords = sizeof(Fault) / sizeof(int64_t);
static_assert(sizeof(Fault) % sizeof(int64_t) == 0 && std::is_trivially_copyable_v<Fault>);

// What this rank sends to each before all else: [num_ranks, num_tables + kFaultWords], how many
// rows of each table it asks that rank for, and the bad id that it met, if any.
__global__ void WriteCountsKernel(const int64_t* num_unique, int64_t num_ranks, int64_t num_tables,
                                  const Fault* fault, int64_t* messages) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t rank = i / (num_tables + kFaultWords), word = i % (num_tables + kFaultWords);
  if (rank >= num_ranks) return;
  if (word < num_tables) {
    const int64_t part = rank * num_tables + word;
    messages[i] = num_unique[part + 1] - num_unique[part];
  } else {
    const auto* words = reinterpret_cast<const int64_t*>(fault);
    messages[i] = fault == nullptr ? 0 : words[word - num_tables];
  }
}

void Require(const std::string& error) {
  if (!error.empty()) throw std::runtime_error(error);
}

}  // namespace

ExchangedGroup::ExchangedGroup(const Group& group, Communicator* communicator, Memory memory)
    : ShardedGroup(group, communicator->rank(), communicator->num_ranks(), std::move(memory)),
      communicator_(communicator) {}

void ExchangedGroup::Lookup(Fault* fault, cudaStream_t stream) {
  Ask(fault, stream);
  FetchRows(static_cast<int64_t*>(allocate_("requests", 8 * num_requests())), stream);
}

void ExchangedGroup::Ask(Fault* fault, cudaStream_t stream) {
  local_rows_ = static_cast<int64_t*>(allocate_("local_rows", 8 * group().batch.num_ids));
  Route(local_rows_, fault, stream);

  constexpr int kThreads = 256;
  const int64_t message_words = num_tables() + kFaultWords, num_words = num_ranks_ * message_words;
  const int64_t bytes = num_words * sizeof(int64_t);
  auto* sent = static_cast<int64_t*>(allocate_("counts", 2 * bytes));
  int64_t* received = sent + num_words;
  auto* host = static_cast<int64_t*>(allocate_on_host_("counts", 2 * bytes));
  WriteCountsKernel<<<static_cast<unsigned>((num_words + kThreads - 1) / kThreads), kThreads, 0,
                      stream>>>(routed_.sorted.num_unique, num_ranks_, num_tables(), fault, sent);
  RequireCuda(cudaGetLastError());
  Require(ExchangeEqual(communicator_, sent, received, message_words * sizeof(int64_t), stream));
  RequireCuda(cudaMemcpyAsync(host, sent, 2 * bytes, cudaMemcpyDeviceToHost, stream));
  Require(communicator_->Wait(stream));

  asked_.clear();
  served_.clear();
  fault_rank_ = -1;
  sent_bytes_ = 0;
  for (int64_t n = 0; n < num_ranks_; ++n) {
    const int64_t *to = host + n * message_words, *from = to + num_words;
    asked_.insert(asked_.end(), to, to + num_tables());
    served_.insert(served_.end(), from, from + num_tables());
    Fault of_rank;
    std::copy_n(from + num_tables(), kFaultWords, reinterpret_cast<int64_t*>(&of_rank));
    if (fault_rank_ < 0 && of_rank.kind != FaultKind::kNone) fault_rank_ = n, fault_ = of_rank;
  }
}

int64_t ExchangedGroup::num_requests() const {
  return std::accumulate(served_.begin(), served_.end(), int64_t{0});
}

void ExchangedGroup::NameRows(int64_t* requests, cudaStream_t stream) {
  requests_ = requests;
  std::vector<int64_t> asked = RowsOfRanks(asked_), served = RowsOfRanks(served_);
  for (int64_t& rows : asked) rows *= sizeof(int64_t);
  for (int64_t& rows : served) rows *= sizeof(int64_t);
  AllToAll(local_rows_, asked, requests_, served, stream);
}

void ExchangedGroup::FetchRows(int64_t* requests, cudaStream_t stream) {
  NameRows(requests, stream);
  const std::vector<int64_t> sent_at = PartOffsets(served_, rank_);
  const std::vector<int64_t> fetched_at = PartOffsets(asked_, rank_);
  const char* sent = LookUpRequests(sent_at, stream);
  char* fetched = static_cast<char*>(allocate_("fetched", fetched_at.back()));
  AllToAll(sent, BytesOfRanks(sent_at), fetched, BytesOfRanks(fetched_at), stream);
  fetched_ = fetched;
  PlaceRows(stream);
  LookUpPlaces(stream);
}

void ExchangedGroup::PlaceRows(cudaStream_t stream) {
  const std::vector<int64_t> fetched_at = PartOffsets(asked_, rank_);
  std::vector<PartPlace> places;
  for (int64_t p = 0; p < num_parts(); ++p) {
    const bool in_place = p / num_tables() == rank_;
    const char* base = in_place ? static_cast<const char*>(shard(p % num_tables()).rows)
                                : fetched_ + fetched_at[p];
    places.push_back({reinterpret_cast<int64_t>(base), row_bytes(p % num_tables()), in_place});
  }
  DeviceArrays sizes(nullptr);
  sizes.Add(places);
  DeviceArrays arrays(allocate_("part_places", sizes.size()));
  const PartPlace* parts = arrays.Add(places);
  RequireCuda(arrays.Send(stream));
  RequireCuda(WritePlacesCuda(routed_, parts, stream));
}

const char* ExchangedGroup::LookUpRequests(const std::vector<int64_t>& offsets,
                                           cudaStream_t stream) {
  char* rows = static_cast<char*>(allocate_("served", offsets.back()));
  std::vector<Table> shards;
  for (int64_t t = 0; t < num_tables(); ++t) {
    shards.push_back(shard(t));
    shards.back().max_norm = 0;  // is seen to where rows are combined
  }
  std::vector<Feature> features;
  int64_t at = 0;
  for (int64_t p = 0; p < num_parts(); ++p) {
    const int64_t t = p % num_tables();
    const bool is_own = p / num_tables() == rank_;
    features.push_back({at, is_own ? 0 : served_[p], rows + offsets[p], shards[t].dim,
                        static_cast<int32_t>(t), Combiner::kSum});
    at += served_[p];
  }
  Group requests = group();
  requests.tables = shards.data();
  requests.features = features.data();
  requests.num_features = static_cast<int64_t>(features.size());
  requests.batch = {/*row_splits=*/nullptr, requests_, /*weights=*/nullptr, at, at};
  requests.invalid_ids = {/*prune_negative=*/false, /*read_zeros=*/true};
  void* scratch = allocate_("serve", GroupLookupScratchBytes(num_tables(), requests.num_features));
  RequireCuda(GroupLookupCuda(requests, scratch, nullptr, stream));
  return rows;
}

std::vector<ShardedGroup::Received> ExchangedGroup::SendGradients(
    const std::vector<Feature>& features, cudaStream_t stream) {
  SetFeatures(features);
  // Own gradients stay here, apart from those that travel.
  const std::vector<int64_t> sent_at = PartOffsets(asked_, rank_);
  const std::vector<int64_t> received_at = PartOffsets(served_, rank_);
  const std::vector<int64_t> all_at = PartOffsets(asked_, /*skipped=*/-1);
  const int64_t own_at = all_at[rank_ * num_tables()];
  char* sent = static_cast<char*>(allocate_("sent_gradients", sent_at.back()));
  char* received = static_cast<char*>(allocate_("received_gradients", received_at.back()));
  char* own =
      static_cast<char*>(allocate_("own_gradients", all_at[(rank_ + 1) * num_tables()] - own_at));
  std::vector<int64_t> num_unique = {0};
  std::vector<char*> gradients;
  for (int64_t p = 0; p < num_parts(); ++p) {
    num_unique.push_back(num_unique.back() + asked_[p]);
    gradients.push_back(p / num_tables() == rank_ ? own + all_at[p] - own_at : sent + sent_at[p]);
  }
  ReduceGradients(num_unique, gradients, stream);
  AllToAll(sent, BytesOfRanks(sent_at), received, BytesOfRanks(received_at), stream);

  std::vector<Received> parts;
  for (int n = 0; n < num_ranks_; ++n) {
    const auto first = served_.begin() + n * num_tables();
    parts.push_back({{first, first + num_tables()},
                     n == rank_ ? own : received + received_at[n * num_tables()]});
  }
  return parts;
}

void ExchangedGroup::Update(const group_embedding::Update& update, cudaStream_t stream) {
  const Group all = group();
  const std::vector<Feature> features(all.features, all.features + all.num_features);
  UpdateShards(update, SendGradients(features, stream), requests_, stream);
}

void ExchangedGroup::WeightGrad(const std::vector<Feature>& features,
                                const std::vector<Table>& shards, float* weight_grad,
                                cudaStream_t stream) {
  SetFeatures(features);
  SetTables(shards);
  PlaceRows(stream);
  std::vector<Table> tables;
  const Group by_place = ByPlace(&tables);
  void* scratch = allocate_("weight_grad", WeightGradScratchBytesCuda(by_place));
  RequireCuda(WeightGradCuda(by_place, weight_grad, scratch, stream));
}

void ExchangedGroup::AllToAll(const void* send, const std::vector<int64_t>& send_bytes,
                              void* receive, const std::vector<int64_t>& receive_bytes,
                              cudaStream_t stream) {
  for (int n = 0; n < num_ranks_; ++n) sent_bytes_ += n == rank_ ? 0 : send_bytes[n];
  Require(communicator_->AllToAll(send, send_bytes.data(), receive, receive_bytes.data(), stream));
}

std::vector<int64_t> ExchangedGroup::BytesOfRanks(const std::vector<int64_t>& offsets) const {
  std::vector<int64_t> bytes;
  for (int n = 0; n < num_ranks_; ++n) {
    bytes.push_back(offsets[(n + 1) * num_tables()] - offsets[n * num_tables()]);
  }
  return bytes;
}

std::vector<int64_t> ExchangedGroup::RowsOfRanks(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> rows(num_ranks_, 0);
  for (size_t p = 0; p < counts.size(); ++p) rows[p / num_tables()] += counts[p];
  return rows;
}

}  // namespace group_embedding
