#include "serving/server/operations/tensorflow_metrics.h"

#include <cctype>
#include <cstdio>

#include "serving/server/operations/live.h"

namespace group_embedding::server {
namespace {

// TensorFlow's names are paths; TensorFlow Serving writes a colon for what Prometheus does not
// take.
std::string NameOf(std::string path) {
  for (char& c : path) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') c = ':';
  }
  return path;
}

std::string AsText(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string Labels(std::initializer_list<std::pair<const char*, std::string>> labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += (text.empty() ? "" : ",") + PrometheusText::Label(name, value);
  }
  return text;
}

class Page {
 public:
  void Type(const char* path, const char* type) {
    name_ = NameOf(path);
    text_ += "# TYPE " + name_ + " " + type + "\n";
  }
  void Sample(const std::string& labels, int64_t value) {
    text_ += name_ + "{" + labels + "} " + std::to_string(value) + "\n";
  }
  template <size_t kBounds>
  void Samples(const std::string& labels, const Histogram<kBounds>& histogram) {
    const std::string before = labels + (labels.empty() ? "" : ",");
    int64_t count = 0;
    for (size_t b = 0; b <= kBounds; ++b) {
      count += histogram.count(b);
      const std::string bound = b < kBounds ? AsText(histogram.bounds()[b]) : "+Inf";
      text_ +=
          name_ + "_bucket{" + before + "le=\"" + bound + "\"} " + std::to_string(count) + "\n";
    }
    text_ += name_ + "_sum{" + labels + "} " + AsText(histogram.sum()) + "\n";
    text_ += name_ + "_count{" + labels + "} " + std::to_string(count) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

template <size_t kBounds>
int64_t CountOf(const Histogram<kBounds>& histogram) {
  int64_t count = 0;
  for (size_t b = 0; b <= kBounds; ++b) count += histogram.count(b);
  return count;
}

// gRPC's methods are named Predict, REST's predict.
std::string ApiName(Method method, Entrypoint entrypoint) {
  std::string name = kMethodNames[static_cast<int>(method)];
  if (entrypoint == Entrypoint::kGrpc) name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

void Requests(const Models& models, Page* page) {
  page->Type("/tensorflow/serving/request_count", "counter");
  for (const auto& [name, versions] : models.by_name()) {
    for (int code = 0; code < RequestCounts::kCodes; ++code) {
      int64_t count = 0;
      for (size_t m = 0; m < kMethodNames.size(); ++m) {
        count += versions->counts().Count(static_cast<Method>(m), code);
      }
      if (count == 0) continue;
      page->Sample(Labels({{"model_name", name}, {"status", CodeName(code)}}), count);
    }
  }
  page->Type("/tensorflow/serving/request_latency", "histogram");
  for (const auto& [name, versions] : models.by_name()) {
    for (const Entrypoint entrypoint : {Entrypoint::kGrpc, Entrypoint::kRest}) {
      for (const Method method : {Method::kPredict, Method::kClassify, Method::kRegress}) {
        const Microseconds& latencies = versions->counts().request_latency(method, entrypoint);
        if (CountOf(latencies) == 0) continue;
        page->Samples(Labels({{"model_name", name},
                              {"API", ApiName(method, entrypoint)},
                              {"entrypoint", kEntrypointNames[static_cast<int>(entrypoint)]}}),
                      latencies);
      }
    }
  }
}

void Examples(const Models& models, Page* page) {
  page->Type("/tensorflow/serving/request_example_counts", "histogram");
  for (const auto& [name, versions] : models.by_name()) {
    const ExampleCounts& examples = versions->counts().examples();
    if (CountOf(examples) > 0) page->Samples(Labels({{"model", name}}), examples);
  }
  page->Type("/tensorflow/serving/request_example_count_total", "counter");
  for (const auto& [name, versions] : models.by_name()) {
    const ExampleCounts& examples = versions->counts().examples();
    if (CountOf(examples) == 0) continue;
    page->Sample(Labels({{"model", name}}), static_cast<int64_t>(examples.sum()));
  }
}

void Runs(Page* page) {
  const GraphRuns& runs = GraphRuns::OfProcess();
  page->Type("/tensorflow/core/graph_runs", "counter");
  page->Sample("", CountOf(runs));
  page->Type("/tensorflow/core/graph_run_time_usecs", "counter");
  page->Sample("", static_cast<int64_t>(runs.sum()));
  page->Type("/tensorflow/core/graph_run_time_usecs_histogram", "histogram");
  page->Samples("", runs);
}

}  // namespace

std::string TensorFlowMetrics(const Models& models) {
  Page page;
  Requests(models, &page);
  Examples(models, &page);
  Runs(&page);
  return page.text();
}

}  // namespace group_embedding::server
