#include "tf/serving/session/input_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensorflow/core/protobuf/saved_object_graph.pb.h"
#include "tensorflow/core/protobuf/struct.pb.h"

namespace group_embedding {
namespace {

using ::tensorflow::FunctionDef;
using ::tensorflow::MetaGraphDef;
using ::tensorflow::SavedObject;
using ::tensorflow::StructuredValue;
using ::tensorflow::TypeSpecProto;

// A part, and the position of its first one behind it.
struct Part {
  InputPart part;
  int first;  // position of the first part; -1: a dense tensor

  bool operator==(const Part& other) const {
    return part.part == other.part.part && part.level == other.part.level && first == other.first;
  }
};

void AddParts(const std::vector<std::pair<std::string, int>>& names, std::vector<Part>* parts) {
  const int first = static_cast<int>(parts->size());
  for (const auto& [name, level] : names) parts->push_back({{name, "", level}, first});
}

int RaggedRankOf(const TypeSpecProto& type) {
  const auto& state = type.type_state().tuple_value().values();
  return state.size() < 3 ? -1 : static_cast<int>(state.Get(2).int64_value());
}

void AddType(const TypeSpecProto& type, std::vector<Part>* parts) {
  const int count = type.num_flat_components();
  std::vector<std::pair<std::string, int>> names;
  if (type.type_spec_class() == TypeSpecProto::RAGGED_TENSOR_SPEC &&
      RaggedRankOf(type) == count - 1) {
    names.emplace_back("flat_values", 0);
    for (int level = 0; level + 1 < count; ++level) names.emplace_back("row_splits", level);
  } else if (type.type_spec_class() == TypeSpecProto::SPARSE_TENSOR_SPEC && count == 3) {
    names = {{"indices", 0}, {"values", 0}, {"dense_shape", 0}};
  } else {
    names.resize(count, {"unknown", 0});
  }
  AddParts(names, parts);
}

// The parts of arguments, in the order in which a function takes them.
void Flatten(const StructuredValue& value, std::vector<Part>* parts) {
  switch (value.kind_case()) {
    case StructuredValue::kTensorSpecValue:
    case StructuredValue::kBoundedTensorSpecValue:
      parts->push_back({{}, -1});
      break;
    case StructuredValue::kTypeSpecValue:
      AddType(value.type_spec_value(), parts);
      break;
    case StructuredValue::kListValue:
      for (const auto& one : value.list_value().values()) Flatten(one, parts);
      break;
    case StructuredValue::kTupleValue:
      for (const auto& one : value.tuple_value().values()) Flatten(one, parts);
      break;
    case StructuredValue::kNamedTupleValue:
      for (const auto& one : value.named_tuple_value().values()) Flatten(one.value(), parts);
      break;
    case StructuredValue::kDictValue: {
      const auto& fields = value.dict_value().fields();
      const std::map<std::string, StructuredValue> sorted(fields.begin(), fields.end());
      for (const auto& [key, one] : sorted) Flatten(one, parts);
      break;
    }
    default:  // a constant is no tensor
      break;
  }
}

const SavedObject* FindChild(const MetaGraphDef& meta, const SavedObject& parent,
                             const std::string& name) {
  const auto& nodes = meta.object_graph_def().nodes();
  for (const auto& child : parent.children()) {
    if (child.local_name() == name && child.node_id() >= 0 && child.node_id() < nodes.size()) {
      return &nodes.Get(child.node_id());
    }
  }
  return nullptr;
}

const FunctionDef* FindFunction(const MetaGraphDef& meta, const std::string& name) {
  for (const FunctionDef& function : meta.graph_def().library().function()) {
    if (function.signature().name() == name) return &function;
  }
  return nullptr;
}

// The function that exports a signature: it calls the one that was traced.
const SavedObject* FindWrapper(const MetaGraphDef& meta, const std::string& signature) {
  if (meta.object_graph_def().nodes().empty()) return nullptr;
  const SavedObject* all = FindChild(meta, meta.object_graph_def().nodes(0), "signatures");
  const SavedObject* one = all == nullptr ? nullptr : FindChild(meta, *all, signature);
  return one != nullptr && one->has_bare_concrete_function() ? one : nullptr;
}

// "__inference_serve_" of "__inference_serve_96": a function is written once for a signature, and
// once for callers of the object, each with a number.
std::string StemOf(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

// The arguments of the function that a node calls, by a traced function of its name and arguments;
// none if there is no such function, or functions of several types.
std::vector<Part> FindParts(const MetaGraphDef& meta, const tensorflow::NodeDef& node) {
  const auto called = node.attr().find("f");
  if (called == node.attr().end()) return {};
  const std::string stem = StemOf(called->second.func().name());
  std::vector<Part> found;
  for (const SavedObject& object : meta.object_graph_def().nodes()) {
    const auto& traced = object.bare_concrete_function();
    const auto& keywords = traced.argument_keywords();
    if (!object.has_bare_concrete_function() || keywords.size() > node.input_size() ||
        StemOf(traced.concrete_function_name()) != stem ||
        !std::equal(keywords.begin(), keywords.end(), node.input().begin())) {
      continue;
    }
    const auto& types = meta.object_graph_def().concrete_functions();
    const auto type = types.find(traced.concrete_function_name());
    if (type == types.end()) continue;
    std::vector<Part> parts;
    Flatten(type->second.canonicalized_input_signature(), &parts);
    if (static_cast<int>(parts.size()) != keywords.size()) continue;
    if (!found.empty() && found != parts) return {};
    found = std::move(parts);
  }
  return found;
}

}  // namespace

std::map<std::string, InputPart> FindInputParts(const MetaGraphDef& meta,
                                                const std::string& signature) {
  const SavedObject* wrapper = FindWrapper(meta, signature);
  if (wrapper == nullptr) return {};
  const auto& keys = wrapper->bare_concrete_function().argument_keywords();
  const FunctionDef* function =
      FindFunction(meta, wrapper->bare_concrete_function().concrete_function_name());
  if (function == nullptr || function->signature().input_arg_size() < keys.size()) return {};
  std::map<std::string, std::string> key_of;  // by the wrapper's argument
  for (int i = 0; i < keys.size(); ++i) {
    key_of[function->signature().input_arg(i).name()] = keys.Get(i);
  }
  std::map<std::string, InputPart> found;
  for (const auto& node : function->node_def()) {
    const std::vector<Part> parts = FindParts(meta, node);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto key = key_of.find(node.input(static_cast<int>(i)));
      if (key == key_of.end() || parts[i].first < 0) continue;
      InputPart& part = found[key->second] = parts[i].part;
      const auto first = key_of.find(node.input(parts[i].first));
      if (first != key_of.end()) part.of = first->second;
    }
  }
  return found;
}

}  // namespace group_embedding
