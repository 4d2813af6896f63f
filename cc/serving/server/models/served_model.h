// A model that can answer: opened, its signatures read, warmed up.
#pragma once

#include <memory>
#include <string>

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
  const std::string& path() const { return path_; }
  int64_t version() const { return model_->version(); }

 private:
  std::string path_;
  std::unique_ptr<OpenModel> model_;
  Signatures signatures_;
};

}  // namespace group_embedding::server
