#include "core/fault.h"

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

TEST(NoFaultHasNothingToSay) { CHECK_EQ(Describe({}, "clicks", "user", 5), std::string()); }

}  // namespace
}  // namespace group_embedding
