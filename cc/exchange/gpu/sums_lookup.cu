#include <algorithm>
#include <numeric>
#include <utility>

#include "core/device_buffer.h"
#include "exchange/gpu/convert_parts.h"
#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/sums_lookup.h"
#include "exchange/transport/peer_buffers.h"

namespace group_embedding {
namespace {

// A part of the wire is the sums of one feature.
WireLayout LayOutFeatures(const Group& group, const Communicator& communicator,
                          DataType wire_type) {
  std::vector<Table> of_features;
  for (int64_t f = 0; f < group.num_features; ++f) {
    of_features.push_back(group.tables[group.features[f].table]);
  }
  Group parts = group;
  parts.tables = of_features.data();
  parts.num_tables = group.num_features;
  return WireLayout(parts, communicator.rank(), communicator.num_ranks(), wire_type);
}

char* At(void* data, int64_t elements, DataType type) {
  return static_cast<char*>(data) + elements * SizeOf(type);
}

}  // namespace

SumsLookup::SumsLookup(const Group& group, std::vector<TableOwner> owners,
                       Communicator* communicator, std::string description, DataType comm_type,
                       NamedMemory memory)
    : communicator_(communicator),
      description_(std::move(description)),
      memory_(std::move(memory)),
      owners_(std::move(owners)),
      tables_(group.tables, group.tables + group.num_tables),
      features_(group.features, group.features + group.num_features),
      group_(group),
      layout_(LayOutFeatures(group, *communicator, comm_type)),
      by_communicator_(&layout_, communicator, &memory_.on_device) {}

Group SumsLookup::group() const {
  Group group = group_;
  group.tables = tables_.data();
  group.features = features_.data();
  return group;
}

std::vector<int64_t> SumsLookup::NumRows() const {
  std::vector<int64_t> num_rows;
  for (const TableOwner& owner : owners_) num_rows.push_back(owner.num_rows);
  return num_rows;
}

bool SumsLookup::AddsRanks(int64_t feature) const {
  return owners_[features_[feature].table].rank == TableOwner::kRows && layout_.num_ranks > 1;
}

const float* SumsLookup::RowFactors(int64_t feature) const {
  const bool has_factors = AddsRanks(feature) && features_[feature].combiner != Combiner::kSum;
  return has_factors ? row_factors_ + features_[feature].first_sample : nullptr;
}

bool SumsLookup::Serves(int rank, int64_t feature) const {
  return owners_[features_[feature].table].Is(rank);
}

int64_t SumsLookup::ColumnsTo(int rank, int64_t feature) const {
  const int32_t t = features_[feature].table;
  const bool is_by_columns = owners_[t].rank == TableOwner::kColumns;
  return is_by_columns ? int64_t{rank - layout_.rank} * tables_[t].dim : 0;
}

void SumsLookup::Lookup(Fault* fault, cudaStream_t stream) {
  const ExchangedCounts& counts = RequestCounts(fault, stream);
  Require(counts.disagreement);
  if (counts.fault_rank >= 0) {
    Require("rank " + std::to_string(counts.fault_rank) + ": " +
            Describe(counts.fault, std::to_string(counts.fault.feature),
                     std::to_string(features_[counts.fault.feature].table), -1));
  }
  const auto allocate = [&](const char* name, int64_t bytes) {
    return memory_.on_device(name, bytes);
  };
  Batch batch = {};
  batch.num_samples = gathered_->num_samples();
  batch.num_ids = gathered_->num_ids();
  batch.row_splits =
      static_cast<int64_t*>(allocate("gathered_splits", 8 * (batch.num_samples + 1)));
  batch.ids = static_cast<int64_t*>(allocate("gathered_ids", 8 * batch.num_ids));
  if (group_.batch.weights != nullptr) {
    batch.weights = static_cast<float*>(allocate("gathered_weights", 4 * batch.num_ids));
  }
  LookUp(batch, stream);
}

const ExchangedCounts& SumsLookup::RequestCounts(Fault* fault, cudaStream_t stream) {
  in_peer_buffers_.reset();
  gradients_held_.reset();
  gradients_have_come_ = false;
  const Group all = group();
  const int64_t num_features = all.num_features, words = 2 * num_features;
  const int num_ranks = layout_.num_ranks;
  const int64_t scratch_bytes = CheckBatchScratchBytes(num_features);
  auto* scratch = static_cast<char*>(memory_.on_device("check", 2 * scratch_bytes));
  RequireCuda(CheckBatchCuda(all, NumRows(), scratch, fault, stream));
  auto* sizes =
      static_cast<int64_t*>(memory_.on_device("feature_sizes", 8 * (num_ranks * words + 1)));
  RequireCuda(CountFeaturesCuda(all, num_ranks, scratch + scratch_bytes, sizes, stream));
  PeerBufferPool* pool = communicator_->peer_buffers();
  if (pool != nullptr) pool->Begin(stream);
  const int64_t peer_buffer = pool == nullptr ? PeerBufferPool::kNone : pool->FindFree();
  counts_ = ExchangeCounts({description_, words, sizes, /*local_rows=*/nullptr, fault, peer_buffer},
                           communicator_, memory_, stream);
  if (!counts_.disagreement.ok() || counts_.fault_rank >= 0) return counts_;

  // From the sizes of each rank's features to the samples of each part.
  sizes_.clear();
  std::vector<int64_t> requested;
  for (int n = 0; n < num_ranks; ++n) {
    const int64_t* of_rank = counts_.requested.data() + n * num_ranks * words;
    for (int64_t f = 0; f < num_features; ++f) {
      sizes_.push_back({of_rank[f], of_rank[num_features + f]});
    }
    for (int owner = 0; owner < num_ranks; ++owner) {
      for (int64_t f = 0; f < num_features; ++f) {
        requested.push_back(Serves(owner, f) ? of_rank[f] : 0);
      }
    }
  }
  counts_.requested = std::move(requested);
  counts_.asked.clear();
  counts_.served.clear();
  for (int n = 0; n < num_ranks; ++n) {
    const auto part = [&](int requester, int owner) {
      return counts_.requested.begin() + (requester * num_ranks + owner) * num_features;
    };
    const auto asked = part(layout_.rank, n), served = part(n, layout_.rank);
    counts_.asked.insert(counts_.asked.end(), asked, asked + num_features);
    counts_.served.insert(counts_.served.end(), served, served + num_features);
  }
  std::vector<ServedFeature> served;
  for (int64_t f = 0; f < num_features; ++f) {
    served.push_back({Serves(layout_.rank, f), AddsRanks(f) ? owners_[features_[f].table].num_rows
                                                            : ServedFeature::kAllHere});
  }
  gathered_ = std::make_unique<GatheredBatch>(sizes_, served);
  if (pool != nullptr) {
    in_peer_buffers_ =
        PeerBufferTransport::Make(&layout_, pool, counts_, &memory_.on_device, stream);
  }
  return counts_;
}

Combiner SumsLookup::CombinerOf(int64_t feature) const {
  return AddsRanks(feature) ? Combiner::kSum : features_[feature].combiner;
}

std::vector<Feature> SumsLookup::FeaturesOfRanks() const {
  std::vector<Feature> features;
  int64_t first_sample = 0;
  const int64_t num_features = static_cast<int64_t>(features_.size());
  for (size_t p = 0; p < gathered_->sizes().size(); ++p) {
    const Feature& feature = features_[p % num_features];
    const int64_t num_samples = gathered_->sizes()[p].num_samples;
    features.push_back({first_sample, num_samples, nullptr, tables_[feature.table].dim,
                        feature.table, CombinerOf(p % num_features)});
    first_sample += num_samples;
  }
  return features;
}

void SumsLookup::LookUp(const Batch& batch, cudaStream_t stream) {
  batch_ = batch;
  std::vector<Combiner> combiners;
  for (const Feature& feature : features_) combiners.push_back(feature.combiner);
  gathered_->Gather(group_.batch, combiners, communicator_, memory_, batch, stream);
  WriteRowFactors(stream);
  RowTransport& by = transport(/*is_again=*/false);
  const Transfer transfer =
      WithUnpacked(by.OpenRows({counts_.served, counts_.asked, /*is_unpacked=*/false}), "sums");
  const int64_t num_features = layout_.num_tables();
  const bool converts = layout_.converts();
  char* in_own_type =
      converts ? static_cast<char*>(memory_.on_device("own_sums", transfer.sent_at.back()))
               : nullptr;
  std::vector<Feature> features = FeaturesOfRanks();
  for (int64_t p = 0; p < layout_.num_parts(); ++p) {
    const int64_t n = p / num_features, f = p % num_features;
    if (n == layout_.rank) {
      features[p].output = features_[f].output;
      features[p].output_stride = features_[f].output_stride;
    } else if (converts) {
      features[p].output = in_own_type + transfer.sent_at[p];
    } else {
      features[p].output =
          transfer.to[n] + transfer.sent_at[p] - transfer.sent_at[n * num_features];
    }
  }
  Group all = group();
  all.features = features.data();
  all.num_features = static_cast<int64_t>(features.size());
  all.batch = batch;
  all.invalid_ids.read_zeros = true;  // RequestCounts has reported bad ids
  void* scratch = memory_.on_device("lookup", GroupLookupScratchBytes(all));
  RequireCuda(GroupLookupCuda(all, scratch, /*fault=*/nullptr, stream));
  for (int n = 0; converts && n < layout_.num_ranks; ++n) {
    const int64_t begin = transfer.sent_at[n * num_features],
                  end = transfer.sent_at[(n + 1) * num_features];
    RequireCuda(ConvertPartsCuda(in_own_type + begin, layout_.type, end - begin, /*factor=*/1,
                                 transfer.to[n], layout_.wire_type, stream));
  }
  by.Send(transfer, stream);
  communicator_->CountSent(layout_.WireBytesOfRanks(transfer.sent_at));
  WriteArrived(transfer, stream);
}

void SumsLookup::WriteRowFactors(cudaStream_t stream) {
  bool are_needed = false;
  for (size_t f = 0; f < features_.size(); ++f) {
    are_needed |= AddsRanks(f) && features_[f].combiner != Combiner::kSum;
  }
  if (!are_needed) return;
  const Group all = group();
  row_factors_ = static_cast<float*>(memory_.on_device(kKept, 4 * all.batch.num_samples));
  void* scratch = memory_.on_device("factors", CheckBatchScratchBytes(all.num_features));
  RequireCuda(CombinerFactorsCuda(all, NumRows(), scratch, row_factors_, stream));
}

void SumsLookup::WriteArrived(const Transfer& transfer, cudaStream_t stream) {
  const int num_ranks = layout_.num_ranks, last = num_ranks - 1 - (layout_.rank == num_ranks - 1);
  // Rank after rank: sums of several are added in this order.
  for (int n = 0; n < num_ranks; ++n) {
    if (n == layout_.rank) continue;
    std::vector<ColumnBlock> arrived;
    for (int64_t f = 0; f < layout_.num_tables(); ++f) {
      if (!Serves(n, f)) continue;
      const int64_t p = n * layout_.num_tables() + f;
      const Feature& feature = features_[f];
      const int32_t dim = tables_[feature.table].dim;
      arrived.push_back({transfer.arrived + layout_.WireBytes(transfer.received_at[p]), dim,
                         At(feature.output, ColumnsTo(n, f), layout_.type), feature.output_stride,
                         counts_.asked[p], dim, AddsRanks(f), n == last ? RowFactors(f) : nullptr});
    }
    Move(arrived, layout_.wire_type, layout_.type, /*factor=*/1,
         "arrived_from_" + std::to_string(n), stream);
  }
}

std::vector<char*> SumsLookup::SendGradients(const std::vector<Feature>& features, float factor,
                                             cudaStream_t stream) {
  const int64_t num_features = layout_.num_tables();
  const bool again = std::exchange(gradients_have_come_, true);
  RowTransport& by = transport(again);
  const Transfer transfer = WithUnpacked(
      by.OpenGradients({counts_.asked, counts_.served, layout_.converts()}), "gradients");
  // As in ShardedLookup, 16 bits carry gradients of the mean of the ranks' losses.
  const float wire_factor = layout_.converts() ? 1.0f / layout_.num_ranks : 1;
  const std::vector<int64_t> all_at = layout_.PartOffsets(counts_.asked, /*skipped=*/-1);
  const int64_t own_begin = all_at[layout_.rank * num_features];
  auto* own = static_cast<char*>(
      memory_.on_device("own_gradients", all_at[(layout_.rank + 1) * num_features] - own_begin));
  std::vector<ColumnBlock> to_others, to_own;
  std::vector<char*> gradients;
  for (int64_t p = 0; p < layout_.num_parts(); ++p) {
    const int n = static_cast<int>(p / num_features);
    const int64_t f = p % num_features;
    const bool is_own = n == layout_.rank;
    if (Serves(n, f)) {
      const Feature& feature = features[f];
      const int32_t dim = tables_[features_[f].table].dim;
      const void* from =
          feature.output == nullptr ? nullptr : At(feature.output, ColumnsTo(n, f), layout_.type);
      const int64_t at = transfer.sent_at[p] - transfer.sent_at[n * num_features];
      char* to = is_own ? own + all_at[p] - own_begin : transfer.to[n] + layout_.WireBytes(at);
      (is_own ? to_own : to_others)
          .push_back({from, feature.output_stride, to, dim, counts_.asked[p], dim,
                      /*adds=*/false, RowFactors(f)});
    }
    char* received =
        is_own ? own + all_at[p] - own_begin : transfer.unpacked + transfer.received_at[p];
    gradients.push_back(Serves(layout_.rank, f) ? received : nullptr);
  }
  Move(to_others, layout_.type, layout_.wire_type, factor * wire_factor, "sent_moves", stream);
  Move(to_own, layout_.type, layout_.type, factor, "own_moves", stream);
  by.Send(transfer, stream);
  communicator_->CountSent(layout_.WireBytesOfRanks(transfer.sent_at));
  Unpack(transfer, 1 / wire_factor, stream);
  gradients_held_ = transfer.is_unpacked ? nullptr : transfer.peer_buffer;
  return gradients;
}

void SumsLookup::Update(const group_embedding::Update& update, cudaStream_t stream) {
  const std::vector<char*> gradients = SendGradients(features_, /*factor=*/1, stream);
  std::vector<Feature> features = FeaturesOfRanks();
  for (size_t p = 0; p < features.size(); ++p) features[p].output = gradients[p];
  Group all = group();
  all.features = features.data();
  all.num_features = static_cast<int64_t>(features.size());
  all.batch = batch_;
  void* workspace = memory_.on_device("update", GroupUpdateWorkspaceBytesCuda(all));
  RequireCuda(GroupUpdateCuda(all, update, workspace, stream));
}

void SumsLookup::ReturnWeightGradients(const float* of_all, float* own, cudaStream_t stream) {
  const int64_t num_features = layout_.num_tables();
  const int num_ranks = layout_.num_ranks;
  std::vector<int64_t> sent(num_ranks, 0), received(num_ranks, 0);
  for (int64_t p = 0; p < layout_.num_parts(); ++p) {
    const int n = static_cast<int>(p / num_features);
    sent[n] += 4 * gathered_->sizes()[p].num_ids;
    const int64_t of_own = sizes_[layout_.rank * num_features + p % num_features].num_ids;
    if (Serves(n, p % num_features)) received[n] += 4 * of_own;
  }
  const int64_t bytes = std::accumulate(received.begin(), received.end(), int64_t{0});
  auto* arrived = static_cast<float*>(memory_.on_device("weight_gradients", bytes));
  communicator_->CountSent(sent);
  Require(communicator_->AllToAll(of_all, sent.data(), arrived, received.data(), stream));
  RequireCuda(cudaMemsetAsync(own, 0, 4 * group_.batch.num_ids, stream));
  for (int n = 0; n < num_ranks; ++n) {
    std::vector<ColumnBlock> added;
    int64_t first_id = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t num_ids = sizes_[layout_.rank * num_features + f].num_ids;
      if (Serves(n, f)) {
        added.push_back({arrived, 1, own + first_id, 1, num_ids, /*dim=*/1, /*adds=*/true});
        arrived += num_ids;
      }
      first_id += num_ids;
    }
    Move(added, DataType::kFloat32, DataType::kFloat32, /*factor=*/1,
         "weights_from_" + std::to_string(n), stream);
  }
  if (row_factors_ == nullptr) return;
  const Group all = group();
  std::vector<int64_t> num_rows = NumRows();
  for (int64_t f = 0; f < num_features; ++f) {
    if (!AddsRanks(f)) num_rows[features_[f].table] = kNotAdded;
  }
  void* scratch = memory_.on_device("factors", CheckBatchScratchBytes(num_features));
  RequireCuda(FinishWeightGradientsCuda(all, num_rows, row_factors_, scratch, own, stream));
}

RowTransport& SumsLookup::transport(bool is_again) {
  if (in_peer_buffers_ == nullptr || is_again) return by_communicator_;
  return *in_peer_buffers_;
}

Transfer SumsLookup::WithUnpacked(Transfer opened, const std::string& name) {
  opened.unpacked =
      opened.is_unpacked
          ? static_cast<char*>(memory_.on_device("unpacked_" + name, opened.received_at.back()))
          : opened.arrived;
  return opened;
}

void SumsLookup::Unpack(const Transfer& transfer, float factor, cudaStream_t stream) {
  if (!transfer.is_unpacked) return;
  RequireCuda(ConvertPartsCuda(transfer.arrived, layout_.wire_type,
                               layout_.WireBytes(transfer.received_at.back()), factor,
                               transfer.unpacked, layout_.type, stream));
}

void SumsLookup::Move(const std::vector<ColumnBlock>& blocks, DataType from, DataType to,
                      float factor, const std::string& name, cudaStream_t stream) {
  void* scratch =
      memory_.on_device(name, MoveColumnsScratchBytes(static_cast<int64_t>(blocks.size())));
  RequireCuda(MoveColumnsCuda(blocks, from, to, factor, scratch, stream));
}

}  // namespace group_embedding
