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
inline constexpr int64_t kLeastNanoseconds = 100;  // of any piece
inline constexpr int64_t kRowNanoseconds = 30;     // to fetch a row that is in no cache

struct FeaturePieces {
  std::vector<FeaturePiece> pieces;
  // A piece takes this long on average. Features of a few ids are pieces, too, and handing them to
  // other threads would take longer than they do.
  int64_t nanoseconds = 0;
};

inline FeaturePieces CutFeatures(const Group& group) {
  FeaturePieces cut;
  int64_t total = 0, total_ids = 0;
  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    const int64_t num_ids = group.batch.Begin(feature.first_sample + feature.num_samples) -
                            group.batch.Begin(feature.first_sample);
    const int64_t elements =
        (num_ids + feature.num_samples) * std::max(group.tables[feature.table].dim, 8);
    const int64_t num_pieces =
        std::min(feature.num_samples, (elements + kPieceElements - 1) / kPieceElements);
    total += elements;
    total_ids += num_ids;
    for (int64_t p = 0; p < num_pieces; ++p) {
      cut.pieces.push_back(
          {f, feature.num_samples * p / num_pieces, feature.num_samples * (p + 1) / num_pieces});
    }
  }
  const int64_t count = std::max<int64_t>(static_cast<int64_t>(cut.pieces.size()), 1);
  cut.nanoseconds = kLeastNanoseconds + std::max(total / count * kPieceNanoseconds / kPieceElements,
                                                 total_ids / count * kRowNanoseconds);
  return cut;
}

}  // namespace group_embedding
