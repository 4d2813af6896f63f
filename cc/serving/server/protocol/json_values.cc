#include "serving/server/protocol/json_values.h"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/stringbuffer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "serving/server/protocol/tensors.h"

namespace group_embedding::server {
namespace {

using rapidjson::Value;
using tensorflow::TensorProto;

constexpr size_t kMostDims = 32;  // nesting of lists

Status Bad(const std::string& what) { return Status(StatusCode::INVALID_ARGUMENT, what); }

Status Unexpected(const Value& value, const std::string& expected) {
  return Bad("expected " + expected + ", got " + KindOf(value));
}

Status ReadInteger(const Value& value, int32_t dtype, int64_t least, int64_t most, int64_t* read) {
  if (!value.IsInt64() || value.GetInt64() < least || value.GetInt64() > most) {
    return Unexpected(value, "a whole number of " + DtypeName(dtype));
  }
  *read = value.GetInt64();
  return Status::OK;
}

// float32 as float16 bits, rounded to the nearest even; too large values become infinity.
uint16_t HalfBits(float value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude == 0) return sign;  // which has no exponent
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A mantissa that rounds up carries into the exponent.
  return sign | static_cast<uint16_t>(units + (static_cast<uint32_t>(unit + 24) << 10));
}

uint16_t Bfloat16Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

size_t MostValuesOf(std::string_view json) {
  return 1 + std::count_if(json.begin(), json.end(),
                           [](char c) { return c == ',' || c == ':' || c == '[' || c == '{'; });
}

Status ParseObject(const std::string& text, rapidjson::Document* json) {
  using namespace rapidjson;  // flags
  json->Parse<kParseIterativeFlag | kParseNanAndInfFlag | kParseValidateEncodingFlag>(text.data(),
                                                                                      text.size());
  if (json->HasParseError()) {
    return Bad("JSON, byte " + std::to_string(json->GetErrorOffset()) + ": " +
               GetParseError_En(json->GetParseError()));
  }
  return json->IsObject() ? Status::OK : Unexpected(*json, "an object in the body");
}

const char* KindOf(const Value& value) {
  if (value.IsNull()) return "null";
  if (value.IsBool()) return "a boolean";
  if (value.IsString()) return "a string";
  if (value.IsArray()) return "a list";
  if (IsBytes(value)) return "a string of bytes";
  if (value.IsObject()) return "an object";
  return value.IsInt64() || value.IsUint64() ? "a whole number" : "a number";
}

bool IsBytes(const Value& value) {
  return value.IsString() || (value.IsObject() && value.MemberCount() == 1 &&
                              value.HasMember("b64") && value["b64"].IsString());
}

Status ReadBytes(const Value& value, std::string* bytes) {
  if (!IsBytes(value)) return Unexpected(value, "a string, or {\"b64\": \"...\"}");
  const Value& text = value.IsString() ? value : value["b64"];
  bytes->assign(text.GetString(), text.GetStringLength());
  if (value.IsString()) return Status::OK;
  const std::string encoded = *bytes;
  return FromBase64(encoded, bytes) ? Status::OK : Bad("expected base64 in \"b64\"");
}

Status AddElement(const Value& value, TensorProto* tensor) {
  const auto narrow = [&](int64_t least, int64_t most) {
    int64_t read = 0;
    Status status = ReadInteger(value, tensor->dtype(), least, most, &read);
    if (status.ok()) tensor->add_int_val(static_cast<int32_t>(read));
    return status;
  };
  const bool number = value.IsNumber();
  switch (tensor->dtype()) {
    case tensorflow::DT_FLOAT:
      if (!number) break;
      return tensor->add_float_val(static_cast<float>(value.GetDouble())), Status::OK;
    case tensorflow::DT_DOUBLE:
      if (!number) break;
      return tensor->add_double_val(value.GetDouble()), Status::OK;
    case tensorflow::DT_HALF:
      if (!number) break;
      return tensor->add_half_val(HalfBits(static_cast<float>(value.GetDouble()))), Status::OK;
    case tensorflow::DT_BFLOAT16:
      if (!number) break;
      return tensor->add_half_val(Bfloat16Bits(static_cast<float>(value.GetDouble()))), Status::OK;
    case tensorflow::DT_INT64:
      if (!value.IsInt64()) break;
      return tensor->add_int64_val(value.GetInt64()), Status::OK;
    case tensorflow::DT_UINT64:
      if (!value.IsUint64()) break;
      return tensor->add_uint64_val(value.GetUint64()), Status::OK;
    case tensorflow::DT_UINT32:
      if (!value.IsUint()) break;
      return tensor->add_uint32_val(value.GetUint()), Status::OK;
    case tensorflow::DT_INT32:
      return narrow(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
    case tensorflow::DT_INT16:
      return narrow(-32768, 32767);
    case tensorflow::DT_INT8:
      return narrow(-128, 127);
    case tensorflow::DT_UINT16:
      return narrow(0, 65535);
    case tensorflow::DT_UINT8:
      return narrow(0, 255);
    case tensorflow::DT_BOOL:
      if (!value.IsBool()) break;
      return tensor->add_bool_val(value.GetBool()), Status::OK;
    case tensorflow::DT_STRING:
      return ReadBytes(value, tensor->add_string_val());
    default:
      return Bad("REST has no values of " + DtypeName(tensor->dtype()));
  }
  return Unexpected(value, "a value of " + DtypeName(tensor->dtype()));
}

namespace {

Status AddNested(const Value& value, size_t depth, std::vector<int64_t>* dims, bool first,
                 TensorProto* tensor) {
  if (!value.IsArray()) {
    if (depth == dims->size()) return AddElement(value, tensor);
    return Unexpected(value, "lists nested " + std::to_string(dims->size()) + " deep everywhere");
  }
  if (depth == kMostDims) return Bad("expected lists nested at most 32 deep");
  const int64_t size = value.Size();
  if (depth == dims->size()) {
    if (!first) return Bad("expected a value, got a list: lists are nested unevenly");
    dims->push_back(size);
  }
  if ((*dims)[depth] != size) {
    return Bad("expected lists of one length in dim " + std::to_string(depth) + ", got " +
               std::to_string((*dims)[depth]) + " and " + std::to_string(size));
  }
  for (rapidjson::SizeType i = 0; i < value.Size(); ++i) {
    Status status = AddNested(value[i], depth + 1, dims, first && i == 0, tensor);
    if (!status.ok()) return status;
  }
  return Status::OK;
}

}  // namespace

Status AddElements(const Value& value, std::vector<int64_t>* dims, TensorProto* tensor) {
  return AddNested(value, 0, dims, true, tensor);
}

namespace {

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int DigitOf(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

bool IsUtf8(const std::string& text) {
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::StringBuffer copy;
  while (stream.Tell() < text.size()) {
    if (!rapidjson::UTF8<>::Validate(stream, copy)) return false;
  }
  return stream.Tell() == text.size();
}

std::string ToBase64(const std::string& bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t triple = 0;
    for (size_t k = 0; k < 3; ++k) {
      triple = triple << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (int k = 3; k >= 0; --k) text += kDigits[triple >> (6 * k) & 63];
  }
  for (size_t pad = (3 - bytes.size() % 3) % 3; pad > 0; --pad) text[text.size() - pad] = '=';
  return text;
}

bool FromBase64(const std::string& text, std::string* bytes) {
  if (text.size() % 4 != 0) return false;
  size_t size = text.size();
  for (int pad = 0; pad < 2 && size > 0 && text[size - 1] == '='; ++pad) --size;
  bytes->clear();
  uint32_t bits = 0;
  int num_bits = 0;
  for (size_t i = 0; i < size; ++i) {
    const int digit = DigitOf(text[i]);
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    *bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return true;
}

}  // namespace group_embedding::server
