#include "serving/server/models/serving_library.h"

#include <dlfcn.h>

#include <algorithm>

#include "serving/server/operations/tensorflow_metrics.h"

namespace group_embedding::server {
namespace {

// Takes over the sentence of a failed call.
Status AsStatus(const ServingLibrary& library, GeCode code, char* error) {
  if (code == GE_OK) return Status::OK;
  Status status(static_cast<StatusCode>(code), error == nullptr ? "no message" : error);
  library.free(error);
  return status;
}

int IsCancelled(void* cancelled) {
  return (*static_cast<const std::function<bool()>*>(cancelled))() ? 1 : 0;
}

}  // namespace

Status LoadServingLibrary(const std::string& path, ServingLibrary* library) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle == nullptr) {
    return Status(StatusCode::FAILED_PRECONDITION,
                  std::string("cannot load libge_serving: ") + dlerror() +
                      "; build it with `make build`, or name it with --library");
  }
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    void* found = dlsym(handle, name);
    if (found == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
  };
  find("ge_serving_open", &library->open);
  find("ge_serving_close", &library->close);
  find("ge_serving_predict_within", &library->predict_within);
  find("ge_serving_response_version", &library->response_version);
  find("ge_serving_num_outputs", &library->num_outputs);
  find("ge_serving_output", &library->output);
  find("ge_serving_free_response", &library->free_response);
  find("ge_serving_signatures", &library->signatures);
  find("ge_serving_version", &library->version);
  find("ge_serving_info", &library->info);
  find("ge_serving_apply", &library->apply);
  find("ge_serving_rollback", &library->rollback);
  find("ge_serving_free", &library->free);
  if (missing.empty()) return Status::OK;
  return Status(
      StatusCode::FAILED_PRECONDITION,
      "'" + path + "' lacks " + missing + ": the server and the library are of two versions");
}

Response::~Response() {
  if (response_ != nullptr) library_->free_response(response_);
}

void Response::TakeRows(std::shared_ptr<const Response> whole, int64_t first, int64_t count) {
  whole_ = std::move(whole);
  dims_.resize(whole_->size());
  for (size_t i = 0; i < whole_->size(); ++i) {
    GeTensor rows = (*whole_)[i];
    const int64_t row_bytes = static_cast<int64_t>(rows.bytes) / rows.dims[0];
    dims_[i].assign(rows.dims, rows.dims + rows.rank);
    dims_[i][0] = count;
    rows.dims = dims_[i].data();
    rows.data = static_cast<const char*>(rows.data) + first * row_bytes;
    rows.bytes = static_cast<size_t>(count * row_bytes);
    rows_.push_back(rows);
  }
}

Status OpenModel::Open(const ServingLibrary& library, const std::string& path,
                       const std::string& options, std::unique_ptr<OpenModel>* model) {
  GeModel* opened = nullptr;
  char* error = nullptr;
  const GeCode code = library.open(path.c_str(), options.c_str(), &opened, &error);
  if (code == GE_OK) model->reset(new OpenModel(library, opened));
  return AsStatus(library, code, error);
}

OpenModel::~OpenModel() { library_.close(model_); }

Status OpenModel::Predict(const std::string& signature, const std::vector<GeTensor>& inputs,
                          const std::vector<const char*>& outputs,
                          std::chrono::system_clock::time_point deadline,
                          const std::function<bool()>& cancelled, Response* response) const {
  using std::chrono::microseconds;
  using std::chrono::system_clock;
  microseconds left = microseconds::max();
  if (deadline != system_clock::time_point::max()) {
    left = std::chrono::duration_cast<microseconds>(deadline - system_clock::now());
  }
  char* error = nullptr;
  response->library_ = &library_;
  const auto begin = std::chrono::steady_clock::now();
  const GeCode code = library_.predict_within(
      model_, signature.c_str(), inputs.data(), inputs.size(), outputs.data(), outputs.size(),
      std::max<int64_t>(left.count(), 0), cancelled ? IsCancelled : nullptr,
      const_cast<std::function<bool()>*>(&cancelled), &response->response_, &error);
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  GraphRuns::OfProcess().Add(taken.count());
  return AsStatus(library_, code, error);
}

Status OpenModel::Signatures(std::string* json) const {
  char *text = nullptr, *error = nullptr;
  const GeCode code = library_.signatures(model_, &text, &error);
  if (code == GE_OK) json->assign(text);
  library_.free(text);
  return AsStatus(library_, code, error);
}

Status OpenModel::Info(std::string* json) const {
  char *text = nullptr, *error = nullptr;
  const GeCode code = library_.info(model_, &text, &error);
  if (code == GE_OK) json->assign(text);
  library_.free(text);
  return AsStatus(library_, code, error);
}

int64_t OpenModel::version() const { return library_.version(model_); }

Status OpenModel::Apply(const std::string& folder) {
  char* error = nullptr;
  const GeCode code = library_.apply(model_, folder.c_str(), &error);
  return AsStatus(library_, code, error);
}

}  // namespace group_embedding::server
