#include <numeric>

#include "core/descriptors.cuh"
#include "exchange/convert_parts.h"
#include "exchange/exchanged_group.h"
#include "exchange/part_bytes.h"
#include "table/device_buffer.h"

namespace group_embedding {

ExchangedGroup::ExchangedGroup(const Group& group, Communicator* communicator,
                               std::string description, DataType comm_type, Memory memory,
                               std::vector<KeyedFeature> keyed)
    : ShardedGroup(group, communicator->rank(), communicator->num_ranks(), std::move(memory)),
      communicator_(communicator),
      description_(std::move(description)),
      comm_type_(comm_type),
      keyed_(std::move(keyed)) {}

void ExchangedGroup::Lookup(Fault* fault, cudaStream_t stream) {
  Require(Ask(fault, stream).disagreement);
  FetchRows(static_cast<int64_t*>(allocate_("requests", 8 * num_requests())), /*locate=*/{},
            stream);
  LookUpFetched(stream);
}

const ToldCounts& ExchangedGroup::Ask(Fault* fault, cudaStream_t stream) {
  local_rows_ = static_cast<int64_t*>(allocate_("local_rows", 8 * group().batch.num_ids));
  Route(NumberKeys(stream), local_rows_, fault, stream);
  sent_bytes_ = 0;
  counts_ =
      ExchangeCounts({description_, num_tables(), routed_.sorted.num_unique, local_rows_, fault},
                     communicator_, {allocate_, allocate_on_host_}, stream);
  return counts_;
}

RoutedKeys ExchangedGroup::NumberKeys(cudaStream_t stream) {
  if (keyed_.empty()) return {};
  const Batch batch = group().batch;
  const int64_t bytes =
      NumberKeysWorkspaceBytesCuda(keyed_, batch.num_ids, num_tables(), num_ranks_);
  RoutedKeys keys;
  RequireCuda(NumberKeysCuda(keyed_, batch.ids, batch.num_ids, num_tables(), num_ranks_,
                             allocate_("numbers", bytes), &keys.numbered, stream));
  keys.times = static_cast<int64_t*>(allocate_("times", 8 * batch.num_ids));
  times_ = keys.times;
  SetIds(keys.numbered.ids);
  return keys;
}

int64_t ExchangedGroup::num_requests() const {
  return std::accumulate(counts_.served.begin(), counts_.served.end(), int64_t{0});
}

void ExchangedGroup::NameRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
  requests_ = requests;
  const std::vector<int64_t> asked = WordsOfRanks(counts_.asked),
                             served = WordsOfRanks(counts_.served);
  if (counts_.messages == nullptr) {
    AllToAll(local_rows_, asked, requests_, served, stream);
  } else {
    CountSent(asked);
    CollectRows(counts_, num_ranks_, requests_, stream);
  }
  if (!keyed_.empty()) LocateRequests(locate, stream);
}

void ExchangedGroup::LocateRequests(const Locate& locate, cudaStream_t stream) {
  const std::vector<int64_t> asked = WordsOfRanks(counts_.asked),
                             served = WordsOfRanks(counts_.served);
  auto* times = static_cast<int64_t*>(allocate_("requested_times", 8 * num_requests()));
  AllToAll(times_, asked, times, served, stream);
  const std::vector<Table> shards = locate(requests_, times);
  for (const KeyedFeature& feature : keyed_) SetShard(feature.table, shards[feature.table]);
  // Own rows are read where they are.
  const auto before = [this](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.begin() + rank_, int64_t{0}) / 8;
  };
  RequireCuda(cudaMemcpyAsync(local_rows_ + before(asked), requests_ + before(served), asked[rank_],
                              cudaMemcpyDeviceToDevice, stream));
}

void ExchangedGroup::FetchRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
  NameRows(requests, locate, stream);
  const std::vector<int64_t> sent_at = PartOffsets(counts_.served, rank_);
  const std::vector<int64_t> fetched_at = PartOffsets(counts_.asked, rank_);
  const char* sent = LookUpRequests(sent_at, stream);
  char* fetched = static_cast<char*>(allocate_("fetched", fetched_at.back()));
  ExchangeParts(sent, sent_at, fetched, fetched_at, /*factor=*/1, stream);
  fetched_ = fetched;
  PlaceRows(stream);
}

void ExchangedGroup::FindRows(const std::vector<Table>& shards, cudaStream_t stream) {
  SetTables(shards);
  PlaceRows(stream);
}

void ExchangedGroup::PlaceRows(cudaStream_t stream) {
  const std::vector<int64_t> fetched_at = PartOffsets(counts_.asked, rank_);
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
    features.push_back({at, is_own ? 0 : counts_.served[p], rows + offsets[p], shards[t].dim,
                        static_cast<int32_t>(t), Combiner::kSum});
    at += counts_.served[p];
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
  const std::vector<int64_t> sent_at = PartOffsets(counts_.asked, rank_);
  const std::vector<int64_t> received_at = PartOffsets(counts_.served, rank_);
  const std::vector<int64_t> all_at = PartOffsets(counts_.asked, /*skipped=*/-1);
  const int64_t own_at = all_at[rank_ * num_tables()];
  char* sent = static_cast<char*>(allocate_("sent_gradients", sent_at.back()));
  char* received = static_cast<char*>(allocate_("received_gradients", received_at.back()));
  char* own =
      static_cast<char*>(allocate_("own_gradients", all_at[(rank_ + 1) * num_tables()] - own_at));
  std::vector<int64_t> num_unique = {0};
  std::vector<char*> gradients;
  for (int64_t p = 0; p < num_parts(); ++p) {
    num_unique.push_back(num_unique.back() + counts_.asked[p]);
    gradients.push_back(p / num_tables() == rank_ ? own + all_at[p] - own_at : sent + sent_at[p]);
  }
  ReduceGradients(num_unique, gradients, stream);
  // As those of the mean of the ranks' losses, which overflow 16 bits as late as through the host.
  ExchangeParts(sent, sent_at, received, received_at, 1.0f / num_ranks_, stream);

  std::vector<Received> parts;
  for (int n = 0; n < num_ranks_; ++n) {
    const auto first = counts_.served.begin() + n * num_tables();
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

void ExchangedGroup::WeightGrad(const std::vector<Feature>& features, float* weight_grad,
                                cudaStream_t stream) {
  SetFeatures(features);
  std::vector<Table> tables;
  const Group by_place = ByPlace(&tables);
  void* scratch = allocate_("weight_grad", WeightGradScratchBytesCuda(by_place));
  RequireCuda(WeightGradCuda(by_place, weight_grad, scratch, stream));
}

void ExchangedGroup::ExchangeParts(const char* sent, const std::vector<int64_t>& sent_at,
                                   char* received, const std::vector<int64_t>& received_at,
                                   float factor, cudaStream_t stream) {
  const DataType type = group().dtype;
  const std::vector<int64_t> sent_bytes = BytesOfRanks(sent_at),
                             received_bytes = BytesOfRanks(received_at);
  if (comm_type_ == type) return AllToAll(sent, sent_bytes, received, received_bytes, stream);
  const auto room = [&](const char* name, const std::vector<int64_t>& at) {
    return static_cast<char*>(allocate_(name, at.back() / SizeOf(type) * SizeOf(comm_type_)));
  };
  char *leaving = room("leaving", sent_at), *arrived = room("arrived", received_at);
  RequireCuda(ConvertPartsCuda(sent, type, sent_at.back(), factor, leaving, comm_type_, stream));
  AllToAll(leaving, sent_bytes, arrived, received_bytes, stream);
  const int64_t arrived_bytes = received_at.back() / SizeOf(type) * SizeOf(comm_type_);
  RequireCuda(
      ConvertPartsCuda(arrived, comm_type_, arrived_bytes, 1 / factor, received, type, stream));
}

void ExchangedGroup::CountSent(const std::vector<int64_t>& send_bytes) {
  for (int n = 0; n < num_ranks_; ++n) sent_bytes_ += n == rank_ ? 0 : send_bytes[n];
}

void ExchangedGroup::AllToAll(const void* send, const std::vector<int64_t>& send_bytes,
                              void* receive, const std::vector<int64_t>& receive_bytes,
                              cudaStream_t stream) {
  CountSent(send_bytes);
  Require(communicator_->AllToAll(send, send_bytes.data(), receive, receive_bytes.data(), stream));
}

std::vector<int64_t> ExchangedGroup::BytesOfRanks(const std::vector<int64_t>& offsets) const {
  std::vector<int64_t> bytes;
  for (int n = 0; n < num_ranks_; ++n) {
    const int64_t of_rank = offsets[(n + 1) * num_tables()] - offsets[n * num_tables()];
    bytes.push_back(of_rank / SizeOf(group().dtype) * SizeOf(comm_type_));
  }
  return bytes;
}

std::vector<int64_t> ExchangedGroup::WordsOfRanks(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> bytes(num_ranks_, 0);
  for (size_t p = 0; p < counts.size(); ++p) bytes[p / num_tables()] += 8 * counts[p];
  return bytes;
}

}  // namespace group_embedding
