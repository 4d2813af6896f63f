#include "serving/server/models/warm_up.h"

#include <cstring>
#include <fstream>

#include "serving/server/models/answers.h"
#include "table/file/crc32c.h"
#include "tensorflow_serving/apis/prediction_log.pb.h"

namespace group_embedding::server {
namespace {

namespace wire = tensorflow::serving;

constexpr int kMostRecords = 1000;  // TensorFlow Serving's limit
const char kFile[] = "assets.extra/tf_serving_warmup_requests";

// The checksum in a TFRecord file: tensorflow/core/lib/hash/crc32c.h, Mask.
uint32_t MaskedCrc(const void* data, size_t bytes) {
  const uint32_t crc = Crc32c(0, data, bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Reads `data` and the checksum behind it.
bool ReadChecked(std::istream& file, char* data, size_t bytes) {
  uint32_t crc = 0;
  return file.read(data, bytes) && file.read(reinterpret_cast<char*>(&crc), sizeof(crc)) &&
         crc == MaskedCrc(data, bytes);
}

Status Send(const ServedModel& served, int64_t most_bytes, const wire::PredictionLog& log) {
  wire::PredictResponse predicted;
  wire::ClassificationResponse classified;
  wire::RegressionResponse regressed;
  const Compute compute = [&](const Question& question, Response* response) {
    return served.model().Predict(question.signature, question.inputs, question.outputs,
                                  Deadline::max(), nullptr, response);
  };
  switch (log.log_type_case()) {
    case wire::PredictionLog::kPredictLog:
      return AnswerPredict(served, compute, most_bytes, log.predict_log().request(), &predicted);
    case wire::PredictionLog::kClassifyLog:
      return AnswerClassify(served, compute, log.classify_log().request(), &classified);
    case wire::PredictionLog::kRegressLog:
      return AnswerRegress(served, compute, log.regress_log().request(), &regressed);
    default:
      return Status(StatusCode::UNIMPLEMENTED, "expected predict_log, classify_log or regress_log");
  }
}

}  // namespace

Status SendWarmUpRequests(const ServedModel& served, int64_t most_bytes) {
  const std::string path = served.path() + "/" + kFile;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::OK;
  std::string record;
  for (int i = 0; file.peek() != std::ifstream::traits_type::eof(); ++i) {
    const auto failed = [&](StatusCode code, const std::string& what) {
      return Status(code, "'" + path + "', record " + std::to_string(i) + ": " + what);
    };
    if (i == kMostRecords) {
      return failed(StatusCode::INVALID_ARGUMENT, "expected at most 1000 records");
    }
    uint64_t bytes = 0;
    if (!ReadChecked(file, reinterpret_cast<char*>(&bytes), sizeof(bytes)) ||
        bytes > static_cast<uint64_t>(most_bytes)) {
      return failed(StatusCode::DATA_LOSS, "its length is damaged, or above --max-message-bytes");
    }
    record.resize(bytes);
    if (!ReadChecked(file, record.data(), bytes)) {
      return failed(StatusCode::DATA_LOSS, "its bytes do not match their checksum");
    }
    wire::PredictionLog log;
    if (!log.ParseFromString(record)) {
      return failed(StatusCode::DATA_LOSS, "expected a PredictionLog");
    }
    if (Status status = Send(served, most_bytes, log); !status.ok()) {
      return failed(status.error_code(), status.error_message());
    }
  }
  return Status::OK;
}

}  // namespace group_embedding::server
