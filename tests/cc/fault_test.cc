#include "core/fault.h"

#include <limits>

#include "check.h"

namespace group_embedding {
namespace {

TEST(IdOutOfRangeNamesTableFeatureIdAndSample) {
  const std::string message = Describe(
      {FaultKind::kIdOutOfRange, /*feature=*/0, /*sample=*/2, /*value=*/7}, "clicks", "user",
      /*limit=*/5);
  for (const char* part : {"table 'user'", "feature 'clicks'", "id 7", "sample 2", "5"}) {
    CHECK_CONTAINS(message, part);
  }
}

TEST(AnIdThatStandsForThoseAboveIt) {
  const int64_t greatest = std::numeric_limits<int64_t>::max();
  const std::string message = Describe({FaultKind::kIdOutOfRange, 0, 2, greatest}, "", "", 5);
  CHECK_CONTAINS(message, "id 9223372036854775807 or above of sample 2");
}

TEST(NoFaultHasNothingToSay) { CHECK_EQ(Describe({}, "clicks", "user", 5), std::string()); }

}  // namespace
}  // namespace group_embedding
