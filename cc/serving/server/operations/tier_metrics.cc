#include "serving/server/operations/tier_metrics.h"

namespace group_embedding::server {
namespace {

struct TierMetric {
  const char *name, *type, *help;
  int64_t TierInfo::*value;
};

constexpr TierMetric kMetrics[] = {
    {"ge_serve_tier_defaults_total", "counter",
     "Keys that read the default row since the tier below memory failed or was late.",
     &TierInfo::defaulted},
    {"ge_serve_tier_timeouts_total", "counter",
     "Reads of the tier below memory that were not done at the request's deadline.",
     &TierInfo::timeouts},
    {"ge_serve_tier_failures_total", "counter", "Reads of the tier below memory that failed.",
     &TierInfo::failures},
    {"ge_serve_cache_rows", "gauge", "Rows of the base that are in memory.", &TierInfo::cached},
    {"ge_serve_cache_bytes", "gauge", "Bytes of these rows.", &TierInfo::cached_bytes},
    {"ge_serve_cache_evicted_total", "counter", "Keys that left memory for others.",
     &TierInfo::evicted},
    {"ge_serve_cache_expired_total", "counter",
     "Keys that left memory since nobody asked for them.", &TierInfo::expired}};

}  // namespace

void TierMetrics(const std::vector<LabelledTier>& tiers, PrometheusText* text) {
  if (tiers.empty()) return;
  text->Metric("ge_serve_tier_keys_total", "counter",
               "Keys of answers, by where their rows were found: memory, the tier below, nowhere.");
  for (const LabelledTier& one : tiers) {
    const auto sample = [&](const std::string& where, int64_t keys) {
      text->Sample("ge_serve_tier_keys_total",
                   one.labels + "," + PrometheusText::Label("found", where), keys);
    };
    sample("memory", one.info.in_memory);
    sample(one.info.tier, one.info.below);
    sample("nowhere", one.info.absent);
  }
  for (const TierMetric& metric : kMetrics) {
    text->Metric(metric.name, metric.type, metric.help);
    for (const LabelledTier& one : tiers) {
      text->Sample(metric.name, one.labels + "," + PrometheusText::Label("tier", one.info.tier),
                   one.info.*metric.value);
    }
  }
  text->Metric("ge_serve_tier_seconds", "histogram", "Seconds of reads of the tier below memory.");
  for (const LabelledTier& one : tiers) {
    text->Histogram("ge_serve_tier_seconds",
                    one.labels + "," + PrometheusText::Label("tier", one.info.tier), one.info.reads,
                    one.info.read_seconds);
  }
}

}  // namespace group_embedding::server
