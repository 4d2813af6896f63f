// A sharded group whose ranks send each other rows and gradients through a communicator, or put
// them into each other's peer buffers, where it has any: as they are read from tables, and as they
// are reduced.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exchange/gpu/exchange_counts.h"
#include "exchange/gpu/serve_rows.h"
#include "exchange/gpu/sharded_group.h"
#include "exchange/transport/communicator.h"
#include "exchange/transport/peer_buffers.h"

namespace group_embedding {

// Order: all ranks call Lookup and Update of the same groups in the same order, also with an empty
// batch.
//
// Lookup and Update are two steps each, for callers that keep, or replace, what lies between them:
//   Lookup   Ask            how many rows each rank asks each other for, and, where they are few,
//                           which; waits for the stream, once
//            LookUpRows     which, where they are many; they come, and outputs are written
//   Update   SendGradients  those of the rows that were asked for go where the rows came from
//            and the update of this rank's rows
class ExchangedGroup : public ShardedGroup {
 public:
  // Puts row numbers in the place of the keys that ranks ask this one for (`requests`, which are
  // [num_ranks, num_tables] parts of requested() rows), in the order of the group's stream;
  // `times`: as long, how often each came. Returns the tables as they are with new rows: of those
  // that have keys, [num_tables].
  using Locate = std::function<std::vector<Table>(int64_t* requests, const int64_t* times)>;

  // `communicator` must live as long. description: what the group has, the same on all ranks
  // (messages.h). comm_type: what the elements of rows and gradients are on the way. keyed: the
  // features whose ids are keys; their tables have the num_rows that NumberedRows says.
  ExchangedGroup(const Group& group, Communicator* communicator, std::string description,
                 DataType comm_type, Memory memory, std::vector<KeyedFeature> keyed = {});

  // Enqueues the write of every feature's output. `fault` takes the first bad id of this rank.
  void Lookup(Fault* fault, cudaStream_t stream);

  // After Lookup, with the outputs' gradients in the place of outputs: enqueues the update of the
  // rows that this rank owns. `update.tables` are its shards.
  void Update(const group_embedding::Update& update, cudaStream_t stream);

  // What it returns is the same on all ranks, so that all go on, or none does: where they disagree,
  // or one met a bad id.
  const ToldCounts& Ask(Fault* fault, cudaStream_t stream);

  // After Ask, on the host. Of each part, how many rows that rank asks this one for: [num_ranks,
  // num_tables].
  const std::vector<int64_t>& requested() const { return counts_.served; }
  int64_t num_requests() const;
  const std::string& description() const { return description_; }

  // requests: [num_requests] written: the local rows, rank after rank and table after table.
  // locate: of a group with keys.
  void LookUpRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
    BringRows(requests, locate, stream, /*looks_up=*/true);
  }
  // In its place, without outputs: rows come.
  void FetchRows(int64_t* requests, const Locate& locate, cudaStream_t stream) {
    BringRows(requests, locate, stream, /*looks_up=*/false);
  }
  // The same, where no row is read: only tells owners which rows will have gradients.
  void NameRows(int64_t* requests, const Locate& locate, cudaStream_t stream);
  // After that, where `shards` ([num_tables]) now has the rows of this rank's tables: for what
  // reads rows on the way back, which is WeightGrad, and SendGradients of tables with a max_norm.
  void FindRows(const std::vector<Table>& shards, cudaStream_t stream);

  // features: those of the group, with the outputs' gradients in the place of outputs. Returns what
  // each rank sent: [num_ranks].
  std::vector<Received> SendGradients(const std::vector<Feature>& features, cudaStream_t stream);

  // With such features. weight_grad: [num_ids].
  void WeightGrad(const std::vector<Feature>& features, float* weight_grad, cudaStream_t stream);

  // Bytes that the last step sent to other ranks: ids and rows forward, gradients backward. Of the
  // first message, which is as long whatever is in it, the ids alone.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  // How parts go to other ranks, in comm_type.
  struct Transfer {
    std::vector<int64_t> sent_at, received_at;  // as PartOffsets says
    std::vector<char*> to;                      // [num_ranks] where those for each are written
    char* arrived = nullptr;                    // where those of all ranks are, once sent
    char* unpacked = nullptr;                   // where they are as they are read
    bool in_peer_buffers = false;
    bool is_unpacked = false;  // not where they arrived
  };

  void BringRows(int64_t* requests, const Locate& locate, cudaStream_t stream, bool looks_up);
  RoutedKeys NumberKeys(cudaStream_t stream);
  void LocateRequests(const Locate& locate, cudaStream_t stream);
  // After the counts are there: every rank has a peer buffer that is large enough, or none has.
  void FindPeerBuffers(cudaStream_t stream);
  Transfer RowsTransfer();
  Transfer GradientsTransfer();
  // sent, received: [num_parts] rows. in_peer_buffer: where those that come are in this rank's peer
  // buffer, and peer_buffer_at [num_ranks] where in the others' those go that leave; null: they are
  // sent.
  Transfer OpenTransfer(const std::string& name, const std::vector<int64_t>& sent,
                        const std::vector<int64_t>& received,
                        const std::vector<int64_t>& peer_buffer_at, char* in_peer_buffer,
                        bool is_unpacked);
  // What was written arrives.
  void Send(const Transfer& transfer, cudaStream_t stream);
  void Unpack(const Transfer& transfer, TableRange tables, float factor, cudaStream_t stream);
  // The requests of other ranks, of these tables.
  std::vector<ServedPart> PartsToServe(const Transfer& transfer, TableRange tables) const;
  // By the communicator; places are written meanwhile.
  void ReceiveRows(const Transfer& transfer, const PartPlace* places, bool looks_up,
                   cudaStream_t stream);
  // In peer buffers, in courses: while the first is served places are written, and while later ones
  // are, the rows of those before are looked up.
  void TakeRows(const Transfer& transfer, const PartPlace* places, bool looks_up,
                cudaStream_t stream);
  // Tables whose rows come together; the same on all ranks.
  std::vector<TableRange> CutIntoCourses() const;
  // [num_parts] on the device, once fetched_ is known.
  const PartPlace* ListPlaces(cudaStream_t stream);
  // Whether rows travel in another type than the table's.
  bool Converts() const { return comm_type_ != group().dtype; }
  // The type in which rows that came are looked up as they are, if it is not the table's: where
  // that is faster, and nothing on the way back reads them again. Once the counts are there.
  std::optional<DataType> NarrowRows() const;
  // Bytes on the way of what takes so many in a table's type.
  int64_t WireBytes(int64_t bytes) const;
  void CountSent(const std::vector<int64_t>& send_bytes);
  void AllToAll(const void* send, const std::vector<int64_t>& send_bytes, void* receive,
                const std::vector<int64_t>& receive_bytes, cudaStream_t stream);
  // [num_ranks] of parts at these offsets, on the way.
  std::vector<int64_t> WireBytesOfRanks(const std::vector<int64_t>& offsets) const;
  // Bytes per rank of so many numbers in the parts of each.
  std::vector<int64_t> WordsOfRanks(const std::vector<int64_t>& counts) const;

  Communicator* const communicator_;
  const std::string description_;
  const DataType comm_type_;
  const std::vector<KeyedFeature> keyed_;
  int64_t* local_rows_ = nullptr;   // [unique rows] that this rank asks for; of keyed tables keys,
                                    // and row numbers in the end, where it has them itself
  const int64_t* times_ = nullptr;  // [unique rows] how often each came
  ToldCounts counts_;
  PeerBufferPool::Buffer peer_buffer_;  // this rank's; null: none has one
  std::vector<int64_t> rows_in_buffer_,
      gradients_in_buffer_;           // where this rank puts them in others'
  int64_t own_gradients_at_ = 0;      // in this rank's peer buffer, those of the others
  bool gradients_have_come_ = false;  // to peer buffers, from which nobody may have taken them
  int64_t* requests_ = nullptr;       // rows that ranks ask for, rank after rank
  const char* fetched_ = nullptr;     // rows of the other ranks
  int64_t sent_bytes_ = 0;
};

}  // namespace group_embedding
