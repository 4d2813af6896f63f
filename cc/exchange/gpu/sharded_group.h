// What one rank does of the lookup and update of a group whose tables are spread over the ranks of
// a job, each with a GPU.
//
//   ids ── route ──> unique rows of each owner ──> [rows come] ──> lookup and combine ──> outputs
//   gradients of outputs ── reduce ──> one per unique row ──> [gradients go] ──> owners update
//
// How rows come and gradients go is ExchangedGroup's. Each unique row crosses once in either
// direction; an owner adds what the ranks send in their order, so that results are the same bits on
// every run.
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

class ShardedGroup {
 public:
  // Memory under a name: a later call with it gives the same memory, or more.
  using Allocate = std::function<void*(const std::string& name, int64_t bytes)>;
  struct Memory {
    Allocate on_device;
    Allocate on_host;  // page-locked
  };

  // What a rank sent: its unique rows of this rank's tables, and their gradients.
  struct Received {
    std::vector<int64_t> counts;                    // [num_tables]
    const char* gradients;                          // of the first table; PartBytes apart
    std::shared_ptr<const PeerMemory> peer_buffer;  // where they are; null: in the caller's memory
  };

  struct TableRange {
    int64_t begin, end;
    bool Has(int64_t table) const { return begin <= table && table < end; }
  };

  ShardedGroup(const ShardedGroup&) = delete;
  ShardedGroup& operator=(const ShardedGroup&) = delete;

 protected:
  // group.tables: this rank's shards, with the num_rows of the whole tables.
  ShardedGroup(const Group& group, int rank, int num_ranks, Memory memory);
  ~ShardedGroup() = default;

  void Route(const RoutedKeys& keys, int64_t* local_rows, Fault* fault, cudaStream_t stream);
  // After WritePlacesCuda: the outputs of the features of these tables. narrow: as GroupLookupCuda
  // has it.
  void LookUpPlaces(TableRange tables, std::optional<DataType> narrow, cudaStream_t stream);
  // The group whose ids are addresses; `tables` are its own.
  Group ByPlace(std::vector<Table>* tables) const;
  // From now on outputs, or their gradients, are there.
  void SetFeatures(const std::vector<Feature>& features) { features_ = features; }
  void SetTables(const std::vector<Table>& shards);  // their rows alone
  // From now on this rank has so many rows of a table, there.
  void SetShard(int64_t table, const Table& shard);
  // From now on the batch has these ids: numbers in the place of keys.
  void SetIds(const int64_t* ids) { group_.batch.ids = ids; }
  // gradients, wires: [num_parts] where those of each part go, and how. Of tables with a max_norm,
  // rows are read at their places.
  void ReduceGradients(const std::vector<char*>& gradients, const std::vector<GradientWire>& wires,
                       cudaStream_t stream);
  // rows: those of all ranks, rank after rank; received: [num_ranks].
  void UpdateShards(const group_embedding::Update& update, const std::vector<Received>& received,
                    const int64_t* rows, cudaStream_t stream);

  // [num_parts + 1] where parts of so many rows begin in a buffer; those of rank `skipped` take
  // nothing.
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
  std::vector<Table> tables_;  // with the num_rows of the whole ones
  std::vector<Table> shards_;
  std::vector<Feature> features_;
  Group group_;  // without its pointers to tables and features
};

}  // namespace group_embedding
