#include <algorithm>
#include <numeric>
#include <utility>

#include "core/descriptors.cuh"
#include "core/device_buffer.h"
#include "exchange/gpu/convert_parts.h"
#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/peer_buffer_transport.h"
#include "exchange/gpu/sharded_lookup.h"
#include "exchange/transport/peer_buffers.h"

namespace group_embedding {
namespace {

// NarrowRows looks rows up without conversion below so many ids per received row. On an H200, at
// dim 128, converting a row takes 0.44 ns, and an id whose row may have either type takes 0.05 ns
// longer than others: up to 8 ids per row gain.
constexpr int64_t kIdsOfNarrowRow = 6;

}  // namespace

ShardedLookup::ShardedLookup(const Group& group, Communicator* communicator,
                             std::string description, DataType comm_type, NamedMemory memory,
                             std::vector<KeyedFeature> keyed)
    : communicator_(communicator),
      description_(std::move(description)),
      memory_(std::move(memory)),
      keyed_(std::move(keyed)),
      layout_(group, communicator->rank(), communicator->num_ranks(), comm_type),
      steps_(group, &layout_, &memory_.on_device),
      by_communicator_(&layout_, communicator, &memory_.on_device) {}

void ShardedLookup::Lookup(Fault* fault, cudaStream_t stream) {
  Require(RequestCounts(fault, stream).disagreement);
  LookUpRows(static_cast<int64_t*>(memory_.on_device("requests", 8 * num_requests())),
             /*locate=*/{}, stream);
}

const ExchangedCounts& ShardedLookup::RequestCounts(Fault* fault, cudaStream_t stream) {
  const int64_t num_ids = steps_.group().batch.num_ids;
  local_rows_ = static_cast<int64_t*>(memory_.on_device("local_rows", 8 * num_ids));
  steps_.Route(NumberKeys(stream), local_rows_, fault, stream);
  in_peer_buffers_.reset();
  gradients_have_come_ = false;
  PeerBufferPool* peer_buffers = communicator_->peer_buffers();
  if (peer_buffers != nullptr) peer_buffers->Begin(stream);
  const int64_t peer_buffer =
      peer_buffers == nullptr ? PeerBufferPool::kNone : peer_buffers->FindFree();
  const int64_t* num_unique = steps_.routed().sorted.num_unique;
  counts_ = ExchangeCounts(
      {description_, layout_.num_tables(), num_unique, local_rows_, fault, peer_buffer},
      communicator_, memory_, stream);
  if (counts_.disagreement.ok() && counts_.fault_rank < 0) ChooseTransport(stream);
  return counts_;
}

void ShardedLookup::ChooseTransport(cudaStream_t stream) {
  PeerBufferPool* pool = communicator_->peer_buffers();
  if (pool == nullptr) return;
  in_peer_buffers_ = PeerBufferTransport::Make(&layout_, pool, counts_, &memory_.on_device, stream);
}

RoutedKeys ShardedLookup::NumberKeys(cudaStream_t stream) {
  if (keyed_.empty()) return {};
  const Batch batch = steps_.group().batch;
  const int64_t bytes =
      NumberKeysWorkspaceBytesCuda(keyed_, batch.num_ids, layout_.num_tables(), layout_.num_ranks);
  RoutedKeys keys;
  RequireCuda(NumberKeysCuda(keyed_, batch.ids, batch.num_ids, layout_.num_tables(),
                             layout_.num_ranks, memory_.on_device("numbers", bytes), &keys.numbered,
                             stream));
  keys.times = static_cast<int64_t*>(memory_.on_device("times", 8 * batch.num_ids));
  times_ = keys.times;
  steps_.SetIds(keys.numbered.ids);
  return keys;
}

int64_t ShardedLookup::num_requests() const {
  return std::accumulate(counts_.served.begin(), counts_.served.end(), int64_t{0});
}

void ShardedLookup::SendRequests(int64_t* requests, const Locate& locate, cudaStream_t stream) {
  requests_ = requests;
  const std::vector<int64_t> asked = layout_.WordsOfRanks(counts_.asked),
                             served = layout_.WordsOfRanks(counts_.served);
  if (counts_.messages == nullptr) {
    AllToAll(local_rows_, asked, requests_, served, stream);
  } else {
    communicator_->CountSent(asked);  // they were sent with the counts
    CollectRows(counts_, layout_.num_ranks, requests_, stream);
  }
  if (!keyed_.empty()) LocateRequests(locate, stream);
}

void ShardedLookup::LocateRequests(const Locate& locate, cudaStream_t stream) {
  const std::vector<int64_t> asked = layout_.WordsOfRanks(counts_.asked),
                             served = layout_.WordsOfRanks(counts_.served);
  auto* times = static_cast<int64_t*>(memory_.on_device("requested_times", 8 * num_requests()));
  AllToAll(times_, asked, times, served, stream);
  const std::vector<Table> shards = locate(requests_, times);
  for (const KeyedFeature& feature : keyed_) steps_.SetShard(feature.table, shards[feature.table]);
  // This rank's own rows are read in its tables: copy their row numbers over their keys.
  const auto before = [this](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.begin() + layout_.rank, int64_t{0}) / 8;
  };
  RequireCuda(cudaMemcpyAsync(local_rows_ + before(asked), requests_ + before(served),
                              asked[layout_.rank], cudaMemcpyDeviceToDevice, stream));
}

void ShardedLookup::ExchangeRows(int64_t* requests, const Locate& locate, cudaStream_t stream,
                                 bool looks_up) {
  SendRequests(requests, locate, stream);
  RowTransport& transport = in_peer_buffers_ == nullptr ? by_communicator_ : *in_peer_buffers_;
  const std::optional<DataType> narrow = NarrowRows();
  const Transfer transfer =
      WithUnpacked(transport.OpenRows(
                       {counts_.served, counts_.asked, layout_.converts() && !narrow.has_value()}),
                   "rows");
  fetched_ = transfer.unpacked;
  const PartAddresses* addresses = ListPartAddresses(stream);
  communicator_->CountSent(layout_.WireBytesOfRanks(transfer.sent_at));
  const StepsOnRows steps = {
      [&](cudaStream_t beside) {
        RequireCuda(WriteAddressesCuda(steps_.routed(), addresses, beside));
      },
      [&](TableRange tables) { Unpack(transfer, tables, /*factor=*/1, stream); },
      [&](TableRange tables) {
        if (looks_up) steps_.LookUpAddresses(tables, narrow, stream);
      }};
  transport.ExchangeRows(transfer, {steps_.shards(), counts_.served, requests_}, steps, stream);
}

void ShardedLookup::UseRows(const std::vector<Table>& shards, cudaStream_t stream) {
  steps_.SetTables(shards);
  RequireCuda(WriteAddressesCuda(steps_.routed(), ListPartAddresses(stream), stream));
}

const PartAddresses* ShardedLookup::ListPartAddresses(cudaStream_t stream) {
  const std::vector<int64_t> fetched_at = layout_.PartOffsets(counts_.asked, layout_.rank);
  const auto address = [](const void* rows) { return reinterpret_cast<int64_t>(rows); };
  const bool has_narrow = NarrowRows().has_value();
  std::vector<PartAddresses> addresses;
  for (int64_t p = 0; p < layout_.num_parts(); ++p) {
    const int64_t t = p % layout_.num_tables(), stride = layout_.row_bytes(t);
    if (p / layout_.num_tables() == layout_.rank) {
      addresses.push_back({address(steps_.shards()[t].rows), stride, /*in_place=*/true});
    } else if (has_narrow) {
      const int64_t at = address(fetched_) + layout_.WireBytes(fetched_at[p]);
      addresses.push_back({at + kNarrowRowBit, layout_.WireBytes(stride), /*in_place=*/false});
    } else {
      addresses.push_back({address(fetched_) + fetched_at[p], stride, /*in_place=*/false});
    }
  }
  DeviceArrays sizes(nullptr);
  sizes.Add(addresses);
  DeviceArrays arrays(memory_.on_device("part_addresses", sizes.size()));
  const PartAddresses* parts = arrays.Add(addresses);
  RequireCuda(arrays.Send(stream));
  return parts;
}

std::vector<ReceivedGradients> ShardedLookup::SendGradients(const std::vector<Feature>& features,
                                                            cudaStream_t stream) {
  steps_.SetFeatures(features);
  // The gradients of a first call may still be read in the peer buffer: later calls do not use it.
  const bool again = std::exchange(gradients_have_come_, true);
  RowTransport& transport =
      in_peer_buffers_ == nullptr || again ? by_communicator_ : *in_peer_buffers_;
  const Transfer transfer = WithUnpacked(
      transport.OpenGradients({counts_.asked, counts_.served, layout_.converts()}), "gradients");
  const int64_t num_tables = layout_.num_tables();
  // This rank's own gradients are not sent: they have a buffer of their own.
  const std::vector<int64_t> all_at = layout_.PartOffsets(counts_.asked, /*skipped=*/-1);
  const int64_t own_at = all_at[layout_.rank * num_tables];
  char* own = static_cast<char*>(
      memory_.on_device("own_gradients", all_at[(layout_.rank + 1) * num_tables] - own_at));
  // In 16 bits, gradients are sent divided by the number of ranks, as gradients of the mean of the
  // ranks' losses. They then overflow no earlier than gradients that are sent through the host.
  const float factor = layout_.converts() ? 1.0f / layout_.num_ranks : 1;
  std::vector<char*> gradients;
  std::vector<GradientWire> wires;
  for (int64_t p = 0; p < layout_.num_parts(); ++p) {
    const int64_t n = p / num_tables, at = transfer.sent_at[p] - transfer.sent_at[n * num_tables];
    const bool is_own = n == layout_.rank;
    gradients.push_back(is_own ? own + all_at[p] - own_at : transfer.to[n] + layout_.WireBytes(at));
    wires.push_back(is_own ? GradientWire{layout_.type, 1}
                           : GradientWire{layout_.wire_type, factor});
  }
  steps_.ReduceGradients(gradients, wires, stream);
  communicator_->CountSent(layout_.WireBytesOfRanks(transfer.sent_at));
  transport.Send(transfer, stream);
  Unpack(transfer, layout_.all_tables(), 1 / factor, stream);

  std::vector<ReceivedGradients> received;
  for (int n = 0; n < layout_.num_ranks; ++n) {
    const auto first = counts_.served.begin() + n * num_tables;
    const bool is_own = n == layout_.rank;
    received.push_back({{first, first + num_tables},
                        is_own ? own : transfer.unpacked + transfer.received_at[n * num_tables],
                        is_own || transfer.is_unpacked ? nullptr : transfer.peer_buffer});
  }
  return received;
}

void ShardedLookup::Update(const group_embedding::Update& update, cudaStream_t stream) {
  const std::vector<Feature> features = steps_.features();
  steps_.UpdateShards(update, SendGradients(features, stream), requests_, stream);
}

void ShardedLookup::WeightGrad(const std::vector<Feature>& features, float* weight_grad,
                               cudaStream_t stream) {
  steps_.SetFeatures(features);
  std::vector<Table> tables;
  const Group by_address = steps_.ByAddress(&tables);
  void* scratch = memory_.on_device("weight_grad", WeightGradScratchBytesCuda(by_address));
  RequireCuda(WeightGradCuda(by_address, weight_grad, scratch, stream));
}

Transfer ShardedLookup::WithUnpacked(Transfer opened, const std::string& name) {
  opened.unpacked =
      opened.is_unpacked
          ? static_cast<char*>(memory_.on_device("received_" + name, opened.received_at.back()))
          : opened.arrived;
  return opened;
}

void ShardedLookup::Unpack(const Transfer& transfer, TableRange tables, float factor,
                           cudaStream_t stream) {
  if (!transfer.is_unpacked) return;
  for (int n = 0; n < layout_.num_ranks; ++n) {
    const int64_t begin = transfer.received_at[n * layout_.num_tables() + tables.begin],
                  end = transfer.received_at[n * layout_.num_tables() + tables.end];
    RequireCuda(ConvertPartsCuda(transfer.arrived + layout_.WireBytes(begin), layout_.wire_type,
                                 layout_.WireBytes(end - begin), factor, transfer.unpacked + begin,
                                 layout_.type, stream));
  }
}

std::optional<DataType> ShardedLookup::NarrowRows() const {
  const Group all = steps_.group();
  const bool clips = std::any_of(all.tables, all.tables + all.num_tables,
                                 [](const Table& table) { return table.max_norm > 0; });
  const int64_t asked = std::accumulate(counts_.asked.begin(), counts_.asked.end(), int64_t{0}),
                own = std::accumulate(
                    counts_.asked.begin() + layout_.rank * layout_.num_tables(),
                    counts_.asked.begin() + (layout_.rank + 1) * layout_.num_tables(), int64_t{0});
  const bool converts = layout_.converts() && all.dtype == DataType::kFloat32,
             reads_again = clips || all.batch.weights != nullptr,
             is_faster = all.batch.num_ids < kIdsOfNarrowRow * (asked - own);
  return converts && !reads_again && is_faster ? std::optional(layout_.wire_type) : std::nullopt;
}

void ShardedLookup::AllToAll(const void* send, const std::vector<int64_t>& send_bytes,
                             void* receive, const std::vector<int64_t>& receive_bytes,
                             cudaStream_t stream) {
  communicator_->CountSent(send_bytes);
  Require(communicator_->AllToAll(send, send_bytes.data(), receive, receive_bytes.data(), stream));
}

}  // namespace group_embedding
