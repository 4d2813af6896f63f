#include "table/order_of_rows.h"

#include <algorithm>

#include "table/order_of_row.h"

namespace group_embedding {

std::vector<EvictionOrder> OrderOfRows(const TableOptions& options, int64_t step,
                                       const KeyedRows& rows, int score_slot) {
  const OrderOfRow order_of(options, step);
  const int64_t row_bytes = rows.values.empty() ? 0 : options.dim * SizeOf(options.dtype);
  const bool has_scores = score_slot >= 0 && rows.slots.size() > static_cast<size_t>(score_slot) &&
                          !rows.slots[score_slot].empty();
  const float none = 0;
  std::vector<EvictionOrder> orders;
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    const char* score = has_scores ? rows.slots[score_slot].data() + i * sizeof(float)
                                   : reinterpret_cast<const char*>(&none);
    const uint64_t by_score =
        order_of.Score(rows.counts[i], rows.versions[i], rows.values.data() + i * row_bytes, score);
    orders.push_back(order_of.Order(by_score, rows.versions[i], rows.keys[i]));
  }
  return orders;
}

std::unordered_map<int64_t, float> HighestScores(const int64_t* keys, int64_t num_keys,
                                                 const float* scores) {
  std::unordered_map<int64_t, float> highest;
  for (int64_t i = 0; i < num_keys; ++i) {
    float& score = highest.try_emplace(keys[i], scores[i]).first->second;
    // In the order of eviction, in which NaN has a place.
    if (eviction_order::OfFloat(score) < eviction_order::OfFloat(scores[i])) score = scores[i];
  }
  return highest;
}

}  // namespace group_embedding
