#include "grouping/check_batch.h"

#include <algorithm>
#include <atomic>

#include "core/row_splits.h"
#include "grouping/group_ids.h"

namespace group_embedding {
namespace {

// Appends the total with `size`, unless it would exceed `most`.
bool Add(int64_t size, int64_t most, std::vector<int64_t>* firsts) {
  if (size < 0 || size > most - firsts->back()) return false;
  firsts->push_back(firsts->back() + size);
  return true;
}

}  // namespace

Status AddSizes(const int64_t* sizes, int64_t num_features, bool weighted, int64_t num_floats,
                BatchExtents* extents) {
  extents->first_samples.reserve(num_features + 1);
  extents->first_ids.reserve(num_features + 1);
  for (int64_t f = 0; f < num_features; ++f) {
    const int64_t num_samples = sizes[2 * f], num_ids = sizes[2 * f + 1];
    if (!Add(num_samples, num_floats, &extents->first_samples) ||
        !Add(num_ids, num_floats, &extents->first_ids)) {
      return "sizes: expected numbers of samples and ids that a batch of " +
             std::to_string(num_floats) + " floats holds, got " + std::to_string(num_samples) +
             " samples and " + std::to_string(num_ids) + " ids of feature " + std::to_string(f);
    }
  }
  const int64_t expected = LayOutBatch(extents->num_samples(), extents->num_ids(), weighted).size;
  if (num_floats == expected) return {};
  return "batch: its length does not match `sizes`: expected " + std::to_string(expected) +
         " floats, got " + std::to_string(num_floats);
}

Fault CheckFeatureSplits(const Batch& batch, const BatchExtents& extents) {
  for (int64_t f = 0; f < extents.num_features(); ++f) {
    const int64_t* splits = batch.row_splits + extents.first_samples[f];
    const int64_t num_samples = extents.num_samples(f), begin = extents.first_ids[f];
    for (const int64_t s : {int64_t{0}, num_samples}) {
      if (splits[s] == begin + (s == 0 ? 0 : extents.num_ids(f))) continue;
      const uint64_t value = static_cast<uint64_t>(splits[s]) - static_cast<uint64_t>(begin);
      return {FaultKind::kRowSplitsInvalid, static_cast<int32_t>(f), s,
              static_cast<int64_t>(value)};
    }
  }
  return {};
}

Fault CheckRowSplits(const Batch& batch, const BatchExtents& extents,
                     const ParallelFor& parallel_for) {
  const Fault fault = CheckFeatureSplits(batch, extents);
  if (fault.kind != FaultKind::kNone) return fault;
  std::atomic<bool> falls{false};
  parallel_for(batch.num_samples, 1, [&](int64_t begin, int64_t end) {
    if (!Ascend(batch.row_splits, begin, end)) falls = true;
  });
  for (int64_t f = 0; falls && f < extents.num_features(); ++f) {
    const int64_t begin = extents.first_samples[f];
    if (Ascend(batch.row_splits, begin, extents.first_samples[f + 1])) continue;
    return WrongSplit(batch.row_splits + begin, extents.num_samples(f), f);
  }
  return {};
}

}  // namespace group_embedding
