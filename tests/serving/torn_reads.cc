// Threads ask a model while deltas are applied to it, and check each answer.
//
//   torn_reads MODEL VERSIONS COMMITS REQUESTS
//
// Every float that the model answers should be its version, and a thread should never see a version
// after a later one. Deltas 2 .. COMMITS + 1 lie in VERSIONS; each is applied once its share of
// REQUESTS was answered. Prints "requests N, versions M, mixed K, backwards B".
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ge_serving.h"

namespace {

constexpr int kThreads = 8;
constexpr int64_t kKeys = 64;

struct Counts {
  std::atomic<int64_t> requests{0}, versions{0}, mixed{0}, backwards{0};
  std::atomic<bool> failed{false};
};

bool Failed(GeCode code, char* error) {
  if (code == GE_OK) return false;
  std::fprintf(stderr, "%s\n", error);
  ge_serving_free(error);
  return true;
}

bool IsWhole(const GeResponse* response, int64_t version) {
  for (size_t i = 0; i < ge_serving_num_outputs(response); ++i) {
    const GeTensor* output = ge_serving_output(response, i);
    const auto* values = static_cast<const float*>(output->data);
    for (size_t v = 0; v < output->bytes / sizeof(float); ++v) {
      if (values[v] != static_cast<float>(version)) return false;
    }
  }
  return true;
}

void Ask(GeModel* model, int64_t most, Counts* counts) {
  std::vector<int64_t> keys(kKeys);
  for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
  const GeTensor input = {"key", GE_INT64, 1, &kKeys, keys.data(), kKeys * sizeof(int64_t)};
  int64_t newest = 0;
  while (counts->requests.fetch_add(1) < most && !counts->failed) {
    GeResponse* response = nullptr;
    char* error = nullptr;
    if (Failed(ge_serving_predict(model, "", &input, 1, nullptr, 0, &response, &error), error)) {
      counts->failed = true;
      return;
    }
    const int64_t version = ge_serving_response_version(response);
    counts->mixed += !IsWhole(response, version);
    counts->backwards += version < newest;
    newest = version;
    ge_serving_free_response(response);
  }
}

void Apply(GeModel* model, const std::string& versions, int64_t commits, int64_t most,
           Counts* counts) {
  for (int64_t commit = 0; commit < commits && !counts->failed; ++commit) {
    while (counts->requests < most * commit / commits && !counts->failed) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    char name[32], *error = nullptr;
    std::snprintf(name, sizeof(name), "/%020lld", static_cast<long long>(commit + 2));
    if (Failed(ge_serving_apply(model, (versions + name).c_str(), &error), error)) {
      counts->failed = true;
    }
    counts->versions = ge_serving_version(model);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  GeModel* model = nullptr;
  char* error = nullptr;
  if (Failed(ge_serving_open(argv[1], nullptr, &model, &error), error)) return 1;
  const int64_t commits = std::atoll(argv[3]), most = std::atoll(argv[4]);
  Counts counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(Ask, model, most, &counts);
  Apply(model, argv[2], commits, most, &counts);
  for (std::thread& thread : threads) thread.join();
  ge_serving_close(model);
  const long long asked = std::min<int64_t>(counts.requests, most);
  std::printf("requests %lld, versions %lld, mixed %lld, backwards %lld\n", asked,
              static_cast<long long>(counts.versions), static_cast<long long>(counts.mixed),
              static_cast<long long>(counts.backwards));
  return counts.failed ? 1 : 0;
}
