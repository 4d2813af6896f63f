#include <cstdio>

#include "serving/server/operations/live.h"
#include "serving/server/operations/log.h"
#include "serving/server/operations/model_info.h"

namespace group_embedding::server {
namespace {

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Number(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Seconds(std::optional<double> seconds) {
  return seconds ? Number("%.1f s", *seconds) : "not known";
}

std::string Bytes(int64_t bytes) {
  if (bytes < 10'000) return std::to_string(bytes) + " B";
  if (bytes < 10'000'000) return Number("%.1f kB", bytes * 1e-3);
  return Number("%.1f MB", bytes * 1e-6);
}

std::string Row(const std::vector<std::string>& cells, const char* tag) {
  std::string row = "<tr>";
  for (const std::string& cell : cells)
    row += std::string("<") + tag + ">" + Escape(cell) + "</" + tag + ">";
  return row + "</tr>\n";
}

std::string TablesOf(const ModelInfo& info) {
  std::string html = "<table>" + Row({"table", "rows", "dim", "storage", "bytes"}, "th");
  for (const TableInfo& table : info.tables) {
    html += Row({table.name, std::to_string(table.rows), std::to_string(table.dim), table.storage,
                 Bytes(table.bytes)},
                "td");
  }
  return html + "</table>\n";
}

// The share of keys that had rows; "" without any.
std::string Percent(int64_t part, int64_t all) {
  return all == 0 ? "" : Number("%.1f%%", 100.0 * static_cast<double>(part) / all);
}

// The tables whose rows are below memory.
std::string TiersOf(const ModelInfo& info) {
  std::string rows;
  for (const TableInfo& table : info.tables) {
    if (!table.tier) continue;
    const TierInfo& tier = *table.tier;
    rows +=
        Row({table.name, tier.tier, std::to_string(tier.in_memory), std::to_string(tier.below),
             Percent(tier.in_memory, tier.in_memory + tier.below), std::to_string(tier.absent),
             std::to_string(tier.defaulted), std::to_string(tier.timeouts),
             std::to_string(tier.failures), std::to_string(tier.cached), Bytes(tier.cached_bytes),
             std::to_string(tier.evicted), std::to_string(tier.expired)},
            "td");
  }
  if (rows.empty()) return "";
  return "<table>" +
         Row({"table", "tier", "keys in memory", "below", "hits", "absent", "defaults", "timeouts",
              "failures", "rows in memory", "bytes", "evicted", "expired"},
             "th") +
         rows + "</table>\n";
}

std::string SourceOf(const ModelVersions& versions) {
  const SourceState source = versions.source();
  const std::string& url = versions.config().source;
  std::string html = "<p>source: " + Escape(url.empty() ? versions.config().path : url);
  if (source.newest_version >= 0)
    html += ", newest version " + std::to_string(source.newest_version);
  if (source.last_seen > 0) html += ", seen " + Seconds(Now() - source.last_seen) + " ago";
  if (!source.up) html += ", <b>away</b>";
  if (!source.error.empty()) html += "<br><b>" + Escape(source.error) + "</b>";
  return html + "</p>\n";
}

std::string ModelOf(const std::string& name, const ModelVersions& versions) {
  std::string html = "<h2>" + Escape(name) + "</h2>\n" + SourceOf(versions);
  const RecentLatency recent = versions.counts().Recent();
  html +=
      "<table>" + Row({"requests", "errors", "requests/s, last minute", "p50", "p99"}, "th") +
      Row({std::to_string(versions.counts().Total()), std::to_string(versions.counts().Errors()),
           Number("%.1f", recent.requests_per_second), Number("%.2f ms", recent.p50_seconds * 1e3),
           Number("%.2f ms", recent.p99_seconds * 1e3)},
          "td") +
      "</table>\n";
  html += "<table>" + Row({"version", "state", "message"}, "th");
  for (const VersionState& state : versions.States(-1)) {
    const char* words = state.state == VersionState::kAvailable   ? "available"
                        : state.state == VersionState::kLoading   ? "loading"
                        : state.state == VersionState::kUnloading ? "unloading"
                                                                  : "ended";
    html += Row({std::to_string(state.version), words, state.status.error_message()}, "td");
  }
  html += "</table>\n";
  for (const auto& served : versions.Served()) {
    ModelInfo info;
    if (!ReadModelInfo(served->model(), &info).ok()) continue;
    html += "<p>version " + std::to_string(info.version) + " from " + Escape(info.path) +
            ", base " + std::to_string(info.base_version) + ", published " +
            Seconds(info.staleness_seconds) + (info.staleness_seconds ? " ago" : "") + ", memory " +
            Bytes(info.memory_bytes) + "</p>\n" + TablesOf(info) + TiersOf(info);
  }
  return html;
}

}  // namespace

std::string LivePage(const Models& models) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"refresh\" content=\"2\"><title>ge-serve</title>\n"
      "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:.5em 0}"
      "td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}</style></head><body>\n"
      "<h1>ge-serve</h1>\n<p>" +
      std::to_string(models.gate().running()) + " requests are computed, " +
      std::to_string(models.gate().waiting()) + " wait. <a href=\"/metrics\">metrics</a></p>\n";
  for (const auto& [name, versions] : models.by_name()) html += ModelOf(name, *versions);
  return html + "</body></html>\n";
}

}  // namespace group_embedding::server
