#include <algorithm>
#include <numeric>
#include <utility>

#include "core/descriptors.cuh"
#include "core/device_buffer.h"
#include "core/side_stream.h"
#include "exchange/gpu/convert_parts.h"
#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/peer_layout.h"
#include "exchange/gpu/sharded_lookup.h"

namespace group_embedding {
namespace {

// 16 MB take 45 us over NVLink, longer than the launches that one more chunk costs.
constexpr int64_t kChunkBytes = int64_t{16} << 20, kMaxChunks = 4;
// NarrowRows looks rows up without conversion below so many ids per received row. On an H200, at
// dim 128, converting a row takes 0.44 ns, and an id whose row may have either type takes 0.05 ns
// longer than others: up to 8 ids per row gain.
constexpr int64_t kIdsOfNarrowRow = 6;
static_assert(kMaxChunks < PeerSignals::kNumChannels);

}  // namespace

ShardedLookup::ShardedLookup(const Group& group, Communicator* communicator,
                             std::string description, DataType comm_type, Memory memory,
                             std::vector<KeyedFeature> keyed)
    : ShardedLookupSteps(group, communicator->rank(), communicator->num_ranks(), std::move(memory)),
      communicator_(communicator),
      description_(std::move(description)),
      comm_type_(comm_type),
      keyed_(std::move(keyed)) {}

void ShardedLookup::Lookup(Fault* fault, cudaStream_t stream) {
  Require(RequestCounts(fault, stream).disagreement);
  LookUpRows(static_cast<int64_t*>(allocate_("requests", 8 * num_requests())), /*locate=*/{},
             stream);
}

const ExchangedCounts& ShardedLookup::RequestCounts(Fault* fault, cudaStream_t stream) {
  local_rows_ = static_cast<int64_t*>(allocate_("local_rows", 8 * group().batch.num_ids));
  Route(NumberKeys(stream), local_rows_, fault, stream);
  sent_bytes_ = 0;
  peer_buffer_.reset();
  rows_in_buffer_.clear();
  gradients_in_buffer_.clear();
  gradients_have_come_ = false;
  PeerBufferPool* peer_buffers = communicator_->peer_buffers();
  if (peer_buffers != nullptr) peer_buffers->Begin(stream);
  const int64_t peer_buffer =
      peer_buffers == nullptr ? PeerBufferPool::kNone : peer_buffers->FindFree();
  counts_ = ExchangeCounts(
      {description_, num_tables(), routed_.sorted.num_unique, local_rows_, fault, peer_buffer},
      communicator_, {allocate_, allocate_on_host_}, stream);
  if (counts_.disagreement.empty() && counts_.fault_rank < 0) TakePeerBuffer(stream);
  return counts_;
}

void ShardedLookup::TakePeerBuffer(cudaStream_t stream) {
  PeerBufferPool* peer_buffers = communicator_->peer_buffers();
  if (peer_buffers == nullptr) return;
  std::vector<int64_t> bytes_of_rows;
  for (int64_t t = 0; t < num_tables(); ++t) bytes_of_rows.push_back(row_bytes(t));
  const double wire_ratio = static_cast<double>(SizeOf(comm_type_)) / SizeOf(group().dtype);
  const PeerLayout layout(counts_.requested, bytes_of_rows, num_ranks_, wire_ratio);
  // All ranks know each other's needs and buffers, so they all decide the same.
  const auto is_too_small = [&](int n) {
    return peer_buffers->Bytes(counts_.peer_buffers[n]) < layout.bytes[n];
  };
  std::vector<int> without;
  int64_t most = 0;
  for (int n = 0; n < num_ranks_; ++n) {
    if (is_too_small(n)) without.push_back(n), most = std::max(most, layout.bytes[n]);
  }
  if (!without.empty()) {
    // Half as much again as this batch needs, since batches differ.
    const int64_t bytes = most + most / 2;
    const int64_t added =
        peer_buffers->MayHave(bytes) ? peer_buffers->Add(bytes, stream) : PeerBufferPool::kNone;
    if (added == PeerBufferPool::kNone) return;
    for (const int n : without) counts_.peer_buffers[n] = added;
  }
  peer_buffer_ = peer_buffers->Take(counts_.peer_buffers[rank_]);
  own_gradients_at_ = layout.gradients_at[rank_ * num_ranks_];
  for (int n = 0; n < num_ranks_; ++n) {
    rows_in_buffer_.push_back(layout.rows_at[n * num_ranks_ + rank_]);
    gradients_in_buffer_.push_back(layout.gradients_at[n * num_ranks_ + rank_]);
  }
}

RoutedKeys ShardedLookup::NumberKeys(cudaStream_t stream) {
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

int64_t ShardedLookup::num_requests() const {
  return std::accumulate(counts_.served.begin(), counts_.served.end(), int64_t{0});
}

void ShardedLookup::SendRequests(int64_t* requests, const Locate& locate, cudaStream_t stream) {
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

void ShardedLookup::LocateRequests(const Locate& locate, cudaStream_t stream) {
  const std::vector<int64_t> asked = WordsOfRanks(counts_.asked),
                             served = WordsOfRanks(counts_.served);
  auto* times = static_cast<int64_t*>(allocate_("requested_times", 8 * num_requests()));
  AllToAll(times_, asked, times, served, stream);
  const std::vector<Table> shards = locate(requests_, times);
  for (const KeyedFeature& feature : keyed_) SetShard(feature.table, shards[feature.table]);
  // This rank's own rows are read in its tables: copy their row numbers over their keys.
  const auto before = [this](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.begin() + rank_, int64_t{0}) / 8;
  };
  RequireCuda(cudaMemcpyAsync(local_rows_ + before(asked), requests_ + before(served), asked[rank_],
                              cudaMemcpyDeviceToDevice, stream));
}

void ShardedLookup::ExchangeRows(int64_t* requests, const Locate& locate, cudaStream_t stream,
                                 bool looks_up) {
  SendRequests(requests, locate, stream);
  const Transfer transfer = RowsTransfer();
  fetched_ = transfer.unpacked;
  const PartAddresses* addresses = ListPartAddresses(stream);
  transfer.in_peer_buffers ? ExchangeThroughPeerBuffers(transfer, addresses, looks_up, stream)
                           : ExchangeByCommunicator(transfer, addresses, looks_up, stream);
}

void ShardedLookup::ExchangeByCommunicator(const Transfer& transfer, const PartAddresses* addresses,
                                           bool looks_up, cudaStream_t stream) {
  void* scratch = allocate_("serve", ServeRowsScratchBytes(num_parts()));
  SideStream beside;
  RequireCuda(beside.Begin(stream));
  RequireCuda(WriteAddressesCuda(routed_, addresses, beside.stream()));
  RequireCuda(ServeRowsCuda(PartsToServe(transfer, all_tables()), requests_, group().dtype,
                            comm_type_, scratch, stream));
  Send(transfer, stream);
  Unpack(transfer, all_tables(), /*factor=*/1, stream);
  RequireCuda(beside.End());
  if (looks_up) LookUpAddresses(all_tables(), NarrowRows(), stream);
}

void ShardedLookup::ExchangeThroughPeerBuffers(const Transfer& transfer,
                                               const PartAddresses* addresses, bool looks_up,
                                               cudaStream_t stream) {
  const std::vector<TableRange> chunks = CutIntoChunks();
  std::vector<ServedPart> parts;
  std::vector<int64_t> first_parts = {0};
  for (const TableRange& tables : chunks) {
    for (const ServedPart& part : PartsToServe(transfer, tables)) parts.push_back(part);
    first_parts.push_back(static_cast<int64_t>(parts.size()));
  }
  void* scratch = allocate_("serve", ServeRowsScratchBytes(num_parts()));
  PeerBufferPool* peer_buffers = communicator_->peer_buffers();
  const PeerSignals signals = peer_buffers->NextSignals();
  SideStream beside;
  RequireCuda(beside.Begin(stream));
  RequireCuda(ServeChunksCuda(parts, first_parts, signals, requests_, group().dtype, comm_type_,
                              scratch, beside.stream()));
  RequireCuda(WriteAddressesCuda(routed_, addresses, stream));
  CountSent(WireBytesOfRanks(transfer.sent_at));
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    peer_buffers->EnqueueWait(signals, 1 + static_cast<int>(chunk), stream);
    Unpack(transfer, chunks[chunk], /*factor=*/1, stream);
    if (looks_up) LookUpAddresses(chunks[chunk], NarrowRows(), stream);
  }
  RequireCuda(beside.End());
}

std::vector<ShardedLookup::TableRange> ShardedLookup::CutIntoChunks() const {
  std::vector<int64_t> bytes(num_tables(), 0);  // sent between all ranks, per table
  for (size_t p = 0; p < counts_.requested.size(); ++p) {
    const int64_t pair = p / num_tables(), t = p % num_tables();
    if (pair / num_ranks_ != pair % num_ranks_) bytes[t] += counts_.requested[p] * row_bytes(t);
  }
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t num_chunks =
      std::clamp<int64_t>(WireBytes(all) / num_ranks_ / kChunkBytes, 1, kMaxChunks);
  std::vector<TableRange> chunks;
  int64_t cut_bytes = 0;
  for (int64_t t = 0, begin = 0; t < num_tables(); ++t) {
    cut_bytes += bytes[t];
    const int64_t chunk = static_cast<int64_t>(chunks.size()) + 1;
    if (t + 1 < num_tables() && (chunk == num_chunks || cut_bytes * num_chunks < all * chunk)) {
      continue;
    }
    chunks.push_back({begin, t + 1});
    begin = t + 1;
  }
  return chunks;
}

void ShardedLookup::UseRows(const std::vector<Table>& shards, cudaStream_t stream) {
  SetTables(shards);
  RequireCuda(WriteAddressesCuda(routed_, ListPartAddresses(stream), stream));
}

const PartAddresses* ShardedLookup::ListPartAddresses(cudaStream_t stream) {
  const std::vector<int64_t> fetched_at = PartOffsets(counts_.asked, rank_);
  const auto address = [](const void* rows) { return reinterpret_cast<int64_t>(rows); };
  const bool has_narrow = NarrowRows().has_value();
  std::vector<PartAddresses> addresses;
  for (int64_t p = 0; p < num_parts(); ++p) {
    const int64_t t = p % num_tables(), stride = row_bytes(t);
    if (p / num_tables() == rank_) {
      addresses.push_back({address(shard(t).rows), stride, /*in_place=*/true});
    } else if (has_narrow) {
      const int64_t at = address(fetched_) + WireBytes(fetched_at[p]);
      addresses.push_back({at + kNarrowRowBit, WireBytes(stride), /*in_place=*/false});
    } else {
      addresses.push_back({address(fetched_) + fetched_at[p], stride, /*in_place=*/false});
    }
  }
  DeviceArrays sizes(nullptr);
  sizes.Add(addresses);
  DeviceArrays arrays(allocate_("part_addresses", sizes.size()));
  const PartAddresses* parts = arrays.Add(addresses);
  RequireCuda(arrays.Send(stream));
  return parts;
}

std::vector<ServedPart> ShardedLookup::PartsToServe(const Transfer& transfer,
                                                    TableRange tables) const {
  std::vector<ServedPart> parts;
  std::vector<int64_t> first = {0};
  for (const int64_t count : counts_.served) first.push_back(first.back() + count);
  // Starts with the next rank, so that ranks do not all write to the same one at a time.
  for (int i = 1; i < num_ranks_; ++i) {
    const int n = (rank_ + i) % num_ranks_;
    for (int64_t t = tables.begin; t < tables.end; ++t) {
      const int64_t p = n * num_tables() + t;
      const int64_t at = transfer.sent_at[p] - transfer.sent_at[n * num_tables()];
      parts.push_back({shard(t), first[p], counts_.served[p], transfer.to[n] + WireBytes(at)});
    }
  }
  return parts;
}

std::vector<ShardedLookupSteps::Received> ShardedLookup::SendGradients(
    const std::vector<Feature>& features, cudaStream_t stream) {
  SetFeatures(features);
  const Transfer transfer = GradientsTransfer();
  // This rank's own gradients are not sent: they have a buffer of their own.
  const std::vector<int64_t> all_at = PartOffsets(counts_.asked, /*skipped=*/-1);
  const int64_t own_at = all_at[rank_ * num_tables()];
  char* own =
      static_cast<char*>(allocate_("own_gradients", all_at[(rank_ + 1) * num_tables()] - own_at));
  // In 16 bits, gradients are sent divided by the number of ranks, as gradients of the mean of the
  // ranks' losses. They then overflow no earlier than gradients that are sent through the host.
  const float factor = Converts() ? 1.0f / num_ranks_ : 1;
  std::vector<char*> gradients;
  std::vector<GradientWire> wires;
  for (int64_t p = 0; p < num_parts(); ++p) {
    const int64_t n = p / num_tables(),
                  at = transfer.sent_at[p] - transfer.sent_at[n * num_tables()];
    const bool is_own = n == rank_;
    gradients.push_back(is_own ? own + all_at[p] - own_at : transfer.to[n] + WireBytes(at));
    wires.push_back(is_own ? GradientWire{group().dtype, 1} : GradientWire{comm_type_, factor});
  }
  ReduceGradients(gradients, wires, stream);
  Send(transfer, stream);
  Unpack(transfer, all_tables(), 1 / factor, stream);

  std::vector<Received> parts;
  for (int n = 0; n < num_ranks_; ++n) {
    const auto first = counts_.served.begin() + n * num_tables();
    Received part = {{first, first + num_tables()},
                     n == rank_ ? own : transfer.unpacked + transfer.received_at[n * num_tables()]};
    if (n != rank_ && transfer.in_peer_buffers && !Converts()) part.peer_buffer = peer_buffer_;
    parts.push_back(std::move(part));
  }
  return parts;
}

void ShardedLookup::Update(const group_embedding::Update& update, cudaStream_t stream) {
  const Group all = group();
  const std::vector<Feature> features(all.features, all.features + all.num_features);
  UpdateShards(update, SendGradients(features, stream), requests_, stream);
}

void ShardedLookup::WeightGrad(const std::vector<Feature>& features, float* weight_grad,
                               cudaStream_t stream) {
  SetFeatures(features);
  std::vector<Table> tables;
  const Group by_address = ByAddress(&tables);
  void* scratch = allocate_("weight_grad", WeightGradScratchBytesCuda(by_address));
  RequireCuda(WeightGradCuda(by_address, weight_grad, scratch, stream));
}

ShardedLookup::Transfer ShardedLookup::RowsTransfer() {
  char* in_peer_buffer = peer_buffer_ == nullptr ? nullptr : peer_buffer_->data(rank_);
  const bool is_unpacked = Converts() && !NarrowRows().has_value();
  return OpenTransfer("rows", counts_.served, counts_.asked, rows_in_buffer_, in_peer_buffer,
                      is_unpacked);
}

ShardedLookup::Transfer ShardedLookup::GradientsTransfer() {
  // The gradients of a first call may still be read in the peer buffer: later calls do not use it.
  const bool again = std::exchange(gradients_have_come_, true);
  char* in_peer_buffer =
      peer_buffer_ == nullptr || again ? nullptr : peer_buffer_->data(rank_) + own_gradients_at_;
  return OpenTransfer("gradients", counts_.asked, counts_.served, gradients_in_buffer_,
                      in_peer_buffer, Converts());
}

ShardedLookup::Transfer ShardedLookup::OpenTransfer(const std::string& name,
                                                    const std::vector<int64_t>& sent,
                                                    const std::vector<int64_t>& received,
                                                    const std::vector<int64_t>& peer_buffer_at,
                                                    char* in_peer_buffer, bool is_unpacked) {
  Transfer transfer = {PartOffsets(sent, rank_), PartOffsets(received, rank_)};
  transfer.in_peer_buffers = in_peer_buffer != nullptr;
  transfer.is_unpacked = is_unpacked;
  transfer.arrived = in_peer_buffer;
  char* leaving = nullptr;
  if (!transfer.in_peer_buffers) {
    const auto allocate = [&](const std::string& prefix, const std::vector<int64_t>& at) {
      return static_cast<char*>(allocate_(prefix + name, WireBytes(at.back())));
    };
    leaving = allocate("sent_", transfer.sent_at);
    transfer.arrived = allocate(is_unpacked ? "arrived_" : "received_", transfer.received_at);
  }
  transfer.unpacked =
      is_unpacked ? static_cast<char*>(allocate_("received_" + name, transfer.received_at.back()))
                  : transfer.arrived;
  for (int n = 0; n < num_ranks_; ++n) {
    const int64_t at = transfer.sent_at[n * num_tables()];
    transfer.to.push_back(transfer.in_peer_buffers && n != rank_
                              ? communicator_->peer_buffers()->In(counts_.peer_buffers[n], n) +
                                    peer_buffer_at[n]
                              : leaving + WireBytes(at));
  }
  return transfer;
}

void ShardedLookup::Send(const Transfer& transfer, cudaStream_t stream) {
  const std::vector<int64_t> sent = WireBytesOfRanks(transfer.sent_at),
                             received = WireBytesOfRanks(transfer.received_at);
  if (!transfer.in_peer_buffers)
    return AllToAll(transfer.to[0], sent, transfer.arrived, received, stream);
  CountSent(sent);
  communicator_->peer_buffers()->EnqueueBarrier(stream);
}

void ShardedLookup::Unpack(const Transfer& transfer, TableRange tables, float factor,
                           cudaStream_t stream) {
  if (!transfer.is_unpacked) return;
  for (int n = 0; n < num_ranks_; ++n) {
    const int64_t begin = transfer.received_at[n * num_tables() + tables.begin],
                  end = transfer.received_at[n * num_tables() + tables.end];
    RequireCuda(ConvertPartsCuda(transfer.arrived + WireBytes(begin), comm_type_,
                                 WireBytes(end - begin), factor, transfer.unpacked + begin,
                                 group().dtype, stream));
  }
}

std::optional<DataType> ShardedLookup::NarrowRows() const {
  const Group all = group();
  const bool clips = std::any_of(all.tables, all.tables + all.num_tables,
                                 [](const Table& table) { return table.max_norm > 0; });
  const int64_t asked = std::accumulate(counts_.asked.begin(), counts_.asked.end(), int64_t{0}),
                own =
                    std::accumulate(counts_.asked.begin() + rank_ * num_tables(),
                                    counts_.asked.begin() + (rank_ + 1) * num_tables(), int64_t{0});
  const bool converts = Converts() && all.dtype == DataType::kFloat32,
             reads_again = clips || all.batch.weights != nullptr,
             is_faster = all.batch.num_ids < kIdsOfNarrowRow * (asked - own);
  return converts && !reads_again && is_faster ? std::optional(comm_type_) : std::nullopt;
}

int64_t ShardedLookup::WireBytes(int64_t bytes) const {
  return bytes / SizeOf(group().dtype) * SizeOf(comm_type_);
}

void ShardedLookup::CountSent(const std::vector<int64_t>& send_bytes) {
  for (int n = 0; n < num_ranks_; ++n) sent_bytes_ += n == rank_ ? 0 : send_bytes[n];
}

void ShardedLookup::AllToAll(const void* send, const std::vector<int64_t>& send_bytes,
                             void* receive, const std::vector<int64_t>& receive_bytes,
                             cudaStream_t stream) {
  CountSent(send_bytes);
  Require(communicator_->AllToAll(send, send_bytes.data(), receive, receive_bytes.data(), stream));
}

std::vector<int64_t> ShardedLookup::WireBytesOfRanks(const std::vector<int64_t>& offsets) const {
  std::vector<int64_t> bytes;
  for (int n = 0; n < num_ranks_; ++n) {
    bytes.push_back(WireBytes(offsets[(n + 1) * num_tables()] - offsets[n * num_tables()]));
  }
  return bytes;
}

std::vector<int64_t> ShardedLookup::WordsOfRanks(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> bytes(num_ranks_, 0);
  for (size_t p = 0; p < counts.size(); ++p) bytes[p / num_tables()] += 8 * counts[p];
  return bytes;
}

}  // namespace group_embedding
