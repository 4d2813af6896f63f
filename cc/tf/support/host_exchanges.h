// The HostExchanges of this process, by number. Ops refer to one by an attribute, in any graph or
// session. Python opens, joins and ends them through C functions.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "exchange/host/host_exchange.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// An error where the exchange has been closed.
absl::Status FindHostExchange(int64_t number, std::shared_ptr<HostExchange>* exchange);

// Reads a description from the kernel's attribute `name`.
absl::Status ReadDescription(tensorflow::OpKernelConstruction* context,
                             CallDescription* description);

// Makes the call of an asynchronous op: `receive` runs when it has ended well, and then, or after
// an error, `done`.
void SendMessages(tensorflow::OpKernelContext* context, HostExchange* exchange, Outgoing outgoing,
                  tensorflow::AsyncOpKernel::DoneCallback done,
                  std::function<absl::Status(const Inbox&)> receive);

// Base of the ops that send rows of one tensor, each message with their number. A message: how many
// rows, as int64, and from the 64th byte on the rows.
class HostRowsOp : public tensorflow::AsyncOpKernel {
 protected:
  static constexpr int64_t kHeaderBytes = 64;

  explicit HostRowsOp(tensorflow::OpKernelConstruction* context);

  // The bytes of one row of the tensor, which has an axis.
  static int64_t RowBytes(const tensorflow::Tensor& tensor);

  int64_t number_;
  CallDescription description_;
};

}  // namespace group_embedding

extern "C" {
// Returns the number of a new exchange, and its address in `text`; -1, and why. numbers:
// [num_ranks] of its ranks in the job.
int64_t GroupEmbeddingOpenHostExchange(int32_t rank, int32_t num_ranks, const int32_t* numbers,
                                       char* text, int64_t size);
// Maps the memory of another rank of this host, given its address. Returns whether all went well;
// else `text` says why.
bool GroupEmbeddingMapHostExchange(int64_t number, int32_t rank, const char* address, char* text,
                                   int64_t size);
// sockets: [num_ranks] connections to ranks, which the exchange takes over, or -1. Returns as
// above.
bool GroupEmbeddingJoinHostExchange(int64_t number, const int32_t* sockets, char* text,
                                    int64_t size);
void GroupEmbeddingEndHostExchange(int64_t number, const char* reason);
// Writes the calls that this process waits in, those of an exchange (-1: of none) and those of
// MarkCall, into `text`: of each a line with the seconds, a tab, its key, a tab, its description.
// Those that do not fit are left out.
void GroupEmbeddingPendingCalls(int64_t number, char* text, int64_t size);
// sent_bytes: [num_ranks] written: to each rank. An exchange that has ended writes nothing.
void GroupEmbeddingHostExchangeUse(int64_t number, int64_t* sent_bytes, double* wait_seconds);
// As MarkCall, for calls that Python makes by itself.
void GroupEmbeddingBeginCall(const char* key, const char* description);
void GroupEmbeddingEndCall(const char* key);
// Waits until the ranks of other hosts have received all that was sent.
void GroupEmbeddingWaitUntilReceived(int64_t number, double most_seconds);
// Ends and forgets it.
void GroupEmbeddingCloseHostExchange(int64_t number);
}
