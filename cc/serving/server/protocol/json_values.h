// JSON that was parsed, its values as elements of tensors, and base64.
#pragma once

#include <rapidjson/document.h>

#include <string>
#include <string_view>
#include <vector>

#include "serving/server/models/serving_library.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace group_embedding::server {

// How many values a text has at most, keys of objects among them. Each but the first stands behind
// a comma, a colon or a bracket, some of which may be in strings.
size_t MostValuesOf(std::string_view json);

// An object, with NaN and Infinity allowed as TensorFlow Serving does. The error has the place.
Status ParseObject(const std::string& text, rapidjson::Document* json);

// What a value is, for errors: "a string", "a list".
const char* KindOf(const rapidjson::Value& value);

// A JSON string, or {"b64": "..."}.
bool IsBytes(const rapidjson::Value& value);
Status ReadBytes(const rapidjson::Value& value, std::string* bytes);

// Adds one element to the field of the tensor's dtype.
Status AddElement(const rapidjson::Value& value, tensorflow::TensorProto* tensor);

// Adds nested lists, whose dims become `dims`, or an element for a scalar. All lists of a depth
// have one length.
Status AddElements(const rapidjson::Value& value, std::vector<int64_t>* dims,
                   tensorflow::TensorProto* tensor);

bool IsUtf8(const std::string& text);
std::string ToBase64(const std::string& bytes);
bool FromBase64(const std::string& text, std::string* bytes);

}  // namespace group_embedding::server
