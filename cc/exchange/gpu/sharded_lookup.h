// The lookup and update of a group whose tables are sharded over ranks with a GPU each. Rows and
// gradients travel by a RowTransport (row_transport.h): by the communicator, or, if it has peer
// buffers that are large enough, straight into the buffers of the receiving ranks.
//
// Thread safety: one thread at a time. Errors are thrown (core/status.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exchange/gpu/communicator_transport.h"
#include "exchange/gpu/exchange_counts.h"
#include "exchange/gpu/rank_steps.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

// Order: all ranks call Lookup and Update of the same groups in the same order, also with an empty
// batch.
//
// Lookup and Update have two steps each, for callers that keep or replace the data between them:
//   Lookup   RequestCounts  exchanges the number of rows that each rank requests from each owner,
//                           and short lists of the rows as well; waits for the stream once
//            LookUpRows     exchanges long lists of rows, then the rows, and writes the outputs
//   Update   SendGradients  sends the gradients of the requested rows to the owners of the rows
//            and the update of this rank's rows
class ShardedLookup {
 public:
  // Replaces requested keys by row numbers. requests: [num_requests] keys, in [num_ranks,
  // num_tables] parts of requested() rows each; times: [num_requests] occurrences of each key in
  // the batch of the requesting rank. Work is enqueued on the lookup's stream. Returns the tables,
  // [num_tables]; those with keys include rows that were made for new keys.
  using Locate = std::function<std::vector<Table>(int64_t* requests, const int64_t* times)>;

  // group.tables: this rank's shards, but with the num_rows of the whole tables. communicator: must
  // outlive this object. description: the text that lists the group's tables and features, the same
  // on all ranks (messages.h). comm_type: the element type in which rows and gradients are sent.
  // keyed: the features whose ids are keys; `group` gives their tables the num_rows of
  // NumberedRows.
  ShardedLookup(const Group& group, Communicator* communicator, std::string description,
                DataType comm_type, NamedMemory memory, std::vector<KeyedFeature> keyed = {});
  ShardedLookup(const ShardedLookup&) = delete;
  ShardedLookup& operator=(const ShardedLookup&) = delete;

  // Enqueues the write of every feature's output. fault: receives the first bad id of this rank.
  void Lookup(Fault* fault, cudaStream_t stream);

  // After Lookup, once the outputs' memory holds the outputs' gradients: enqueues the update of the
  // rows that this rank owns. `update.tables` are this rank's shards.
  void Update(const group_embedding::Update& update, cudaStream_t stream);

  // Returns the same on all ranks, so that all ranks continue or none does: if their groups
  // disagree, or a rank has a bad id.
  const ExchangedCounts& RequestCounts(Fault* fault, cudaStream_t stream);

  // After RequestCounts, on the host: [num_ranks, num_tables] the number of rows that each rank
  // requests from this one.
  const std::vector<int64_t>& requested() const { return counts_.served; }
  int64_t num_requests() const;
  const std::string& description() const { return description_; }

  // requests: [num_requests] written: local rows of this rank, ordered by requesting rank, then by
  // table. locate: needed if the group has keys.
  void LookUpRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
    ExchangeRows(requests, locate, stream, /*looks_up=*/true);
  }
  // As LookUpRows, without writing outputs.
  void FetchRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
    ExchangeRows(requests, locate, stream, /*looks_up=*/false);
  }
  // Tells the owners which rows will get gradients. No row is read or sent. requests, locate: as
  // for LookUpRows.
  void SendRequests(int64_t* requests, const Locate& locate, cudaStream_t stream);
  // After the exchange, when this rank's tables have moved to `shards` ([num_tables]): rows are
  // read from there by WeightGrad, and by SendGradients for tables with a max_norm.
  void UseRows(const std::vector<Table>& shards, cudaStream_t stream);

  // features: the group's features, with the outputs' gradients as their outputs. Returns
  // [num_ranks] the gradients that each rank sent to this one.
  std::vector<ReceivedGradients> SendGradients(const std::vector<Feature>& features,
                                               cudaStream_t stream);

  // features: as for SendGradients. weight_grad: [num_ids] written.
  void WeightGrad(const std::vector<Feature>& features, float* weight_grad, cudaStream_t stream);

 private:
  void ExchangeRows(int64_t* requests, const Locate& locate, cudaStream_t stream, bool looks_up);
  RoutedKeys NumberKeys(cudaStream_t stream);
  void LocateRequests(const Locate& locate, cudaStream_t stream);
  // After the counts are exchanged: chooses the transport, the same on all ranks.
  void ChooseTransport(cudaStream_t stream);
  // `opened` with the memory that unpacked rows or gradients need.
  Transfer WithUnpacked(Transfer opened, const std::string& name);
  void Unpack(const Transfer& transfer, TableRange tables, float factor, cudaStream_t stream);
  // [num_parts] on the device. Needs fetched_.
  const PartAddresses* ListPartAddresses(cudaStream_t stream);
  // The 16-bit type in which received rows are looked up without conversion to float32; none if
  // conversion is faster, or if the backward pass reads the rows again. Needs the counts.
  std::optional<DataType> NarrowRows() const;
  void AllToAll(const void* send, const std::vector<int64_t>& send_bytes, void* receive,
                const std::vector<int64_t>& receive_bytes, cudaStream_t stream);

  Communicator* const communicator_;
  const std::string description_;
  const NamedMemory memory_;
  const std::vector<KeyedFeature> keyed_;
  const WireLayout layout_;
  RankSteps steps_;
  CommunicatorTransport by_communicator_;
  std::unique_ptr<RowTransport> in_peer_buffers_;  // of this batch; null on all ranks or on none
  bool gradients_have_come_ = false;  // the peer buffer holds gradients that may still be read
  int64_t* local_rows_ = nullptr;   // [unique rows] that this rank requests; keys for keyed tables.
                                    // Keys of this rank's own part become row numbers
  const int64_t* times_ = nullptr;  // [unique rows] occurrences of each key in the batch
  ExchangedCounts counts_;
  int64_t* requests_ = nullptr;    // [num_requests] as LookUpRows has them
  const char* fetched_ = nullptr;  // the rows received from other ranks
};

}  // namespace group_embedding
