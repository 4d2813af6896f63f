// A sharded group whose ranks send each other rows and gradients through a communicator.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exchange/communicator.h"
#include "exchange/exchange_counts.h"
#include "exchange/sharded_group.h"

namespace group_embedding {

// Lookup and Update are two steps each, for callers that keep, or replace, what lies between them:
//   Lookup   Ask            how many rows each rank asks each other for, and, where they are few,
//                           which; waits for the stream, once
//            FetchRows      which, where they are many; they come
//            LookUpFetched  outputs are written
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

  void Lookup(Fault* fault, cudaStream_t stream) override;
  void Update(const group_embedding::Update& update, cudaStream_t stream) override;

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
  void FetchRows(int64_t* requests, const Locate& locate, cudaStream_t stream);
  void LookUpFetched(cudaStream_t stream) { LookUpPlaces(stream); }
  // Only tells owners which rows will have gradients: in place of FetchRows, where no row is read.
  void NameRows(int64_t* requests, const Locate& locate, cudaStream_t stream);
  // After FetchRows, where `shards` ([num_tables]) now has the rows of this rank's tables: for what
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
  RoutedKeys NumberKeys(cudaStream_t stream);
  void LocateRequests(const Locate& locate, cudaStream_t stream);
  const char* LookUpRequests(const std::vector<int64_t>& offsets, cudaStream_t stream);
  void PlaceRows(cudaStream_t stream);
  // Of parts at these offsets. Where they travel in another type, they do so times `factor`.
  void ExchangeParts(const char* sent, const std::vector<int64_t>& sent_at, char* received,
                     const std::vector<int64_t>& received_at, float factor, cudaStream_t stream);
  void CountSent(const std::vector<int64_t>& send_bytes);
  void AllToAll(const void* send, const std::vector<int64_t>& send_bytes, void* receive,
                const std::vector<int64_t>& receive_bytes, cudaStream_t stream);
  // Sums per rank of what a part of each rank takes, in comm_type.
  std::vector<int64_t> BytesOfRanks(const std::vector<int64_t>& offsets) const;
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
  int64_t* requests_ = nullptr;    // rows that ranks ask for, rank after rank
  const char* fetched_ = nullptr;  // rows of the other ranks
  int64_t sent_bytes_ = 0;
};

}  // namespace group_embedding
