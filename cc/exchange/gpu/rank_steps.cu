#include <algorithm>
#include <iterator>

#include "core/device_buffer.h"
#include "core/status.h"
#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/rank_steps.h"

namespace group_embedding {

RankSteps::RankSteps(const Group& group, const WireLayout* layout,
                     const NamedMemory::Allocate* allocate)
    : layout_(*layout),
      allocate_(*allocate),
      tables_(group.tables, group.tables + group.num_tables),
      features_(group.features, group.features + group.num_features),
      group_(group) {
  for (int64_t t = 0; t < layout_.num_tables(); ++t) {
    shards_.push_back(tables_[t]);
    shards_[t].num_rows =
        (tables_[t].num_rows - layout_.rank + layout_.num_ranks - 1) / layout_.num_ranks;
    const int64_t row_bytes = layout_.row_bytes(t);
    const int64_t alignment = reinterpret_cast<intptr_t>(tables_[t].rows) | row_bytes;
    const int64_t lowest_bit = (alignment | 16) & -(alignment | 16);
    if (row_bytes % 16 == 0 && lowest_bit < 16) {
      Require("table " + std::to_string(t) + ": expected rows aligned to 16 bytes");
    }
  }
}

Group RankSteps::group() const {
  Group group = group_;
  group.tables = tables_.data();
  group.features = features_.data();
  return group;
}

void RankSteps::Route(const RoutedKeys& keys, int64_t* local_rows, Fault* fault,
                      cudaStream_t stream) {
  const Group all = group();
  void* workspace = allocate_("route", RouteRowsWorkspaceBytesCuda(all, layout_.num_ranks));
  auto* id_addresses = static_cast<int64_t*>(allocate_("id_addresses", 8 * all.batch.num_ids));
  RequireCuda(RouteRowsCuda(all, layout_.num_ranks, workspace, keys, local_rows, id_addresses,
                            fault, &routed_, stream));
}

void RankSteps::SetTables(const std::vector<Table>& shards) {
  for (int64_t t = 0; t < layout_.num_tables(); ++t)
    tables_[t].rows = shards_[t].rows = shards[t].rows;
}

void RankSteps::SetShard(int64_t table, const Table& shard) {
  tables_[table].rows = shard.rows;
  shards_[table].rows = shard.rows;
  shards_[table].num_rows = shard.num_rows;
}

Group RankSteps::ByAddress(std::vector<Table>* tables) const {
  *tables = tables_;
  for (Table& table : *tables) {
    table.rows = nullptr;
    table.num_rows = kZeroRowAddress;
    table.first_host_row = -1;
  }
  Group by_address = group();
  by_address.tables = tables->data();
  by_address.batch.ids = routed_.id_addresses;
  by_address.invalid_ids = {/*prune_negative=*/true, /*read_zeros=*/true};
  return by_address;
}

void RankSteps::LookUpAddresses(TableRange range, std::optional<DataType> narrow,
                                cudaStream_t stream) {
  std::vector<Table> tables;
  Group by_address = ByAddress(&tables);
  void* scratch = allocate_("lookup", GroupLookupScratchBytes(by_address));
  std::vector<Feature> features;
  std::copy_if(features_.begin(), features_.end(), std::back_inserter(features),
               [=](const Feature& feature) { return range.Has(feature.table); });
  by_address.features = features.data();
  by_address.num_features = static_cast<int64_t>(features.size());
  RequireCuda(GroupLookupCuda(by_address, scratch, nullptr, stream, narrow));
}

void RankSteps::ReduceGradients(const std::vector<char*>& gradients,
                                const std::vector<GradientWire>& wires, cudaStream_t stream) {
  const GroupOfParts parts(group(), layout_.num_ranks);
  // The owners have the row numbers already: RequestCounts or SendRequests sent them.
  std::vector<TableGrad> grads;
  for (char* of_part : gradients) grads.push_back({/*indices=*/nullptr, of_part});
  SortedRows sorted = routed_.sorted;
  sorted.unique_addresses = routed_.unique_addresses;
  void* scratch = allocate_("reduce", ReduceRowsScratchBytesCuda(parts.get()));
  RequireCuda(ReduceRowsCuda(parts.get(), sorted, grads.data(), scratch, stream,
                             {wires.data(), layout_.num_ranks}));
}

void RankSteps::UpdateShards(const Update& update, const std::vector<ReceivedGradients>& received,
                             const int64_t* rows, cudaStream_t stream) {
  std::vector<Table> shards;
  for (int64_t t = 0; t < layout_.num_tables(); ++t) {
    shards.push_back(shards_[t]);
    shards.back().max_norm = 0;  // ReduceGradients has applied it
  }
  std::vector<Feature> features;
  int64_t num_rows = 0;
  for (const ReceivedGradients& part : received) {
    const char* gradients = part.gradients;
    for (int64_t t = 0; t < layout_.num_tables(); ++t) {
      features.push_back({num_rows, part.counts[t], const_cast<char*>(gradients), shards[t].dim,
                          static_cast<int32_t>(t), Combiner::kSum});
      gradients += PartBytes(part.counts[t], layout_.row_bytes(t));
      num_rows += part.counts[t];
    }
  }
  Group group = group_;
  group.tables = shards.data();
  group.features = features.data();
  group.num_features = static_cast<int64_t>(features.size());
  group.batch = {/*row_splits=*/nullptr, rows, /*weights=*/nullptr, num_rows, num_rows};
  group.invalid_ids = {};
  void* workspace = allocate_("update", GroupUpdateWorkspaceBytesCuda(group));
  RequireCuda(GroupUpdateCuda(group, update, workspace, stream));
}

}  // namespace group_embedding
