#include "tf/serving/session/model_session.h"

#include <functional>
#include <utility>

#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "tensorflow/core/platform/threadpool_options.h"
#include "tensorflow/core/public/session_options.h"
#include "tf/serving/session/interruptible_session.h"

namespace group_embedding {

using ::tensorflow::Tensor;
using ::tensorflow::tstring;

namespace {

// Threads of a session, for the ops of one request.
class RequestThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  RequestThreads(tensorflow::thread::ThreadPool* threads, ServedRequest* request)
      : threads_(threads), request_(request) {}

  void Schedule(std::function<void()> op) override {
    threads_->Schedule([op = std::move(op), request = request_] {
      const ServedRequest::Scope scope(request);
      op();
    });
  }
  int NumThreads() const override { return threads_->NumThreads(); }
  int CurrentThreadId() const override { return threads_->CurrentThreadId(); }

 private:
  tensorflow::thread::ThreadPool* const threads_;
  ServedRequest* const request_;
};

std::unique_ptr<tensorflow::thread::ThreadPool> MakeThreads(int count) {
  if (count == 0) return nullptr;
  return std::make_unique<tensorflow::thread::ThreadPool>(tensorflow::Env::Default(), "requests",
                                                          count);
}

}  // namespace

ModelSession::ModelSession(std::string folder, const tensorflow::MetaGraphDef& meta,
                           int inter_op_threads)
    : folder_(std::move(folder)), threads_(MakeThreads(inter_op_threads)) {
  *meta_.mutable_saver_def() = meta.saver_def();
  *meta_.mutable_signature_def() = meta.signature_def();
  *meta_.mutable_collection_def() = meta.collection_def();
  *meta_.mutable_asset_file_def() = meta.asset_file_def();
}

ModelSession::~ModelSession() {
  if (session_ == nullptr) return;
  for (const auto& [names, handle] : callables_) session_->ReleaseCallable(handle).IgnoreError();
  session_->Close().IgnoreError();
}

absl::Status ModelSession::Make(const std::string& folder, const tensorflow::MetaGraphDef& meta,
                                const tensorflow::ConfigProto& config,
                                std::unique_ptr<ModelSession>* session) {
  tensorflow::SessionOptions options;
  options.config = config;
  session->reset(new ModelSession(folder, meta, config.inter_op_parallelism_threads()));
  TF_RETURN_IF_ERROR(MakeInterruptibleSession(options, &(*session)->session_));
  return (*session)->session_->Create(meta.graph_def());
}

void ModelSession::FeedAssets(NamedTensors* feeds) const {
  for (const auto& asset : meta_.asset_file_def()) {
    Tensor path(tensorflow::DT_STRING, tensorflow::TensorShape({}));
    path.scalar<tstring>()() = folder_ + "/assets/" + asset.filename();
    feeds->emplace_back(asset.tensor_info().name(), path);
  }
}

absl::Status ModelSession::Restore() {
  const auto& saver = meta_.saver_def();
  if (saver.restore_op_name().empty()) return absl::OkStatus();  // a model without variables
  Tensor prefix(tensorflow::DT_STRING, tensorflow::TensorShape({}));
  prefix.scalar<tstring>()() = folder_ + "/variables/variables";
  NamedTensors feeds = {{saver.filename_tensor_name(), prefix}};
  FeedAssets(&feeds);
  return session_->Run(feeds, {}, {saver.restore_op_name()}, nullptr);
}

absl::Status ModelSession::Initialize() {
  std::string op;
  const auto signature = meta_.signature_def().find("__saved_model_init_op");
  if (signature != meta_.signature_def().end() && signature->second.outputs_size() == 1) {
    op = signature->second.outputs().begin()->second.name();
  }
  for (const char* name : {"saved_model_main_op", "legacy_init_op"}) {
    const auto found = meta_.collection_def().find(name);
    if (op.empty() && found != meta_.collection_def().end() &&
        found->second.node_list().value_size() == 1) {
      op = found->second.node_list().value(0);
    }
  }
  if (op.empty()) return absl::OkStatus();
  NamedTensors feeds;
  FeedAssets(&feeds);
  return session_->Run(feeds, {}, {op.substr(0, op.find(':'))}, nullptr);
}

absl::Status ModelSession::Find(const std::vector<std::string>& feeds,
                                const std::vector<std::string>& fetches,
                                const std::vector<std::string>& targets,
                                tensorflow::Session::CallableHandle* handle) {
  std::string names;
  for (const auto* list : {&feeds, &fetches, &targets}) {
    for (const std::string& name : *list) names += name + "\n";
    names += "\n";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = callables_.find(names);
  if (found != callables_.end()) {
    *handle = found->second;
    return absl::OkStatus();
  }
  tensorflow::CallableOptions options;
  if (threads_ == nullptr) options.mutable_run_options()->set_inter_op_thread_pool(-1);
  for (const std::string& name : feeds) options.add_feed(name);
  for (const std::string& name : fetches) options.add_fetch(name);
  for (const std::string& name : targets) options.add_target(name);
  TF_RETURN_IF_ERROR(session_->MakeCallable(options, handle));
  callables_[names] = *handle;
  return absl::OkStatus();
}

absl::Status ModelSession::Prepare(const std::vector<std::string>& feeds,
                                   const std::vector<std::string>& fetches,
                                   const std::vector<std::string>& targets) {
  tensorflow::Session::CallableHandle handle;
  return Find(feeds, fetches, targets, &handle);
}

absl::Status ModelSession::Call(const std::vector<std::string>& feeds,
                                const std::vector<std::string>& fetches,
                                const std::vector<std::string>& targets,
                                const std::vector<Tensor>& fed, std::vector<Tensor>* fetched,
                                ServedRequest* request) {
  tensorflow::Session::CallableHandle handle;
  TF_RETURN_IF_ERROR(Find(feeds, fetches, targets, &handle));
  if (threads_ == nullptr) {
    const ServedRequest::Scope scope(request);
    return session_->RunCallable(handle, fed, fetched, nullptr);
  }
  RequestThreads threads(threads_.get(), request);
  tensorflow::thread::ThreadPoolOptions options;
  options.inter_op_threadpool = &threads;
  return session_->RunCallable(handle, fed, fetched, nullptr, options);
}

}  // namespace group_embedding
