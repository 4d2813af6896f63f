#include "serving/server/models/output_rows.h"

namespace group_embedding::server {

OutputRows::OutputRows(const Signature& signature) {
  for (const auto& [name, output] : signature.outputs) {
    const bool is_fixed = output.shape && (output.shape->empty() || output.shape->front() != -1);
    outputs_[name].has_other_rows = is_fixed;
  }
}

bool OutputRows::MayHaveRows(const std::vector<const char*>& outputs) const {
  return All(outputs, [](const Output& output) { return !output.has_other_rows; });
}

bool OutputRows::HaveRows(const std::vector<const char*>& outputs, int64_t samples) const {
  return All(outputs, [=](const Output& output) {
    return !output.has_other_rows && output.samples > 0 &&
           (output.varies || output.samples != samples);
  });
}

bool OutputRows::Saw(const Response& response, int64_t samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool all = true;
  for (size_t i = 0; i < response.size(); ++i) {
    const GeTensor& tensor = response[i];
    const auto found = outputs_.find(std::string_view(tensor.name));
    if (found == outputs_.end()) continue;
    Output& output = found->second;
    const bool has_rows = tensor.rank > 0 && tensor.dims[0] == samples;
    output.has_other_rows |= !has_rows;
    output.varies |= has_rows && output.samples > 0 && output.samples != samples;
    if (output.samples == 0) output.samples = samples;
    all &= has_rows;
  }
  return all;
}

}  // namespace group_embedding::server
