// The threads that an op of a request computes on.
#pragma once

#include <cstdint>
#include <utility>

#include "tf/serving/ops/served_request.h"
#include "tf/support/device.h"

namespace group_embedding {

// Requests are computed side by side: handing less than this over to other threads takes more
// processor time than it saves a request. Work is left out once the request is over.
inline ParallelFor RequestThreadsOf(tensorflow::OpKernelContext* context) {
  constexpr int64_t kLeastNanoseconds = 200'000;
  ServedRequest* const request = ServedRequest::Current();
  ParallelFor threads = ThreadsOf(context, kLeastNanoseconds);
  if (request == nullptr) return threads;
  return [threads = std::move(threads), request](int64_t count, int64_t cost, const auto& body) {
    threads(count, cost,
            [&](int64_t begin, int64_t end) { request->InPieces(begin, end, cost, body); });
  };
}

// Whether the work of those threads is whole.
inline absl::Status CheckRequest() {
  ServedRequest* const request = ServedRequest::Current();
  return request == nullptr ? absl::OkStatus() : request->Check();
}

}  // namespace group_embedding
