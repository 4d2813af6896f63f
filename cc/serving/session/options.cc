#include "serving/session/options.h"

#include <cstdio>

#include "serving/session/json_reader.h"

namespace group_embedding {
namespace {

// "CPU", "GPU" or "GPU:1"; TensorFlow's "/device:GPU:1", too. -2: none of these.
int32_t GpuOf(std::string device) {
  if (device.rfind("/device:", 0) == 0) device = device.substr(8);
  if (device == "CPU" || device == "CPU:0") return -1;
  if (device == "GPU") return 0;
  const std::string number = device.rfind("GPU:", 0) == 0 ? device.substr(4) : "";
  const bool is_number = number.find_first_not_of("0123456789") == number.npos;
  return number.empty() || number.size() > 3 || !is_number ? -2 : std::stoi(number);
}

Status ReadDevices(const std::vector<std::string>& devices, ServingOptions* options) {
  options->gpu = devices.size() == 1 ? GpuOf(devices[0]) : -2;
  if (options->gpu > -2) return {};
  std::string got;
  for (const std::string& device : devices) got += (got.empty() ? "" : ", ") + device;
  return "option 'devices': expected one device, as CPU, GPU or GPU:1, got '" + got + "'";
}

Status ReadOne(const std::string& key, JsonReader* reader, ServingOptions* options) {
  if (key == "tensorflow") {
    options->tensorflow = reader->String();
  } else if (key == "tags") {
    options->tags = reader->Strings();
  } else if (key == "version") {
    options->version = reader->Integer();
    if (*options->version < 0) return "option 'version': expected an integer >= 0";
  } else if (key == "quantize") {
    const std::string word = reader->String();
    const auto format = Parse(RowFormatWords(), word);
    if (!format || *format == RowFormat::kFloat32 || *format == RowFormat::kFloat16) {
      return "option 'quantize': expected int8, fp8 or bfloat16, got '" + word + "'";
    }
    options->quantize = *format;
  } else if (key == "threads") {
    const int64_t threads = reader->Integer();
    if (threads < 1 || threads > 4096) return "option 'threads': expected 1 to 4096";
    options->threads = static_cast<int32_t>(threads);
  } else if (key == "inter_op_threads") {
    const int64_t threads = reader->Integer();
    if (threads < 0 || threads > 4096) return "option 'inter_op_threads': expected 0 to 4096";
    options->inter_op_threads = static_cast<int32_t>(threads);
  } else if (key == "devices") {
    Status status = ReadDevices(reader->Strings(), options);
    if (!status.ok()) return status;
  } else if (key == "state") {
    options->state = reader->String();
  } else if (key == "tiers") {
    Status status = ReadTiers(reader->String(), &options->tiers);
    if (!status.ok()) return status;
  } else {
    return "expected the options tensorflow, tags, version, quantize, threads, inter_op_threads, "
           "devices, state and tiers, got '" +
           key + "'";
  }
  return reader->ok() ? Status() : "option '" + key + "': expected a value of another type";
}

}  // namespace

Status ReadOptions(const std::string& json, ServingOptions* options) {
  JsonReader reader(json);
  if (reader.AtEnd()) return {};
  reader.Require('{');
  bool more = reader.ok() && !reader.Take('}');
  while (more) {
    const std::string key = reader.String();
    reader.Require(':');
    if (!reader.ok()) break;
    if (!reader.TakeNull()) {  // null: the default
      Status status = ReadOne(key, &reader, options);
      if (!status.ok()) return status;
    }
    more = reader.Take(',');
    if (!more) reader.Require('}');
  }
  if (reader.ok() && reader.AtEnd()) return {};
  return "options: expected one JSON object, got another text at byte " +
         std::to_string(reader.at());
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace group_embedding
