// The lookup and update of tables whose owners combine rows, over ranks with a GPU each. A table is
// whole on one rank, or each rank has as many columns of all its rows, or some of its rows; then
// the ranks' sums of a sample are added.
//
//   ids ══ gather ══> ids of all ranks ── lookup and combine ──> sums ══ exchange ══> outputs
//   gradients of outputs ══ exchange ══> gradients of all ranks' sums ── update ──> own tables
//
// One sum a sample travels where ShardedLookup sends each unique row: fewer bytes where samples
// have many ids that others have not. An owner runs the fused lookup and update of one process on
// the batches of all ranks, rank after rank: its rows are the same bits as in one process with the
// joined batch, but for columns under a rule that needs whole rows.
//
// Thread safety and order: as of ShardedLookup.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange/gpu/communicator_transport.h"
#include "exchange/gpu/exchange_counts.h"
#include "exchange/gpu/gather_batch.h"
#include "exchange/gpu/move_columns.h"
#include "exchange/gpu/named_memory.h"
#include "exchange/gpu/peer_buffer_transport.h"
#include "exchange/transport/communicator.h"
#include "fused/group_update.h"

namespace group_embedding {

// Where a table is.
struct TableOwner {
  static constexpr int kColumns = -1;  // each rank has as many columns of all rows
  static constexpr int kRows = -2;     // row r is local row r / num_ranks of rank r % num_ranks

  int rank;          // that has the whole table, or one of these
  int64_t num_rows;  // of the whole table

  bool Is(int other) const { return rank < 0 || rank == other; }
};

class SumsLookup {
 public:
  // group.tables: this rank's part of each table; their dim is that of each owner's part. Outputs:
  // this rank's columns of a table by columns, beside which other ranks' are; else whole. Tables
  // have no max_norm if they are by columns. owners: [num_tables]. communicator: must outlive this
  // object. description, comm_type: as of ShardedLookup, of sums.
  SumsLookup(const Group& group, std::vector<TableOwner> owners, Communicator* communicator,
             std::string description, DataType comm_type, NamedMemory memory);
  SumsLookup(const SumsLookup&) = delete;
  SumsLookup& operator=(const SumsLookup&) = delete;

  // The memory that later steps need of the lookup; other memory is free once they are enqueued.
  static constexpr char kKept[] = "row_factors";

  // Sets where the features' outputs are.
  void SetOutputs(const std::vector<Feature>& features) { features_ = features; }

  // The whole of a lookup, and of an update, by the steps below. Throws on all ranks if one has a
  // bad id.
  void Lookup(Fault* fault, cudaStream_t stream);
  // After Lookup, once the outputs' memory holds the outputs' gradients.
  void Update(const group_embedding::Update& update, cudaStream_t stream);

  // Exchanges the sizes of the ranks' batches; waits for the stream once. Returns the same on all
  // ranks: if their groups disagree, or a rank has a bad id, none goes on.
  const ExchangedCounts& RequestCounts(Fault* fault, cudaStream_t stream);

  // After RequestCounts: the batch of what this rank looks up for all.
  const GatheredBatch& gathered() const { return *gathered_; }
  // Enqueues the exchange of ids, the lookup, and the write of every output. batch: written; memory
  // for gathered(), with weights if this rank's batch has them.
  void LookUp(const Batch& batch, cudaStream_t stream);

  // features: the group's, with the gradients of their outputs, or null for zeros. factor: what
  // gradients are multiplied by. Enqueues their exchange, and returns [num_ranks * num_features]
  // those of gathered(), [num_samples, dim of the owner's part] each; null where it has none. They
  // stay until the next call.
  std::vector<char*> SendGradients(const std::vector<Feature>& features, float factor,
                                   cudaStream_t stream);
  // Holds gradients that SendGradients returned, of other ranks; null: the caller's memory does.
  const std::shared_ptr<const PeerMemory>& gradients_held() const { return gradients_held_; }

  // After SendGradients. of_all: [gathered().num_ids()] the gradients of the weights of what this
  // rank looked up for all, as WeightGradCuda has them. Enqueues their exchange and the write of
  // those of this rank's batch: own, [num_ids].
  void ReturnWeightGradients(const float* of_all, float* own, cudaStream_t stream);

 private:
  Group group() const;
  std::vector<int64_t> NumRows() const;   // [num_tables] of the whole tables
  bool AddsRanks(int64_t feature) const;  // whether several ranks have parts of a sum
  Combiner CombinerOf(int64_t feature) const;
  bool Serves(int rank, int64_t feature) const;
  // The elements between this rank's columns of an output and those of `rank`.
  int64_t ColumnsTo(int rank, int64_t feature) const;
  RowTransport& transport(bool is_again);
  // [num_ranks * num_features] of gathered(), without outputs.
  std::vector<Feature> FeaturesOfRanks() const;
  // Factors of the samples of a feature whose ranks' sums are added, or null: they are 1.
  const float* RowFactors(int64_t feature) const;
  void WriteRowFactors(cudaStream_t stream);
  void WriteArrived(const Transfer& transfer, cudaStream_t stream);
  Transfer WithUnpacked(Transfer opened, const std::string& name);
  void Unpack(const Transfer& transfer, float factor, cudaStream_t stream);
  void Move(const std::vector<ColumnBlock>& blocks, DataType from, DataType to, float factor,
            const std::string& name, cudaStream_t stream);

  Communicator* const communicator_;
  const std::string description_;
  const NamedMemory memory_;
  const std::vector<TableOwner> owners_;
  std::vector<Table> tables_;
  std::vector<Feature> features_;
  Group group_;              // its pointers to tables and features are not used
  const WireLayout layout_;  // a part for each feature, of its samples
  CommunicatorTransport by_communicator_;
  std::unique_ptr<RowTransport> in_peer_buffers_;  // of this batch; null on all ranks or on none
  ExchangedCounts counts_;                         // of parts
  std::vector<FeatureSize> sizes_;  // [num_ranks, num_features] of the ranks' batches
  std::unique_ptr<GatheredBatch> gathered_;
  Batch batch_ = {};              // of all ranks
  float* row_factors_ = nullptr;  // [num_samples] of this rank's batch; null: none is needed
  bool gradients_have_come_ = false;
  std::shared_ptr<const PeerMemory> gradients_held_;
};

}  // namespace group_embedding
