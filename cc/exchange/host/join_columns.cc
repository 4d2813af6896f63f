#include "exchange/host/join_columns.h"

#include <algorithm>

namespace group_embedding {
namespace {

constexpr int64_t kElementsPerNanosecond = 4;

// Calls `body(part, row)` for the offset of each rank's part of each row in both matrices.
template <typename Body>
void ForParts(const JoinedRows& sizes, const ParallelFor& parallel_for, const Body& body) {
  const int64_t dim = sizes.num_ranks * sizes.part_dim;
  const int64_t cost = 1 + dim / kElementsPerNanosecond;
  parallel_for(sizes.num_rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t rank = 0; rank < sizes.num_ranks; ++rank) {
        body((rank * sizes.num_rows + row) * sizes.part_dim, row * dim + rank * sizes.part_dim);
      }
    }
  });
}

}  // namespace

void JoinColumns(const JoinedRows& sizes, const float* parts, float* rows,
                 const ParallelFor& parallel_for) {
  ForParts(sizes, parallel_for, [&](int64_t part, int64_t row) {
    std::copy_n(parts + part, sizes.part_dim, rows + row);
  });
}

void SplitColumns(const JoinedRows& sizes, const float* rows, float* parts,
                  const ParallelFor& parallel_for) {
  ForParts(sizes, parallel_for, [&](int64_t part, int64_t row) {
    std::copy_n(rows + row, sizes.part_dim, parts + part);
  });
}

}  // namespace group_embedding
