// The signatures of a SavedModel: what a request gives and takes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tf/serving/session/input_parts.h"
#include "tf/serving/session/model_session.h"

namespace group_embedding {

class Signature {
 public:
  Signature() = default;
  Signature(std::string name, const tensorflow::SignatureDef& def,
            std::map<std::string, InputPart> parts);

  // Orders the tensors of a request by their names. Names, dtypes and shapes are checked.
  absl::Status Order(const NamedTensors& inputs, std::vector<tensorflow::Tensor>* ordered) const;
  // The graph's tensors that sessions need not be fed.
  void LeaveOut(const std::set<std::string>& unread);
  // Those that they are, in the order of `feeds`, out of ordered ones: copies, as TensorFlow's ops
  // want memory of their own alignment, and an answer may outlive what the request points to.
  std::vector<tensorflow::Tensor> Feed(const std::vector<tensorflow::Tensor>& ordered) const;
  // The graph's tensors of these outputs; none: of all, and `outputs` is their names then.
  absl::Status Find(std::vector<std::string>* outputs, std::vector<std::string>* fetches) const;
  const std::vector<std::string>& feeds() const { return feeds_; }

  std::string Json() const;

 private:
  struct Info {
    std::string tensor;
    size_t position;  // in the order of keys
    tensorflow::DataType dtype;
    tensorflow::PartialTensorShape shape;
  };

  absl::Status CheckInput(const std::string& key, const Info& info,
                          const tensorflow::Tensor& tensor) const;

  // More keys of Json for an input that is a part of a ragged or sparse tensor.
  std::string PartJson(const std::string& input) const;

  std::string name_, method_;
  std::map<std::string, Info> inputs_, outputs_;
  std::map<std::string, InputPart> parts_;  // by input
  std::vector<std::string> feeds_;          // the graph's tensors, in the order of keys
  std::vector<size_t> fed_;                 // positions of theirs
};

// The signatures that a request may name.
std::map<std::string, Signature> SignaturesOf(const tensorflow::MetaGraphDef& meta);

}  // namespace group_embedding
