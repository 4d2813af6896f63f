#include "tf/support/host_exchanges.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "exchange/host/pending_calls.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {
namespace {

class HostExchanges {
 public:
  // Never destroyed: threads may ask until the process has ended.
  static HostExchanges& OfProcess() {
    static HostExchanges* exchanges = new HostExchanges;
    return *exchanges;
  }

  int64_t Add(std::shared_ptr<HostExchange> exchange) {
    std::lock_guard<std::mutex> lock(mutex_);
    exchanges_.emplace(++newest_, std::move(exchange));
    return newest_;
  }

  std::shared_ptr<HostExchange> Find(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = exchanges_.find(number);
    return found == exchanges_.end() ? nullptr : found->second;
  }

  void Remove(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    exchanges_.erase(number);
  }

 private:
  std::mutex mutex_;
  int64_t newest_ = 0;
  std::map<int64_t, std::shared_ptr<HostExchange>> exchanges_;
};

void Write(const std::string& from, char* text, int64_t size) {
  std::snprintf(text, size, "%s", from.c_str());
}

// The first line of a text, cut to what a person reads.
std::string Shortened(const std::string& text) {
  constexpr size_t kMost = 500;
  std::string line = text.substr(0, std::min(text.find('\n'), kMost));
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

}  // namespace

absl::Status FindHostExchange(int64_t number, std::shared_ptr<HostExchange>* exchange) {
  *exchange = HostExchanges::OfProcess().Find(number);
  if (*exchange != nullptr) return absl::OkStatus();
  return absl::InternalError(
      "the exchange has ended: expected a graph built after the last "
      "enable_distributed_strategy, got one from before");
}

absl::Status ReadDescription(tensorflow::OpKernelConstruction* context,
                             CallDescription* description) {
  std::string text;
  TF_RETURN_IF_ERROR(context->GetAttr("description", &text));
  *description = CallDescription(std::move(text));
  return absl::OkStatus();
}

HostRowsOp::HostRowsOp(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
  tensorflow::DataType dtype;
  OP_REQUIRES_OK(context, context->GetAttr("T", &dtype));
  OP_REQUIRES_OK(context, context->GetAttr("exchange", &number_));
  OP_REQUIRES_OK(context, ReadDescription(context, &description_));
  OP_REQUIRES(context, tensorflow::DataTypeCanUseMemcpy(dtype),
              absl::InvalidArgumentError("tensor: expected a numeric dtype, got " +
                                         tensorflow::DataTypeString(dtype)));
}

int64_t HostRowsOp::RowBytes(const tensorflow::Tensor& tensor) {
  int64_t items = 1;
  for (int axis = 1; axis < tensor.dims(); ++axis) items *= tensor.dim_size(axis);
  return items * tensorflow::DataTypeSize(tensor.dtype());
}

void SendMessages(tensorflow::OpKernelContext* context, HostExchange* exchange, Outgoing outgoing,
                  tensorflow::AsyncOpKernel::DoneCallback done,
                  std::function<absl::Status(const Inbox&)> receive) {
  exchange->Send(std::move(outgoing),
                 [=](const Status& status, std::shared_ptr<const Inbox> inbox) {
                   context->SetStatus(status.ok() ? CatchErrors([&] { return receive(*inbox); })
                                                  : absl::InternalError(status.message()));
                   inbox = nullptr;  // read: `done` may take long
                   done();
                 });
}

}  // namespace group_embedding

using group_embedding::HostExchange;
using group_embedding::HostExchanges;
using group_embedding::PendingCall;
using group_embedding::PendingCalls;
using group_embedding::Status;

int64_t GroupEmbeddingOpenHostExchange(int32_t rank, int32_t num_ranks, const int32_t* numbers,
                                       char* text, int64_t size) {
  Status status;
  std::shared_ptr<HostExchange> exchange =
      HostExchange::Make(rank, num_ranks, &status, {numbers, numbers + num_ranks});
  group_embedding::Write(exchange == nullptr ? status.message() : exchange->address(), text, size);
  return exchange == nullptr ? -1 : HostExchanges::OfProcess().Add(std::move(exchange));
}

bool GroupEmbeddingMapHostExchange(int64_t number, int32_t rank, const char* address, char* text,
                                   int64_t size) {
  const Status status = HostExchanges::OfProcess().Find(number)->Map(rank, address);
  group_embedding::Write(status.message(), text, size);
  return status.ok();
}

bool GroupEmbeddingJoinHostExchange(int64_t number, const int32_t* sockets, char* text,
                                    int64_t size) {
  constexpr double kLateSeconds = 60;  // as Horovod's own warning of a stall
  const std::shared_ptr<HostExchange> exchange = HostExchanges::OfProcess().Find(number);
  const Status status =
      exchange->Join({sockets, sockets + exchange->num_ranks()},
                     {kLateSeconds, [](const std::string& warning) { LOG(WARNING) << warning; }});
  group_embedding::Write(status.message(), text, size);
  return status.ok();
}

void GroupEmbeddingEndHostExchange(int64_t number, const char* reason) {
  const std::shared_ptr<HostExchange> exchange = HostExchanges::OfProcess().Find(number);
  if (exchange != nullptr) exchange->End(reason);
}

void GroupEmbeddingPendingCalls(int64_t number, char* text, int64_t size) {
  std::vector<PendingCall> calls = PendingCalls::OfProcess().List();
  const std::shared_ptr<HostExchange> exchange = HostExchanges::OfProcess().Find(number);
  if (exchange != nullptr) {
    for (PendingCall& call : exchange->Waiting()) calls.push_back(std::move(call));
  }
  std::string all;
  for (const PendingCall& call : calls) {
    const std::string line = std::to_string(call.seconds) + "\t" +
                             group_embedding::Shortened(call.key) + "\t" +
                             group_embedding::Shortened(call.description) + "\n";
    if (static_cast<int64_t>(all.size() + line.size()) < size) all += line;
  }
  group_embedding::Write(all, text, size);
}

void GroupEmbeddingHostExchangeUse(int64_t number, int64_t* sent_bytes, double* wait_seconds) {
  const std::shared_ptr<HostExchange> exchange = HostExchanges::OfProcess().Find(number);
  if (exchange == nullptr) return;
  const group_embedding::ExchangeUse use = exchange->Use();
  std::copy(use.sent_bytes.begin(), use.sent_bytes.end(), sent_bytes);
  *wait_seconds = use.wait_seconds;
}

void GroupEmbeddingBeginCall(const char* key, const char* description) {
  PendingCalls::OfProcess().Begin(key, description);
}

void GroupEmbeddingEndCall(const char* key) { PendingCalls::OfProcess().End(key); }

void GroupEmbeddingWaitUntilReceived(int64_t number, double most_seconds) {
  const std::shared_ptr<HostExchange> exchange = HostExchanges::OfProcess().Find(number);
  if (exchange != nullptr) exchange->WaitUntilReceived(most_seconds);
}

void GroupEmbeddingCloseHostExchange(int64_t number) {
  GroupEmbeddingEndHostExchange(number, "disable_distributed_strategy was called here");
  HostExchanges::OfProcess().Remove(number);
}
