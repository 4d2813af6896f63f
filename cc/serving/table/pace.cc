#include "serving/table/pace.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace group_embedding {
namespace {

using std::chrono::microseconds;

constexpr microseconds kPiece(200);
constexpr int kRestsPerPiece = 4;           // a fifth of a core
constexpr microseconds kLongestRest(5000);  // a step may have been long
constexpr std::chrono::milliseconds kHurryAfter(500);

thread_local Pace* current = nullptr;

std::chrono::nanoseconds ProcessorTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace

Pace::Pace(std::function<bool()> is_busy)
    : is_busy_(std::move(is_busy)),
      hurry_(Clock::now() + kHurryAfter),
      worked_(ProcessorTime()),
      former_(current) {
  current = this;
}

Pace::~Pace() { current = former_; }

void Pace::Rest() {
  if (current == nullptr) return;
  const Clock::duration work = ProcessorTime() - current->worked_;
  if (work >= kPiece) current->RestAfter(work);
}

void Pace::RestAfter(Clock::duration work) {
  if (is_busy_() && Clock::now() < hurry_) {
    std::this_thread::sleep_for(std::min<Clock::duration>(kRestsPerPiece * work, kLongestRest));
  }
  worked_ = ProcessorTime();
}

}  // namespace group_embedding
