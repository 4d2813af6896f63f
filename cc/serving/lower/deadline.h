// Deadline: until when a request, or a table that is filled, waits for the tier below memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

namespace group_embedding {

struct Deadline {
  using Clock = std::chrono::steady_clock;

  Clock::time_point start = Clock::now();  // of the request
  Clock::time_point end = Clock::time_point::max();

  static Deadline Never() { return {Clock::time_point(), Clock::time_point::max()}; }

  static Deadline In(std::chrono::microseconds time) {
    Deadline deadline;
    deadline.Shorten(time);
    return deadline;
  }

  bool is_never() const { return end == Clock::time_point::max(); }
  bool is_over() const { return !is_never() && Clock::now() >= end; }

  // The earlier of the two ends.
  void Shorten(std::chrono::microseconds after_start) {
    // A sum that overflows is no limit.
    if (after_start < std::chrono::hours(24 * 365)) end = std::min(end, start + after_start);
  }

  // "50 ms".
  std::string Text() const {
    const double seconds = std::chrono::duration<double>(end - start).count();
    char text[40];
    std::snprintf(text, sizeof(text), "%.6g ms", seconds * 1e3);
    return text;
  }
};

}  // namespace group_embedding
