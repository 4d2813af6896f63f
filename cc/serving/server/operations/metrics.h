// What the server counts, as text for Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "serving/server/models/serving_library.h"
#include "serving/server/operations/latency.h"
#include "serving/server/operations/tensorflow_metrics.h"

namespace group_embedding::server {

enum class Method { kPredict, kClassify, kRegress };
inline constexpr std::array<const char*, 3> kMethodNames = {"predict", "classify", "regress"};

// The counts of one model's requests. Thread-safe.
class RequestCounts {
 public:
  void Add(Method method, Entrypoint entrypoint, StatusCode code, double seconds) {
    counts_[static_cast<int>(method)][static_cast<int>(code)].fetch_add(1);
    latencies_.Add(seconds);
    recent_.Add(seconds);
    request_latency_[static_cast<int>(method)][static_cast<int>(entrypoint)].Add(seconds * 1e6);
  }
  void AddExamples(int64_t count) { examples_.Add(static_cast<double>(count)); }
  int64_t Total() const;
  int64_t Errors() const;
  RecentLatency Recent() const { return recent_.Summary(); }
  const Latencies& latencies() const { return latencies_; }
  int64_t Count(Method method, int code) const {
    return counts_[static_cast<int>(method)][code].load();
  }
  const Microseconds& request_latency(Method method, Entrypoint entrypoint) const {
    return request_latency_[static_cast<int>(method)][static_cast<int>(entrypoint)];
  }
  const ExampleCounts& examples() const { return examples_; }

  static constexpr int kCodes = 17;

 private:
  std::array<std::array<std::atomic<int64_t>, kCodes>, kMethodNames.size()> counts_{};
  Latencies latencies_;
  RecentLatencies recent_;
  std::array<std::array<Microseconds, kEntrypointNames.size()>, kMethodNames.size()>
      request_latency_;
  ExampleCounts examples_;
};

// "NOT_FOUND".
const char* CodeName(int code);

// Lines of Prometheus's text format.
class PrometheusText {
 public:
  // type: "counter", "gauge" or "histogram". The samples of a metric follow it.
  void Metric(const std::string& name, const char* type, const char* help);
  // labels: `model="a",code="OK"`; values escaped by Label.
  void Sample(const std::string& name, const std::string& labels, double value);
  // counts: durations up to 1 us, 2 us, 4 us, and so on. sum: of all of them, in seconds.
  void Histogram(const std::string& name, const std::string& labels,
                 const std::vector<int64_t>& counts, double sum);
  void Histogram(const std::string& name, const std::string& labels, const Latencies& latencies);

  static std::string Label(const char* name, const std::string& value);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace group_embedding::server
