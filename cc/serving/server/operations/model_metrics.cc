#include "serving/server/operations/live.h"
#include "serving/server/operations/log.h"
#include "serving/server/operations/model_info.h"
#include "serving/server/operations/tier_metrics.h"

namespace group_embedding::server {
namespace {

std::string ModelLabel(const std::string& name) { return PrometheusText::Label("model", name); }

void RequestMetrics(const Models& models, PrometheusText* text) {
  text->Metric("ge_serve_requests_total", "counter", "Requests that were answered, by code.");
  for (const auto& [name, versions] : models.by_name()) {
    for (size_t m = 0; m < kMethodNames.size(); ++m) {
      for (int code = 0; code < RequestCounts::kCodes; ++code) {
        const int64_t count = versions->counts().Count(static_cast<Method>(m), code);
        if (count == 0 && code != 0) continue;
        text->Sample("ge_serve_requests_total",
                     ModelLabel(name) + "," + PrometheusText::Label("method", kMethodNames[m]) +
                         "," + PrometheusText::Label("code", CodeName(code)),
                     count);
      }
    }
  }
  text->Metric("ge_serve_request_seconds", "histogram",
               "Seconds from a request's arrival, with its wait at the gate, to its answer.");
  for (const auto& [name, versions] : models.by_name()) {
    text->Histogram("ge_serve_request_seconds", ModelLabel(name), versions->counts().latencies());
  }
  text->Metric("ge_serve_requests_running", "gauge", "Requests that are computed.");
  text->Sample("ge_serve_requests_running", "", models.gate().running());
  text->Metric("ge_serve_requests_waiting", "gauge", "Requests that wait at the gate.");
  text->Sample("ge_serve_requests_waiting", "", models.gate().waiting());
  text->Metric("ge_serve_joined_requests_total", "counter", "Requests computed with others.");
  text->Sample("ge_serve_joined_requests_total", "", models.joiner().joined());
  text->Metric("ge_serve_joined_runs_total", "counter", "Runs that computed several requests.");
  text->Sample("ge_serve_joined_runs_total", "", models.joiner().runs());
}

void SourceMetrics(const Models& models, PrometheusText* text) {
  const auto each = [&](const char* name, const char* type, const char* help, auto value) {
    text->Metric(name, type, help);
    for (const auto& [model, versions] : models.by_name()) {
      text->Sample(name, ModelLabel(model), value(versions->source()));
    }
  };
  each("ge_serve_source_up", "gauge", "1 if the last look at the model's source succeeded.",
       [](const SourceState& source) { return source.up ? 1.0 : 0.0; });
  each("ge_serve_source_version", "gauge", "The newest version in the source; -1: none was seen.",
       [](const SourceState& source) { return static_cast<double>(source.newest_version); });
  each("ge_serve_source_failures_total", "counter", "Looks that failed, and versions not taken.",
       [](const SourceState& source) { return static_cast<double>(source.failures); });
  each("ge_serve_source_seen_seconds", "gauge",
       "Seconds since 1970 of the last look that succeeded.",
       [](const SourceState& source) { return source.last_seen; });
}

struct Described {
  std::string model;
  ModelInfo info;
};

std::string TableLabels(const std::string& of_model, const TableInfo& table) {
  return of_model + "," + PrometheusText::Label("table", table.name);
}

void VersionMetrics(const Models& models, PrometheusText* text) {
  std::vector<Described> all;
  for (const auto& [name, versions] : models.by_name()) {
    for (const auto& served : versions->Served()) {
      Described described{name, {}};
      if (ReadModelInfo(served->model(), &described.info).ok()) all.push_back(described);
    }
  }
  const auto labels = [](const Described& one) {
    return ModelLabel(one.model) + "," +
           PrometheusText::Label("base", std::to_string(one.info.base_version));
  };
  text->Metric("ge_serve_model_version", "gauge", "The version that answers.");
  for (const Described& one : all)
    text->Sample("ge_serve_model_version", labels(one), one.info.version);
  text->Metric("ge_serve_model_staleness_seconds", "gauge",
               "Seconds since the version was published.");
  for (const Described& one : all) {
    if (!one.info.staleness_seconds) continue;
    text->Sample("ge_serve_model_staleness_seconds", labels(one), *one.info.staleness_seconds);
  }
  text->Metric("ge_serve_model_bytes", "gauge", "Memory of the model.");
  for (const Described& one : all)
    text->Sample("ge_serve_model_bytes", labels(one), one.info.memory_bytes);
  text->Metric("ge_serve_table_bytes", "gauge", "Memory of a table.");
  for (const Described& one : all) {
    for (const TableInfo& table : one.info.tables) {
      text->Sample("ge_serve_table_bytes", TableLabels(labels(one), table), table.bytes);
    }
  }
  text->Metric("ge_serve_table_rows", "gauge", "Rows of a table.");
  std::vector<LabelledTier> tiers;
  for (const Described& one : all) {
    for (const TableInfo& table : one.info.tables) {
      text->Sample("ge_serve_table_rows", TableLabels(labels(one), table), table.rows);
      if (table.tier) tiers.push_back({TableLabels(labels(one), table), *table.tier});
    }
  }
  TierMetrics(tiers, text);
}

}  // namespace

std::string Metrics(const Models& models) {
  PrometheusText text;
  RequestMetrics(models, &text);
  SourceMetrics(models, &text);
  VersionMetrics(models, &text);
  return text.text();
}

}  // namespace group_embedding::server
