// Tensors of requests: TensorFlow's and those of the Open Inference Protocol. What is taken is as
// large as its shape, and comes back as it was.
#include "parts.h"
#include "serving/server/protocol/inference_messages.h"
#include "serving/server/protocol/tensors.h"

using namespace group_embedding::server;

namespace {

constexpr int64_t kMostBytes = 1 << 20;

int64_t BytesOf(const GeTensor& tensor) {
  if (tensor.dtype == GE_STRING) {
    const auto* strings = static_cast<const GeString*>(tensor.data);
    unsigned sum = 0;
    for (int64_t i = 0; i < NumElements(tensor); ++i) {
      for (size_t at = 0; at < strings[i].size; ++at) sum += strings[i].data[at];  // ASan looks
    }
    return static_cast<int64_t>(sum & 0);
  }
  const auto* bytes = static_cast<const char*>(tensor.data);
  unsigned sum = 0;
  for (size_t at = 0; at < tensor.bytes; ++at) sum += bytes[at];
  return static_cast<int64_t>(tensor.bytes + (sum & 0));
}

void Take(const tensorflow::serving::PredictRequest& message) {
  InputTensors tensors(kMostBytes);
  for (const auto& [name, proto] : message.inputs()) {
    if (!tensors.Add(name, proto).ok()) return;
  }
  int64_t bytes = 0;
  for (const GeTensor& tensor : tensors.tensors()) {
    EXPECT(NumElements(tensor) >= 0);
    bytes += BytesOf(tensor);
    tensorflow::TensorProto back;
    if (!ToProto(tensor, &back).ok()) continue;
    InputTensors again(kMostBytes);
    EXPECT(again.Add("again", back).ok());
    EXPECT(NumElements(again.tensors()[0]) == NumElements(tensor));
    std::string raw;
    WriteContent(back, &raw);
  }
  EXPECT(bytes <= kMostBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto silent = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(silent);
  Parts parts(data, size);
  const bool is_inference = (parts.Byte() & 1) != 0;
  const std::string bytes = parts.Rest();
  tensorflow::serving::PredictRequest predict;
  if (!is_inference) {
    if (predict.ParseFromString(bytes)) Take(predict);
    return 0;
  }
  inference::ModelInferRequest request;
  if (request.ParseFromString(bytes) && ToPredict(request, &predict).ok()) Take(predict);
  return 0;
}
