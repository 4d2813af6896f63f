// How a group's work is cut for threads: into ranges of one feature's samples that cost about
// alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fused/group_lookup.h"

namespace group_embedding {

struct FeaturePiece {
  int64_t feature;
  int64_t begin, end;  // samples within the feature
};

// Elements of rows read and outputs written by one piece, and about how long that takes.
inline constexpr int64_t kPieceElements = 65536;
inline constexpr int64_t kPieceNanoseconds = 20000;

inline std::vector<FeaturePiece> CutFeatures(const Group& group) {
  std::vector<FeaturePiece> pieces;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const int64_t num_ids = group.batch.Begin(feature.first_sample + feature.num_samples) -
                            group.batch.Begin(feature.first_sample);
    const int64_t elements =
        (num_ids + feature.num_samples) * std::max(group.tables[feature.table].dim, 8);
    const int64_t num_pieces =
        std::min(feature.num_samples, (elements + kPieceElements - 1) / kPieceElements);
    for (int64_t p = 0; p < num_pieces; ++p) {
      pieces.push_back(
          {f, feature.num_samples * p / num_pieces, feature.num_samples * (p + 1) / num_pieces});
    }
  }
  return pieces;
}

}  // namespace group_embedding
