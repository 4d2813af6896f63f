#include "serving/server/operations/model_info.h"

#include <rapidjson/document.h>

namespace group_embedding::server {
namespace {

using rapidjson::Value;

int64_t Integer(const Value& object, const char* key) {
  return object.HasMember(key) && object[key].IsInt64() ? object[key].GetInt64() : 0;
}

std::string Text(const Value& object, const char* key) {
  return object.HasMember(key) && object[key].IsString() ? object[key].GetString() : "";
}

std::optional<TierInfo> ReadTier(const Value& table) {
  const std::string tier = Text(table, "tier");
  if (tier.empty()) return std::nullopt;
  TierInfo info;
  info.tier = tier.substr(0, tier.find('='));
  info.in_memory = Integer(table, "in_memory");
  info.below = Integer(table, "below");
  info.absent = Integer(table, "absent");
  info.defaulted = Integer(table, "defaulted");
  info.failures = Integer(table, "failures");
  info.timeouts = Integer(table, "timeouts");
  info.evicted = Integer(table, "evicted");
  info.expired = Integer(table, "expired");
  info.cached = Integer(table, "cached");
  info.cached_bytes = Integer(table, "cached_bytes");
  if (table.HasMember("read_seconds") && table["read_seconds"].IsNumber()) {
    info.read_seconds = table["read_seconds"].GetDouble();
  }
  if (!table.HasMember("reads") || !table["reads"].IsArray()) return info;
  for (const Value& count : table["reads"].GetArray()) {
    info.reads.push_back(count.IsInt64() ? count.GetInt64() : 0);
  }
  return info;
}

}  // namespace

Status ReadModelInfo(const OpenModel& model, ModelInfo* info) {
  std::string text;
  if (Status status = model.Info(&text); !status.ok()) return status;
  rapidjson::Document json;
  json.Parse<rapidjson::kParseIterativeFlag>(text.data(), text.size());
  if (json.HasParseError() || !json.IsObject()) {
    return Status(StatusCode::INTERNAL,
                  "libge_serving described the model as " + text.substr(0, 200));
  }
  info->version = Integer(json, "version");
  info->base_version = Integer(json, "base_version");
  info->memory_bytes = Integer(json, "memory_bytes");
  info->path = Text(json, "path");
  if (json.HasMember("step") && json["step"].IsInt64()) info->step = json["step"].GetInt64();
  if (json.HasMember("staleness_seconds") && json["staleness_seconds"].IsNumber()) {
    info->staleness_seconds = json["staleness_seconds"].GetDouble();
  }
  if (!json.HasMember("tables") || !json["tables"].IsArray()) return Status::OK;
  for (const Value& table : json["tables"].GetArray()) {
    if (!table.IsObject()) continue;
    info->tables.push_back({Text(table, "name"), Text(table, "storage"), Integer(table, "rows"),
                            Integer(table, "dim"), Integer(table, "bytes"), ReadTier(table)});
  }
  return Status::OK;
}

}  // namespace group_embedding::server
