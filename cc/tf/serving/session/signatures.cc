#include "tf/serving/session/signatures.h"

#include <utility>

#include "serving/session/options.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataTypeString;
using ::tensorflow::Tensor;

template <typename Infos>
std::string KeysOf(const Infos& infos) {
  std::string keys;
  for (const auto& [key, info] : infos) keys += (keys.empty() ? "" : ", ") + key;
  return keys.empty() ? "none" : keys;
}

}  // namespace

Signature::Signature(std::string name, const tensorflow::SignatureDef& def,
                     std::map<std::string, InputPart> parts)
    : name_(std::move(name)), method_(def.method_name()), parts_(std::move(parts)) {
  auto read = [](const auto& from, std::map<std::string, Info>* to) {
    for (const auto& [key, info] : from) {
      Info& own = (*to)[key];
      own = {info.name(), 0, info.dtype(), {}};
      // A shape that is none is left unknown: TensorFlow checks what is fed.
      tensorflow::PartialTensorShape shape;
      if (tensorflow::PartialTensorShape::BuildPartialTensorShape(info.tensor_shape(), &shape)
              .ok()) {
        own.shape = shape;
      }
    }
  };
  read(def.inputs(), &inputs_);
  read(def.outputs(), &outputs_);
  for (auto& [key, info] : inputs_) {
    info.position = feeds_.size();
    fed_.push_back(info.position);
    feeds_.push_back(info.tensor);
  }
}

void Signature::LeaveOut(const std::set<std::string>& unread) {
  feeds_.clear();
  fed_.clear();
  for (const auto& [key, info] : inputs_) {
    if (unread.count(info.tensor) > 0) continue;
    fed_.push_back(info.position);
    feeds_.push_back(info.tensor);
  }
}

std::vector<Tensor> Signature::Feed(const std::vector<Tensor>& ordered) const {
  std::vector<Tensor> fed;
  fed.reserve(fed_.size());
  for (const size_t position : fed_) {
    const Tensor& tensor = ordered[position];
    const bool is_own = tensor.dtype() == tensorflow::DT_STRING;
    fed.push_back(is_own ? tensor : tensorflow::tensor::DeepCopy(tensor));
  }
  return fed;
}

absl::Status Signature::CheckInput(const std::string& key, const Info& info,
                                   const Tensor& tensor) const {
  const auto where = [&] { return "signature '" + name_ + "', input '" + key + "': expected "; };
  if (tensor.dtype() != info.dtype) {
    return absl::InvalidArgumentError(where() + DataTypeString(info.dtype) + ", got " +
                                      DataTypeString(tensor.dtype()));
  }
  if (!info.shape.IsCompatibleWith(tensor.shape())) {
    return absl::InvalidArgumentError(where() + "shape " + info.shape.DebugString() + ", got " +
                                      tensor.shape().DebugString());
  }
  return absl::OkStatus();
}

absl::Status Signature::Order(const NamedTensors& inputs, std::vector<Tensor>* ordered) const {
  std::vector<bool> given(inputs_.size());
  ordered->resize(inputs_.size());
  for (const auto& [key, tensor] : inputs) {
    const auto found = inputs_.find(key);
    if (found == inputs_.end()) {
      return absl::InvalidArgumentError("signature '" + name_ + "': expected the inputs " +
                                        KeysOf(inputs_) + ", got '" + key + "'");
    }
    const Info& info = found->second;
    if (given[info.position]) {
      return absl::InvalidArgumentError("signature '" + name_ + "': expected input '" + key +
                                        "' once");
    }
    TF_RETURN_IF_ERROR(CheckInput(key, info, tensor));
    given[info.position] = true;
    (*ordered)[info.position] = tensor;
  }
  for (const auto& [key, info] : inputs_) {
    if (given[info.position]) continue;
    return absl::InvalidArgumentError("signature '" + name_ + "': expected the inputs " +
                                      KeysOf(inputs_) + ", but '" + key + "' is missing");
  }
  return absl::OkStatus();
}

absl::Status Signature::Find(std::vector<std::string>* outputs,
                             std::vector<std::string>* fetches) const {
  if (outputs->empty()) {
    for (const auto& [key, info] : outputs_) outputs->push_back(key);
  }
  for (const std::string& key : *outputs) {
    const auto found = outputs_.find(key);
    if (found == outputs_.end()) {
      return absl::InvalidArgumentError("signature '" + name_ + "': expected some of the outputs " +
                                        KeysOf(outputs_) + ", got '" + key + "'");
    }
    fetches->push_back(found->second.tensor);
  }
  return absl::OkStatus();
}

std::string Signature::PartJson(const std::string& input) const {
  const auto found = parts_.find(input);
  if (found == parts_.end()) return "";
  const InputPart& part = found->second;
  return ", \"part\": " + Quoted(part.part) + ", \"of\": " + Quoted(part.of) +
         ", \"level\": " + std::to_string(part.level);
}

std::string Signature::Json() const {
  auto tensors = [this](const std::map<std::string, Info>& infos, bool are_inputs) {
    std::string json = "{";
    for (const auto& [key, info] : infos) {
      json += (json.size() > 1 ? ", " : "") + Quoted(key) + ": {\"name\": " + Quoted(info.tensor) +
              ", \"dtype\": " + std::to_string(info.dtype) + ", \"shape\": ";
      if (info.shape.unknown_rank()) {
        json += "null";
      } else {
        json += "[";
        for (int d = 0; d < info.shape.dims(); ++d) {
          json += (d > 0 ? ", " : "") + std::to_string(info.shape.dim_size(d));
        }
        json += "]";
      }
      json += (are_inputs ? PartJson(key) : "") + "}";
    }
    return json + "}";
  };
  return "{\"method_name\": " + Quoted(method_) + ", \"inputs\": " + tensors(inputs_, true) +
         ", \"outputs\": " + tensors(outputs_, false) + "}";
}

std::map<std::string, Signature> SignaturesOf(const tensorflow::MetaGraphDef& meta) {
  std::map<std::string, Signature> signatures;
  for (const auto& [name, def] : meta.signature_def()) {
    if (name.rfind("__saved_model_", 0) != 0)
      signatures[name] = Signature(name, def, FindInputParts(meta, name));
  }
  return signatures;
}

}  // namespace group_embedding
