#include "serving/server/operations/metrics.h"

#include <cstdio>

namespace group_embedding::server {
namespace {

// 6 digits suffice for seconds; counts keep all of theirs.
std::string AsText(double value) {
  char text[40];
  const bool whole = std::abs(value) < 9e15 && value == std::floor(value);
  std::snprintf(text, sizeof(text), whole ? "%.0f" : "%.6g", value);
  return text;
}

}  // namespace

const char* CodeName(int code) {
  static const char* const kNames[RequestCounts::kCodes] = {"OK",
                                                            "CANCELLED",
                                                            "UNKNOWN",
                                                            "INVALID_ARGUMENT",
                                                            "DEADLINE_EXCEEDED",
                                                            "NOT_FOUND",
                                                            "ALREADY_EXISTS",
                                                            "PERMISSION_DENIED",
                                                            "RESOURCE_EXHAUSTED",
                                                            "FAILED_PRECONDITION",
                                                            "ABORTED",
                                                            "OUT_OF_RANGE",
                                                            "UNIMPLEMENTED",
                                                            "INTERNAL",
                                                            "UNAVAILABLE",
                                                            "DATA_LOSS",
                                                            "UNAUTHENTICATED"};
  return code >= 0 && code < RequestCounts::kCodes ? kNames[code] : "UNKNOWN";
}

int64_t RequestCounts::Total() const {
  int64_t total = 0;
  for (const auto& codes : counts_) {
    for (const auto& count : codes) total += count.load();
  }
  return total;
}

int64_t RequestCounts::Errors() const {
  int64_t right = 0;
  for (const auto& codes : counts_) right += codes[0].load();
  return Total() - right;
}

void PrometheusText::Metric(const std::string& name, const char* type, const char* help) {
  text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void PrometheusText::Sample(const std::string& name, const std::string& labels, double value) {
  text_ += name + (labels.empty() ? "" : "{" + labels + "}") + " " + AsText(value) + "\n";
}

void PrometheusText::Histogram(const std::string& name, const std::string& labels,
                               const std::vector<int64_t>& counts, double sum) {
  int64_t count = 0;
  for (size_t d = 0; d < counts.size(); ++d) {
    count += counts[d];
    const double bound = Latencies::SecondsOf(static_cast<int>(d) * Latencies::kPerDoubling);
    Sample(name + "_bucket", labels + "," + Label("le", AsText(bound)), count);
  }
  Sample(name + "_bucket", labels + "," + Label("le", "+Inf"), count);
  Sample(name + "_sum", labels, sum);
  Sample(name + "_count", labels, count);
}

void PrometheusText::Histogram(const std::string& name, const std::string& labels,
                               const Latencies& latencies) {
  std::vector<int64_t> counts;
  for (int b = 0; b < Latencies::kBuckets; b += Latencies::kPerDoubling) {
    counts.push_back(latencies.UpTo(b));
  }
  Histogram(name, labels, counts, latencies.Sum());
}

std::string PrometheusText::Label(const char* name, const std::string& value) {
  std::string label = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') label += '\\';
    label += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return label + "\"";
}

}  // namespace group_embedding::server
