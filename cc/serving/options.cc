#include "serving/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "serving/json_reader.h"

namespace group_embedding {
namespace {

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
  } else if (key == "state") {
    options->state = reader->String();
  } else if (key == "tiers") {
    Status status = ReadTiers(reader->String(), options);
    if (!status.ok()) return status;
  } else {
    return "expected the options tensorflow, tags, version, quantize, threads, inter_op_threads, "
           "state and tiers, got '" +
           key + "'";
  }
  return reader->ok() ? Status() : "option '" + key + "': expected a value of another type";
}

// A number of bytes; -1: it is none.
int64_t ReadBytes(const std::string& text) {
  static const std::pair<const char*, double> units[] = {
      {"", 1},         {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number > 0)) return -1;
  for (const auto& [unit, bytes] : units) {
    if (std::string(end) == unit && number * bytes < 0x1p62) {
      return static_cast<int64_t>(number * bytes);
    }
  }
  return -1;
}

}  // namespace

Status ReadTiers(const std::string& text, ServingOptions* options) {
  const std::string expected =
      "option 'tiers': expected memory=SIZE,rocksdb=FOLDER, as "
      "memory=16GB,rocksdb=/var/rows, got '" +
      text + "'";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string tier = text.substr(begin, end - begin);
    const size_t equals = tier.find('=');
    if (equals == tier.npos) return expected;
    const std::string name = tier.substr(0, equals), value = tier.substr(equals + 1);
    if (name == "memory" && options->memory_bytes == 0) {
      options->memory_bytes = ReadBytes(value);
      if (options->memory_bytes < 1) return expected;
    } else if (name == "rocksdb" && options->rocksdb.empty() && !value.empty()) {
      options->rocksdb = value;
    } else {
      return expected;
    }
    begin = end + 1;
  }
  return options->memory_bytes > 0 && !options->rocksdb.empty() ? Status() : expected;
}

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
