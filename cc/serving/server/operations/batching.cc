// TensorFlow Serving's batching parameters.
#include <algorithm>

#include "serving/server/operations/options.h"
#include "serving/server/operations/text_proto.h"
#include "tensorflow_serving/config/batching_parameters.pb.h"

namespace group_embedding::server {
namespace {

constexpr int64_t kDefaultSamples = 1000;  // TensorFlow Serving's
// A run of a few requests takes about as long.
constexpr std::chrono::microseconds kDefaultWait(300);

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

Status CheckRange(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::OK;
  return Bad(std::string(name) + ": expected a number from " + std::to_string(least) + " to " +
             std::to_string(most) + ", got " + std::to_string(value));
}

Status Read(const tensorflow::serving::BatchingParameters& file, Options* options) {
  BatchingOptions& batching = options->batching;
  if (file.pad_variable_length_inputs()) {
    return Bad(
        "pad_variable_length_inputs: expected false: 0 is an id like others, and inputs of other "
        "lengths have batches of their own");
  }
  if (!file.thread_pool_name().value().empty()) {
    options->notes.push_back("thread_pool_name has no meaning here");
  }
  Status status;
  if (file.has_max_batch_size()) {
    batching.most_samples = file.max_batch_size().value();
    status = CheckRange("max_batch_size", batching.most_samples, 1, 1'000'000);
  }
  if (status.ok() && file.has_batch_timeout_micros()) {
    batching.wait = std::chrono::microseconds(file.batch_timeout_micros().value());
    status = CheckRange("batch_timeout_micros", batching.wait.count(), 0, 3'600'000'000);
  }
  if (status.ok() && file.has_max_enqueued_batches()) {
    const int64_t batches = file.max_enqueued_batches().value();
    status = CheckRange("max_enqueued_batches", batches, 1, 1'000'000);
    batching.most_batches = static_cast<int>(batches);
  }
  if (status.ok() && file.has_num_batch_threads()) {
    const int64_t threads = file.num_batch_threads().value();
    status = CheckRange("num_batch_threads", threads, 1, 4096);
    options->threads = static_cast<int>(threads);
  }
  if (!status.ok()) return status;
  batching.allowed_sizes.assign(file.allowed_batch_sizes().begin(),
                                file.allowed_batch_sizes().end());
  const auto& sizes = batching.allowed_sizes;
  if (sizes.empty()) return Status::OK;
  if (sizes.front() < 1 || !std::is_sorted(sizes.begin(), sizes.end()) ||
      sizes.back() != batching.most_samples) {
    return Bad("allowed_batch_sizes: expected numbers from the least to max_batch_size, " +
               std::to_string(batching.most_samples));
  }
  return Status::OK;
}

}  // namespace

Status ReadBatching(Options* options) {
  const std::string& name = options->batching_parameters_file;
  if (!options->enable_batching) {
    if (!name.empty()) {
      options->notes.push_back("--batching-parameters-file is of --enable-batching, which is off");
    }
    return Status::OK;
  }
  options->batching.most_samples = kDefaultSamples;
  options->batching.wait = kDefaultWait;
  if (name.empty()) return Status::OK;
  tensorflow::serving::BatchingParameters file;
  if (Status status = ReadTextProto(name, &file); !status.ok()) return status;
  const Status status = Read(file, options);
  return status.ok() ? status : Bad("'" + name + "', " + status.error_message());
}

}  // namespace group_embedding::server
