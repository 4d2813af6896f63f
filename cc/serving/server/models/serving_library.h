// libge_serving, loaded with dlopen, and its models as C++ objects.
//
// The library brings TensorFlow into the process, whose protobuf is another one than this
// program's. The two see no symbols of each other: the library is loaded for itself alone
// (RTLD_LOCAL, RTLD_DEEPBIND).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serving/c_api/ge_serving.h"
#include "serving/server/models/status.h"

namespace group_embedding::server {

// The functions of libge_serving. Stays loaded until the process ends.
struct ServingLibrary {
  decltype(&ge_serving_open) open;
  decltype(&ge_serving_close) close;
  decltype(&ge_serving_predict_within) predict_within;
  decltype(&ge_serving_response_version) response_version;
  decltype(&ge_serving_num_outputs) num_outputs;
  decltype(&ge_serving_output) output;
  decltype(&ge_serving_free_response) free_response;
  decltype(&ge_serving_signatures) signatures;
  decltype(&ge_serving_version) version;
  decltype(&ge_serving_info) info;
  decltype(&ge_serving_apply) apply;
  decltype(&ge_serving_rollback) rollback;
  decltype(&ge_serving_free) free;
};

Status LoadServingLibrary(const std::string& path, ServingLibrary* library);

// The outputs of one request. Must not outlive its model.
class Response {
 public:
  Response() = default;
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;
  ~Response();

  int64_t version() const {
    return whole_ ? whole_->version() : library_->response_version(response_);
  }
  size_t size() const { return whole_ ? rows_.size() : library_->num_outputs(response_); }
  const GeTensor& operator[](size_t i) const {
    return whole_ ? rows_[i] : *library_->output(response_, i);
  }
  // Makes this the rows [first, first + count) of another's outputs, which have rows.
  void TakeRows(std::shared_ptr<const Response> whole, int64_t first, int64_t count);

 private:
  friend class OpenModel;
  const ServingLibrary* library_ = nullptr;
  GeResponse* response_ = nullptr;
  std::shared_ptr<const Response> whole_;
  std::vector<GeTensor> rows_;  // of whole_
  std::vector<std::vector<int64_t>> dims_;
};

// One open SavedModel. Thread-safe.
class OpenModel {
 public:
  // options: as in ge_serving_open.
  static Status Open(const ServingLibrary& library, const std::string& path,
                     const std::string& options, std::unique_ptr<OpenModel>* model);
  OpenModel(const OpenModel&) = delete;
  OpenModel& operator=(const OpenModel&) = delete;
  ~OpenModel();

  // The computation ends soon after the deadline, or after `cancelled` says that the client is
  // gone; it may be null.
  Status Predict(const std::string& signature, const std::vector<GeTensor>& inputs,
                 const std::vector<const char*>& outputs,
                 std::chrono::system_clock::time_point deadline,
                 const std::function<bool()>& cancelled, Response* response) const;
  Status Signatures(std::string* json) const;
  Status Info(std::string* json) const;
  int64_t version() const;
  Status Apply(const std::string& folder);

 private:
  OpenModel(const ServingLibrary& library, GeModel* model) : library_(library), model_(model) {}

  const ServingLibrary& library_;
  GeModel* const model_;
};

}  // namespace group_embedding::server
