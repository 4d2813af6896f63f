// Bodies of REST as messages: numbers and strings of any nesting, for each kind of body.
#include "parts.h"
#include "serving/server/protocol/json_requests.h"
#include "serving/server/protocol/json_values.h"
#include "serving/server/protocol/tensors.h"

using namespace group_embedding::server;

namespace {

constexpr char kSignatures[] = R"({"serving_default": {"method_name": "m", "inputs": {
    "x": {"name": "x:0", "dtype": 1, "shape": [-1, 3]}, "n": {"name": "n:0", "dtype": 9, "shape": [-1]},
    "s": {"name": "s:0", "dtype": 7, "shape": null}, "b": {"name": "b:0", "dtype": 10, "shape": []}},
    "outputs": {}}, "one": {"method_name": "m", "inputs": {
    "t": {"name": "t:0", "dtype": 6, "shape": null}}, "outputs": {}}})";

const Signatures& Known() {
  static const Signatures* const known = [] {
    auto* read = new Signatures;
    EXPECT(ParseSignatures(kSignatures, read).ok());
    return read;
  }();
  return *known;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parts parts(data, size);
  const bool is_one = (parts.Byte() & 1) != 0;
  const std::string text = parts.Rest();
  Signatures any;
  static_cast<void>(ParseSignatures(text, &any));
  rapidjson::Document body;
  if (!ParseObject(text, &body).ok()) return 0;
  std::string name;
  static_cast<void>(ReadSignatureName(body, &name));
  tensorflow::serving::Input examples;
  static_cast<void>(ReadExamplesBody(body, &examples));
  tensorflow::serving::PredictRequest message;
  JsonFormat format;
  const Signature& signature = Known().at(is_one ? "one" : "serving_default");
  if (!ReadPredictBody(body, signature, &message, &format).ok()) return 0;
  // What is read are tensors: as many elements as their shapes say.
  InputTensors tensors(1 << 20);
  for (const auto& [input, proto] : message.inputs()) {
    EXPECT(signature.inputs.count(input) == 1);
    if (!tensors.Add(input, proto).ok()) return 0;
  }
  return 0;
}
