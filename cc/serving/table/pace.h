// Pace: long work of a thread, cut into short pieces with rests between them, where requests are
// computed on the same cores: a request waits for a piece at most.
#pragma once

#include <chrono>
#include <functional>

namespace group_embedding {

class Pace {
 public:
  // For its life, Rest sleeps on this thread. `is_busy`: whether somebody else wants the cores now.
  explicit Pace(std::function<bool()> is_busy);
  ~Pace();
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // Between two steps of microseconds. Sleeps after a piece of work, unless nobody else is busy or
  // the work takes too long already. Does nothing on a thread without a Pace.
  static void Rest();

 private:
  using Clock = std::chrono::steady_clock;

  void RestAfter(Clock::duration work);

  const std::function<bool()> is_busy_;
  const Clock::time_point hurry_;  // from then on there is no rest
  Clock::duration worked_;         // processor time of the thread at the end of the last rest
  Pace* const former_;
};

}  // namespace group_embedding
