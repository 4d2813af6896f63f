// Counts for TensorFlow Serving's metrics.
#pragma once

#include <array>

#include "serving/server/operations/histogram.h"

namespace group_embedding::server {

// The protocol that brought a request.
enum class Entrypoint { kGrpc, kRest };
inline constexpr std::array<const char*, 2> kEntrypointNames = {"GRPC", "REST"};

// Microseconds: 10, 18, up to 20 minutes.
struct Microseconds : Histogram<33> {
  Microseconds() : Histogram(10, 1.8) {}
};

// Examples of requests to classify and regress.
struct ExampleCounts : Histogram<15> {
  ExampleCounts() : Histogram(1, 2) {}
};

// Runs of models, of all together, in microseconds.
struct GraphRuns : Histogram<20> {
  GraphRuns() : Histogram(1000, 2) {}
  static GraphRuns& OfProcess() {
    static GraphRuns runs;
    return runs;
  }
};

}  // namespace group_embedding::server
