// RankSteps: the steps of a sharded lookup and update that one rank runs on its own GPU.
//
//   ids ── route ──> unique rows of each owner ──> [exchange] ──> lookup and combine ──> outputs
//   gradients of outputs ── reduce ──> one per unique row ──> [exchange] ──> owners update
//
// ShardedLookup (sharded_lookup.h) adds the exchanges between ranks. Each unique row is sent once
// in each direction. An owner adds gradients in the order of the sending ranks, so that results are
// the same bits on every run.
//
// Thread safety: one thread at a time. Errors are thrown (core/status.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exchange/gpu/named_memory.h"
#include "exchange/gpu/route_rows.h"
#include "exchange/gpu/wire_layout.h"
#include "exchange/transport/peer_memory.h"
#include "fused/group_update.h"

namespace group_embedding {

// The gradients that one rank sent, for its unique rows of this rank's tables.
struct ReceivedGradients {
  std::vector<int64_t> counts;                    // [num_tables] numbers of rows
  const char* gradients;                          // of the first table; the others follow,
                                                  // PartBytes apart
  std::shared_ptr<const PeerMemory> peer_buffer;  // holds them; null: the caller's memory does
};

class RankSteps {
 public:
  // group.tables: this rank's shards, but with the num_rows of the whole tables. layout, allocate:
  // borrowed, must outlive this object.
  RankSteps(const Group& group, const WireLayout* layout, const NamedMemory::Allocate* allocate);
  RankSteps(const RankSteps&) = delete;
  RankSteps& operator=(const RankSteps&) = delete;

  void Route(const RoutedKeys& keys, int64_t* local_rows, Fault* fault, cudaStream_t stream);
  const RoutedRows& routed() const { return routed_; }
  // After WriteAddressesCuda: enqueues the write of the outputs of the features of `tables`.
  // narrow: as for GroupLookupCuda.
  void LookUpAddresses(TableRange tables, std::optional<DataType> narrow, cudaStream_t stream);
  // Adds the outputs' gradients into one gradient per unique row. gradients, wires: [num_parts]
  // where and in which type each part's gradients are written. For tables with a max_norm, rows are
  // read at their addresses.
  void ReduceGradients(const std::vector<char*>& gradients, const std::vector<GradientWire>& wires,
                       cudaStream_t stream);
  // rows: local rows, ordered by sending rank; received: [num_ranks] their gradients.
  void UpdateShards(const Update& update, const std::vector<ReceivedGradients>& received,
                    const int64_t* rows, cudaStream_t stream);

  // Sets where outputs, or their gradients, are.
  void SetFeatures(const std::vector<Feature>& features) { features_ = features; }
  const std::vector<Feature>& features() const { return features_; }
  // Sets where the rows of this rank's shards are.
  void SetTables(const std::vector<Table>& shards);
  // Sets where the rows of one shard are, and how many it has.
  void SetShard(int64_t table, const Table& shard);
  const std::vector<Table>& shards() const { return shards_; }
  // Replaces the batch's ids, when keys have been numbered.
  void SetIds(const int64_t* ids) { group_.batch.ids = ids; }

  Group group() const;
  // The group with addresses of rows instead of ids. tables: written; the result borrows them.
  Group ByAddress(std::vector<Table>* tables) const;

 private:
  const WireLayout& layout_;
  const NamedMemory::Allocate& allocate_;
  RoutedRows routed_ = {};
  std::vector<Table> tables_;  // with the num_rows of the whole tables
  std::vector<Table> shards_;
  std::vector<Feature> features_;
  Group group_;  // its pointers to tables and features are not used
};

}  // namespace group_embedding
