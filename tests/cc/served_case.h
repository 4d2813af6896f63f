// Tables of served models for tests.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "check.h"
#include "serving/table/served_table.h"

namespace group_embedding {

inline constexpr int32_t kDim = 4;

inline std::unique_ptr<ServedTable> MakeTable(bool keyed, int64_t max_rows,
                                              LargePageArena* small_tables = nullptr) {
  ServedTableOptions options;
  options.name = "user";
  options.keyed = keyed;
  options.dim = kDim;
  options.max_rows = max_rows;
  options.small_tables = small_tables;
  Status status;
  auto table = std::make_unique<ServedTable>(options, nullptr, &status);
  CHECK_OK(status);
  return table;
}

inline RowChanges AllRows(const std::vector<int64_t>& keys, float value) {
  RowChanges changes;
  changes.keys = keys;
  const std::vector<float> values(keys.size() * kDim, value);
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  changes.values.assign(bytes, bytes + values.size() * sizeof(float));
  return changes;
}

inline float ValueAt(const ServedTable& table, int64_t row, int64_t column) {
  float value;
  std::memcpy(&value, table.rows() + row * table.row_bytes() + column * sizeof(float), 4);
  return value;
}

inline std::vector<int64_t> Numbers(int64_t count) {
  std::vector<int64_t> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = i;
  return numbers;
}

}  // namespace group_embedding
