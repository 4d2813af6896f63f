// Metrics of tables whose rows are below memory.
#pragma once

#include <string>
#include <vector>

#include "serving/server/operations/metrics.h"
#include "serving/server/operations/model_info.h"

namespace group_embedding::server {

struct LabelledTier {
  std::string labels;  // of the model, its base and the table
  TierInfo info;
};

void TierMetrics(const std::vector<LabelledTier>& tiers, PrometheusText* text);

}  // namespace group_embedding::server
