#include "exchange/pack_rows.h"

#include <cstring>
#include <vector>

namespace group_embedding {
namespace {

// One run of rows that is contiguous on both sides; offsets and size in bytes.
struct Run {
  int64_t table;
  int64_t in_matrix;
  int64_t in_packed;
  int64_t size;
};

std::vector<Run> FindRuns(const RowParts& parts) {
  std::vector<Run> runs;
  std::vector<int64_t> in_matrix(parts.num_tables, 0);
  int64_t in_packed = 0;
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    for (int64_t t = 0; t < parts.num_tables; ++t) {
      const int64_t size =
          parts.counts[n * parts.num_tables + t] * parts.dims[t] * parts.element_bytes;
      runs.push_back({t, in_matrix[t], in_packed, size});
      in_matrix[t] += size;
      in_packed += size;
    }
  }
  return runs;
}

template <typename Body>
void ForRuns(const RowParts& parts, const ParallelFor& parallel_for, Body&& body) {
  const std::vector<Run> runs = FindRuns(parts);
  const int64_t num_runs = static_cast<int64_t>(runs.size());
  const int64_t bytes = num_runs == 0 ? 0 : runs.back().in_packed + runs.back().size;
  constexpr int64_t kBytesPerNanosecond = 4;
  const int64_t cost = 10 + (num_runs == 0 ? 0 : bytes / num_runs / kBytesPerNanosecond);
  parallel_for(num_runs, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (runs[r].size > 0) body(runs[r]);
    }
  });
}

}  // namespace

void PackedSplits(const RowParts& parts, int64_t* splits) {
  for (int64_t n = 0; n < parts.num_ranks; ++n) {
    splits[n] = 0;
    for (int64_t t = 0; t < parts.num_tables; ++t) {
      splits[n] += parts.counts[n * parts.num_tables + t] * parts.dims[t];
    }
  }
}

void PackRows(const RowParts& parts, const void* const* matrices, void* packed,
              const ParallelFor& parallel_for) {
  ForRuns(parts, parallel_for, [&](const Run& run) {
    std::memcpy(static_cast<char*>(packed) + run.in_packed,
                static_cast<const char*>(matrices[run.table]) + run.in_matrix, run.size);
  });
}

void UnpackRows(const RowParts& parts, const void* packed, void* const* matrices,
                const ParallelFor& parallel_for) {
  ForRuns(parts, parallel_for, [&](const Run& run) {
    std::memcpy(static_cast<char*>(matrices[run.table]) + run.in_matrix,
                static_cast<const char*>(packed) + run.in_packed, run.size);
  });
}

}  // namespace group_embedding
