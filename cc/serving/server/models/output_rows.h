// OutputRows: whether outputs of a signature have a row for each sample of a request, so that those
// of joined requests can be taken apart. A shape says that a first dim is variable, not that it is
// the samples': runs show it.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"
#include "serving/server/protocol/signatures.h"

namespace group_embedding::server {

// Thread-safe.
class OutputRows {
 public:
  explicit OutputRows(const Signature& signature);

  // Whether no run has shown that one of the outputs (none: of all) has other rows.
  bool MayHaveRows(const std::vector<const char*>& outputs) const;
  // Whether a run has shown that each has rows, and one of `samples` will show it again: an output
  // whose first dim is the same in all runs may have had that number of samples by chance.
  bool HaveRows(const std::vector<const char*>& outputs, int64_t samples) const;
  // After a run. Returns whether each of its outputs has as many rows.
  bool Saw(const Response& response, int64_t samples);

 private:
  struct Output {
    bool has_other_rows = false;
    int64_t samples = 0;  // of the first run; 0: there was none
    bool varies = false;  // runs of other numbers of samples had as many rows, too
  };

  // Whether `is` of each of the outputs.
  template <typename Is>
  bool All(const std::vector<const char*>& outputs, Is is) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool all = true;
    if (outputs.empty()) {
      for (const auto& [name, output] : outputs_) all = all && is(output);
    }
    for (const char* name : outputs) {
      const auto found = outputs_.find(name);
      all = all && found != outputs_.end() && is(found->second);
    }
    return all;
  }

  mutable std::mutex mutex_;
  std::map<std::string, Output, std::less<>> outputs_;
};

}  // namespace group_embedding::server
