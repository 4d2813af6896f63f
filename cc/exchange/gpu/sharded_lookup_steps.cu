#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "core/device_buffer.h"
#include "exchange/gpu/part_bytes.h"
#include "exchange/gpu/sharded_lookup_steps.h"

namespace group_embedding {

ShardedLookupSteps::ShardedLookupSteps(const Group& group, int rank, int num_ranks, Memory memory)
    : rank_(rank),
      num_ranks_(num_ranks),
      allocate_(std::move(memory.on_device)),
      allocate_on_host_(std::move(memory.on_host)),
      tables_(group.tables, group.tables + group.num_tables),
      features_(group.features, group.features + group.num_features),
      group_(group) {
  for (int64_t t = 0; t < num_tables(); ++t) {
    shards_.push_back(tables_[t]);
    shards_[t].num_rows = (tables_[t].num_rows - rank_ + num_ranks_ - 1) / num_ranks_;
    const int64_t alignment = reinterpret_cast<intptr_t>(tables_[t].rows) | row_bytes(t);
    const int64_t lowest_bit = (alignment | 16) & -(alignment | 16);
    if (row_bytes(t) % 16 == 0 && lowest_bit < 16) {
      throw std::runtime_error("table " + std::to_string(t) +
                               ": expected rows aligned to 16 bytes");
    }
  }
}

int64_t ShardedLookupSteps::row_bytes(int64_t table) const {
  return tables_[table].dim * SizeOf(group_.dtype);
}

Group ShardedLookupSteps::group() const {
  Group group = group_;
  group.tables = tables_.data();
  group.features = features_.data();
  return group;
}

std::vector<int64_t> ShardedLookupSteps::PartOffsets(const std::vector<int64_t>& counts,
                                                     int skipped) const {
  std::vector<int64_t> offsets = {0};
  for (size_t p = 0; p < counts.size(); ++p) {
    const bool takes_none = static_cast<int64_t>(p) / num_tables() == skipped;
    const int64_t bytes = takes_none ? 0 : PartBytes(counts[p], row_bytes(p % num_tables()));
    offsets.push_back(offsets.back() + bytes);
  }
  return offsets;
}

void ShardedLookupSteps::Route(const RoutedKeys& keys, int64_t* local_rows, Fault* fault,
                               cudaStream_t stream) {
  const Group all = group();
  void* workspace = allocate_("route", RouteRowsWorkspaceBytesCuda(all, num_ranks_));
  auto* id_addresses = static_cast<int64_t*>(allocate_("id_addresses", 8 * all.batch.num_ids));
  RequireCuda(RouteRowsCuda(all, num_ranks_, workspace, keys, local_rows, id_addresses, fault,
                            &routed_, stream));
}

void ShardedLookupSteps::SetTables(const std::vector<Table>& shards) {
  for (int64_t t = 0; t < num_tables(); ++t) tables_[t].rows = shards_[t].rows = shards[t].rows;
}

void ShardedLookupSteps::SetShard(int64_t table, const Table& shard) {
  tables_[table].rows = shard.rows;
  shards_[table].rows = shard.rows;
  shards_[table].num_rows = shard.num_rows;
}

Group ShardedLookupSteps::ByAddress(std::vector<Table>* tables) const {
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

void ShardedLookupSteps::LookUpAddresses(TableRange range, std::optional<DataType> narrow,
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

void ShardedLookupSteps::ReduceGradients(const std::vector<char*>& gradients,
                                         const std::vector<GradientWire>& wires,
                                         cudaStream_t stream) {
  const GroupOfParts parts(group(), num_ranks_);
  // The owners have the row numbers already: RequestCounts or SendRequests sent them.
  std::vector<TableGrad> grads;
  for (char* of_part : gradients) grads.push_back({/*indices=*/nullptr, of_part});
  SortedRows sorted = routed_.sorted;
  sorted.unique_addresses = routed_.unique_addresses;
  void* scratch = allocate_("reduce", ReduceRowsScratchBytesCuda(parts.get()));
  RequireCuda(ReduceRowsCuda(parts.get(), sorted, grads.data(), scratch, stream,
                             {wires.data(), num_ranks_}));
}

void ShardedLookupSteps::UpdateShards(const group_embedding::Update& update,
                                      const std::vector<Received>& received, const int64_t* rows,
                                      cudaStream_t stream) {
  std::vector<Table> shards;
  for (int64_t t = 0; t < num_tables(); ++t) {
    shards.push_back(shard(t));
    shards.back().max_norm = 0;  // ReduceGradients has applied it
  }
  std::vector<Feature> features;
  int64_t num_rows = 0;
  for (const Received& part : received) {
    const char* gradients = part.gradients;
    for (int64_t t = 0; t < num_tables(); ++t) {
      features.push_back({num_rows, part.counts[t], const_cast<char*>(gradients), shards[t].dim,
                          static_cast<int32_t>(t), Combiner::kSum});
      gradients += PartBytes(part.counts[t], row_bytes(t));
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
