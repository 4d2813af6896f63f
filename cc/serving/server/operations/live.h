// What people and monitors read: the live page, and metrics.
#pragma once

#include <string>

#include "serving/server/models/models.h"

namespace group_embedding::server {

// Plain HTML that loads itself anew: versions, age, requests, latencies, bytes of tables.
std::string LivePage(const Models& models);

// Prometheus's text format.
std::string Metrics(const Models& models);

// TensorFlow Serving's metrics that have a meaning here, by its names, as Prometheus's text.
std::string TensorFlowMetrics(const Models& models);

}  // namespace group_embedding::server
