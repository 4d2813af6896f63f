#include "grouping/group_ids.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace group_embedding {
namespace {

// A range of one feature's ids: what a thread takes at a time.
struct Piece {
  int64_t feature;
  int64_t begin, end;
};
constexpr int64_t kPieceIds = 16384;

// Where a feature's samples and ids begin in the batch.
struct Base {
  int64_t sample;
  int64_t id;
};

template <typename T>
void CopyIds(const void* values, int64_t begin, int64_t end, int64_t* ids) {
  const T* from = static_cast<const T*>(values);
  for (int64_t i = begin; i < end; ++i) ids[i] = static_cast<int64_t>(from[i]);
}

void CopyUInt64(const void* values, int64_t begin, int64_t end, int64_t* ids) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t* from = static_cast<const uint64_t*>(values);
  for (int64_t i = begin; i < end; ++i) ids[i] = static_cast<int64_t>(std::min(from[i], kMax));
}

void CopyIds(const FeatureIds& feature, int64_t begin, int64_t end, int64_t* ids) {
  switch (feature.id_type) {
    case IdType::kInt32:
      return CopyIds<int32_t>(feature.values, begin, end, ids);
    case IdType::kInt64:
      return CopyIds<int64_t>(feature.values, begin, end, ids);
    case IdType::kUInt32:
      return CopyIds<uint32_t>(feature.values, begin, end, ids);
    case IdType::kUInt64:
      return CopyUInt64(feature.values, begin, end, ids);
  }
}

// The sample of position `i` of a SparseTensor, or -1 if an index is outside the dense shape.
template <bool kRank2>
inline int64_t SampleAt(const FeatureIds& feature, const int64_t* indices, int64_t i) {
  if constexpr (kRank2) {
    const int64_t sample = indices[2 * i];
    return static_cast<uint64_t>(sample) < static_cast<uint64_t>(feature.num_samples) ? sample : -1;
  }
  const int64_t* index = indices + i * feature.rank;
  int64_t sample = 0;
  for (int32_t axis = 0; axis < feature.rank - 1; ++axis) {
    if (index[axis] < 0 || index[axis] >= feature.sample_shape[axis]) return -1;
    sample += index[axis] * feature.sample_strides[axis];
  }
  return sample;
}

// Row splits of the samples in (sample of begin - 1, sample of end - 1]; the first piece also
// writes those before, the last those after. kRank2: of almost every SparseTensor, without a loop
// over axes.
template <bool kRank2>
Fault SplitSparse(const FeatureIds& feature, int32_t f, const Piece& piece, int64_t first_id,
                  int64_t* splits) {
  const int64_t* indices = static_cast<const int64_t*>(feature.partition);
  // The row before this piece is checked by the piece that holds it; here it only starts the walk.
  const int64_t before =
      piece.begin == 0 ? -1 : SampleAt<kRank2>(feature, indices, piece.begin - 1);
  int64_t next = before + 1;
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    const int64_t sample = SampleAt<kRank2>(feature, indices, i);
    if (sample < 0) return {FaultKind::kRowOutOfBatch, f, i, indices[i * feature.rank]};
    if (sample < next - 1) return {FaultKind::kRowsUnsorted, f, i, indices[i * feature.rank]};
    while (next <= sample) splits[next++] = first_id + i;
  }
  if (piece.end == feature.num_ids) {
    while (next < feature.num_samples) splits[next++] = first_id + feature.num_ids;
  }
  if (feature.weight_partition != nullptr) {
    const int64_t* other = static_cast<const int64_t*>(feature.weight_partition);
    for (int64_t i = piece.begin * feature.rank; i < piece.end * feature.rank; ++i) {
      if (indices[i] != other[i]) {
        return {FaultKind::kWeightRowsDiffer, f, i / feature.rank, i / feature.rank};
      }
    }
  }
  return {};
}

template <typename Split>
Fault SplitRagged(const FeatureIds& feature, int32_t f, int64_t first_id, int64_t* splits) {
  const Split* from = static_cast<const Split*>(feature.partition);
  const Split* other = static_cast<const Split*>(feature.weight_partition);
  int64_t last = 0;
  for (int64_t s = 0; s <= feature.num_samples; ++s) {
    const int64_t split = from[s];
    const bool first_or_last_wrong =
        (s == 0 && split != 0) || (s == feature.num_samples && split != feature.num_ids);
    if (first_or_last_wrong || split < last || split > feature.num_ids) {
      return {FaultKind::kRowSplitsInvalid, f, s, split};
    }
    if (other != nullptr && split != other[s]) return {FaultKind::kWeightRowsDiffer, f, s, s};
    if (s < feature.num_samples) splits[s] = first_id + split;
    last = split;
  }
  return {};
}

Fault Split(const FeatureIds& feature, int32_t f, const Piece& piece, int64_t first_id,
            int64_t* splits) {
  if (feature.layout == Layout::kSparse) {
    return feature.rank == 2 ? SplitSparse<true>(feature, f, piece, first_id, splits)
                             : SplitSparse<false>(feature, f, piece, first_id, splits);
  }
  if (piece.begin != 0) return {};  // the first piece does all of the row splits
  if (feature.layout == Layout::kRagged) {
    return feature.int32_splits ? SplitRagged<int32_t>(feature, f, first_id, splits)
                                : SplitRagged<int64_t>(feature, f, first_id, splits);
  }
  const int64_t length = feature.num_samples == 0 ? 0 : feature.num_ids / feature.num_samples;
  for (int64_t s = 0; s < feature.num_samples; ++s) splits[s] = first_id + s * length;
  return {};
}

void CopyWeights(const FeatureIds& feature, int64_t begin, int64_t end, float* weights) {
  if (feature.weights == nullptr) {
    std::fill(weights + begin, weights + end, 1.0f);
  } else {
    std::copy(feature.weights + begin, feature.weights + end, weights + begin);
  }
}

}  // namespace

Fault GroupIdsCpu(const FeatureIds* features, int64_t num_features, bool weighted, float* buffer,
                  const ParallelFor& parallel_for) {
  std::vector<Base> bases(num_features + 1, Base{0, 0});
  std::vector<Piece> pieces;
  for (int64_t f = 0; f < num_features; ++f) {
    bases[f + 1] = {bases[f].sample + features[f].num_samples, bases[f].id + features[f].num_ids};
    int64_t begin = 0;
    do {  // a feature without ids still has row splits to write
      const int64_t end = std::min(features[f].num_ids, begin + kPieceIds);
      pieces.push_back({f, begin, end});
      begin = end;
    } while (begin < features[f].num_ids);
  }
  const Base total = bases[num_features];
  const BatchLayout layout = LayOutBatch(total.sample, total.id, weighted);
  int64_t* splits = reinterpret_cast<int64_t*>(buffer);
  int64_t* ids = reinterpret_cast<int64_t*>(buffer + layout.ids);
  splits[total.sample] = total.id;

  // One fault per piece, so that the one reported does not depend on the order of threads.
  std::vector<Fault> faults(pieces.size());
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  const int64_t cost = 100 + 2 * (total.id + total.sample) / std::max<int64_t>(num_pieces, 1);
  parallel_for(num_pieces, cost, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Piece& piece = pieces[p];
      const FeatureIds& feature = features[piece.feature];
      const Base& base = bases[piece.feature];
      faults[p] =
          Split(feature, static_cast<int32_t>(piece.feature), piece, base.id, splits + base.sample);
      CopyIds(feature, piece.begin, piece.end, ids + base.id);
      if (weighted) {
        CopyWeights(feature, piece.begin, piece.end, buffer + layout.weights + base.id);
      }
    }
  });
  for (const Fault& fault : faults) {
    if (fault.kind != FaultKind::kNone) return fault;
  }
  return {};
}

}  // namespace group_embedding
