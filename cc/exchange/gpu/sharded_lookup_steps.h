// The steps of a sharded lookup and update that one rank runs on its own GPU.
//
//   ids ── route ──> unique rows of each owner ──> [exchange] ──> lookup and combine ──> outputs
//   gradients of outputs ── reduce ──> one per unique row ──> [exchange] ──> owners update
//
// ShardedLookup (sharded_lookup.h) adds the exchanges between ranks. Each unique row is sent once
// in each direction. An owner adds gradients in the order of the sending ranks, so that results are
// the same bits on every run.
//
// Thread safety: one thread at a time. Errors are std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exchange/gpu/route_rows.h"
#include "exchange/transport/peer_memory.h"
#include "fused/group_update.h"

namespace group_embedding {

class ShardedLookupSteps {
 public:
  // Returns memory that is kept under `name`: a later call with the same name returns the same
  // memory, or larger memory.
  using Allocate = std::function<void*(const std::string& name, int64_t bytes)>;
  struct Memory {
    Allocate on_device;
    Allocate on_host;  // page-locked
  };

  // The gradients that one rank sent, for its unique rows of this rank's tables.
  struct Received {
    std::vector<int64_t> counts;                    // [num_tables] numbers of rows
    const char* gradients;                          // of the first table; the others follow,
                                                    // PartBytes apart
    std::shared_ptr<const PeerMemory> peer_buffer;  // holds them; null: the caller's memory does
  };

  struct TableRange {
    int64_t begin, end;
    bool Has(int64_t table) const { return begin <= table && table < end; }
  };

  ShardedLookupSteps(const ShardedLookupSteps&) = delete;
  ShardedLookupSteps& operator=(const ShardedLookupSteps&) = delete;

 protected:
  // group.tables: this rank's shards, but with the num_rows of the whole tables.
  ShardedLookupSteps(const Group& group, int rank, int num_ranks, Memory memory);
  ~ShardedLookupSteps() = default;

  void Route(const RoutedKeys& keys, int64_t* local_rows, Fault* fault, cudaStream_t stream);
  // After WriteAddressesCuda: enqueues the write of the outputs of the features of `tables`.
  // narrow: as for GroupLookupCuda.
  void LookUpAddresses(TableRange tables, std::optional<DataType> narrow, cudaStream_t stream);
  // The group with addresses of rows instead of ids. tables: written; the result borrows them.
  Group ByAddress(std::vector<Table>* tables) const;
  // Sets where outputs, or their gradients, are.
  void SetFeatures(const std::vector<Feature>& features) { features_ = features; }
  // Sets where the rows of this rank's shards are.
  void SetTables(const std::vector<Table>& shards);
  // Sets where the rows of one shard are, and how many it has.
  void SetShard(int64_t table, const Table& shard);
  // Replaces the batch's ids, when keys have been numbered.
  void SetIds(const int64_t* ids) { group_.batch.ids = ids; }
  // Adds the outputs' gradients into one gradient per unique row. gradients, wires: [num_parts]
  // where and in which type each part's gradients are written. For tables with a max_norm, rows are
  // read at their addresses.
  void ReduceGradients(const std::vector<char*>& gradients, const std::vector<GradientWire>& wires,
                       cudaStream_t stream);
  // rows: local rows, ordered by sending rank; received: [num_ranks] their gradients.
  void UpdateShards(const group_embedding::Update& update, const std::vector<Received>& received,
                    const int64_t* rows, cudaStream_t stream);

  // [num_parts + 1] where each part begins in a buffer. counts: [num_parts] numbers of rows. Parts
  // of rank `skipped` have no bytes.
  std::vector<int64_t> PartOffsets(const std::vector<int64_t>& counts, int skipped) const;

  const Table& shard(int64_t table) const { return shards_[table]; }
  int64_t row_bytes(int64_t table) const;
  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  TableRange all_tables() const { return {0, num_tables()}; }
  int64_t num_parts() const { return num_ranks_ * num_tables(); }
  Group group() const;

  const int rank_, num_ranks_;
  const Allocate allocate_, allocate_on_host_;
  RoutedRows routed_ = {};

 private:
  std::vector<Table> tables_;  // with the num_rows of the whole tables
  std::vector<Table> shards_;
  std::vector<Feature> features_;
  Group group_;  // its pointers to tables and features are not used
};

}  // namespace group_embedding
