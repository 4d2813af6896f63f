// A model that can answer: opened, its signatures read, warmed up.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "serving/server/models/join_inputs.h"
#include "serving/server/models/output_rows.h"
#include "serving/server/models/request.h"
#include "serving/server/models/serving_library.h"
#include "serving/server/operations/options.h"
#include "serving/server/protocol/signatures.h"

namespace group_embedding::server {

class ServedModel {
 public:
  // How models are opened: the same for all models of a server.
  struct Loader {
    const ServingLibrary& library;
    const Options& options;

    // version: of the base; -1: that which libge_serving finds. state: a file, or "" for none.
    Status Load(const std::string& path, int64_t version, const std::string& state,
                std::shared_ptr<ServedModel>* served) const;
  };

  OpenModel& model() const { return *model_; }
  const Signatures& signatures() const { return signatures_; }

  // What a request needs to be joined with others; null: it is computed alone.
  std::optional<JoinableInputs> AsJoinable(const Question& question) const;
  const std::vector<InputRole>& RolesOfInputs(const Question& question) const;
  // Whether the outputs of joined requests can be taken apart: see OutputRows.
  bool HaveRows(const Question& question, int64_t samples) const;
  bool Saw(const Question& question, const Response& response, int64_t samples) const;

  const std::string& path() const { return path_; }
  int64_t version() const { return model_->version(); }

 private:
  std::string path_;
  std::unique_ptr<OpenModel> model_;
  struct Joinable {
    explicit Joinable(const Signature& signature)
        : roles(RolesOf(signature)), output_rows(signature) {}

    const std::vector<InputRole> roles;
    mutable OutputRows output_rows;
  };

  Signatures signatures_;
  std::map<std::string, Joinable> joinable_;  // by signature
};

}  // namespace group_embedding::server
