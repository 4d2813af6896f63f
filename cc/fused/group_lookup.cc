#include "fused/group_lookup.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/quantized_rows.h"
#include "core/row_format.h"
#include "core/row_splits.h"
#include "core/rows.h"
#include "fused/feature_pieces.h"
#include "fused/sample_ids.h"
#include "fused/stored_lookup.h"

namespace group_embedding {
namespace {

// A row is prefetched this many ids before it is added. On two cores, distances of 48, 64 and 96
// were equally fast, and 32 was 8% slower.
constexpr int64_t kPrefetchIds = 64;

// Row `row` of a table whose rows `Row` reads: a pointer to elements, or a view of a quantised row.
template <typename Row>
Row RowOf(const Table& table, int64_t row) {
  if constexpr (std::is_pointer_v<Row>) {
    return static_cast<Row>(table.rows) + row * table.dim;
  } else {
    return Row(static_cast<const char*>(table.rows) + row * (table.dim + 4), table.dim);
  }
}

// The rows of one sample, gathered before they are added, so that the adding has no branches.
template <typename Row, typename T>
class SampleRows {
 public:
  SampleRows(const Group& group, const Feature& feature)
      : table_(group.tables[feature.table]),
        batch_(group.batch),
        combiner_(feature.combiner),
        invalid_ids_(group.invalid_ids),
        plain_(group.batch.weights == nullptr && table_.max_norm <= 0) {}

  // Gathers the ids [begin, end) of a sample. Returns the position of a bad id, or -1.
  int64_t Gather(int64_t begin, int64_t end) {
    if (end - begin > static_cast<int64_t>(rows_.size())) rows_.resize(2 * (end - begin));
    return plain_ && GatherPlain(begin, end) ? -1 : GatherAny(begin, end);
  }

  // output = scale * (sum of rows)
  void Combine(T* output) const {
    SumRows(rows_.data(), plain_ ? nullptr : weights_.data(), count_, table_.dim,
            [output, scale = scale_](int64_t column, auto sum) {
              if constexpr (std::is_same_v<decltype(sum), float>) {
                output[column] = FromFloat<T>(scale * sum);
              } else {
                Store8(scale * sum, output + column);
              }
            });
  }

 private:
  // True if all ids are rows, each added as it is: almost every sample of almost every model.
  bool GatherPlain(int64_t begin, int64_t end) {
    bool all_rows = true;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = batch_.ids[i];
      const bool is_row = static_cast<uint64_t>(id) < static_cast<uint64_t>(table_.num_rows);
      all_rows &= is_row;
      rows_[i - begin] = RowOf<Row>(table_, is_row ? id : 0);
    }
    count_ = end - begin;
    scale_ = CombinerScale(combiner_, static_cast<float>(count_), static_cast<float>(count_));
    return all_rows;
  }

  int64_t GatherAny(int64_t begin, int64_t end) {
    weights_.resize(rows_.size());
    count_ = 0;
    float sum_weights = 0, sum_squares = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float weight = batch_.weights == nullptr ? 1.0f : batch_.weights[i];
      const int64_t id = batch_.ids[i];
      const IdUse use =
          UseOfId(id, weight, table_.num_rows, combiner_, invalid_ids_.prune_negative);
      if (use == IdUse::kNone) continue;
      sum_weights += weight;
      sum_squares += weight * weight;
      if (use == IdUse::kRow) {
        Add(RowOf<Row>(table_, id), weight);
      } else if (!invalid_ids_.read_zeros) {
        return i;
      }
    }
    scale_ = CombinerScale(combiner_, sum_weights, sum_squares);
    return -1;
  }

  void Add(Row row, float weight) {
    if (table_.max_norm > 0) weight *= ClipScale(row, table_.dim, table_.max_norm);
    rows_[count_] = row;
    weights_[count_++] = weight;
  }

  const Table& table_;
  const Batch& batch_;
  const Combiner combiner_;
  const InvalidIds invalid_ids_;
  const bool plain_;  // every row is added as it is
  std::vector<Row> rows_;
  std::vector<float> weights_;
  int64_t count_ = 0;
  float scale_ = 0;
};

class RowPrefetcher {
 public:
  RowPrefetcher(const Table& table, int64_t row_bytes, const Batch& batch, int64_t end)
      : table_(table), row_bytes_(row_bytes), batch_(batch), end_(end) {}

  // Asks for the rows of ids up to kPrefetchIds after `position`.
  void Advance(int64_t position) {
    const int64_t until = std::min(end_, position + kPrefetchIds);
    for (next_ = std::max(next_, position); next_ < until; ++next_) {
      const uint64_t id = static_cast<uint64_t>(batch_.ids[next_]);
      if (id < static_cast<uint64_t>(table_.num_rows)) {
        PrefetchRow(static_cast<const char*>(table_.rows) + id * row_bytes_, row_bytes_);
      }
    }
  }

 private:
  const Table& table_;
  const int64_t row_bytes_;
  const Batch& batch_;
  const int64_t end_;
  int64_t next_ = 0;
};

Fault WrongSplitOf(const Group& group, int64_t f) {
  const Feature& feature = group.features[f];
  return WrongSplit(group.batch.row_splits + feature.first_sample, feature.num_samples, f);
}

// Rows are read as `Row`, outputs are of type T.
template <typename Row, typename T>
Fault LookUpPiece(const Group& group, RowFormat format, const FeaturePiece& piece) {
  const Feature& feature = group.features[piece.feature];
  const Table& table = group.tables[feature.table];
  const Batch& batch = group.batch;
  const int64_t begin = feature.first_sample + piece.begin;
  const int64_t end = feature.first_sample + piece.end;
  T* output = static_cast<T*>(feature.output) + piece.begin * feature.output_stride;

  int64_t ids_begin = batch.Begin(begin);
  const int64_t last = batch.Begin(end);
  if (ids_begin < 0 || last < ids_begin || last > batch.num_ids) {
    return WrongSplitOf(group, piece.feature);
  }
  RowPrefetcher prefetcher(table, RowBytes(format, table.dim), batch, last);
  SampleRows<Row, T> rows(group, feature);
  for (int64_t sample = begin; sample < end; ++sample, output += feature.output_stride) {
    const int64_t ids_end = batch.Begin(sample + 1);
    if (!MayFollow(ids_end, ids_begin, last)) return WrongSplitOf(group, piece.feature);
    prefetcher.Advance(ids_end);
    const int64_t bad = rows.Gather(ids_begin, ids_end);
    ids_begin = ids_end;
    if (bad >= 0) {
      return {FaultKind::kIdOutOfRange, static_cast<int32_t>(piece.feature),
              sample - feature.first_sample, batch.ids[bad]};
    }
    rows.Combine(output);
  }
  return {};
}

template <typename T>
Fault LookUpPieceOf(const Group& group, RowFormat format, const FeaturePiece& piece) {
  switch (format) {
    case RowFormat::kFloat32:
      return LookUpPiece<const float*, T>(group, format, piece);
    case RowFormat::kFloat16:
      return LookUpPiece<const Float16*, T>(group, format, piece);
    case RowFormat::kBFloat16:
      return LookUpPiece<const BFloat16*, T>(group, format, piece);
    case RowFormat::kInt8:
      return LookUpPiece<Int8Row, T>(group, format, piece);
    case RowFormat::kFp8:
      return LookUpPiece<Fp8Row, T>(group, format, piece);
  }
  return {};
}

}  // namespace

Fault GroupLookupCpu(const Group& group, const ParallelFor& parallel_for) {
  const std::vector<RowFormat> formats(group.num_tables, FormatOf(group.dtype));
  return StoredLookupCpu(group, formats.data(), parallel_for);
}

Fault StoredLookupCpu(const Group& group, const RowFormat* formats,
                      const ParallelFor& parallel_for) {
  const FeaturePieces cut = CutFeatures(group);
  const std::vector<FeaturePiece>& pieces = cut.pieces;
  // One fault per piece, so that the one reported does not depend on the order of threads.
  std::vector<Fault> faults(pieces.size());
  parallel_for(static_cast<int64_t>(pieces.size()), cut.nanoseconds,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   const RowFormat format = formats[group.features[pieces[p].feature].table];
                   ForDataType(group.dtype, [&](auto* type) {
                     using T = std::remove_pointer_t<decltype(type)>;
                     faults[p] = LookUpPieceOf<T>(group, format, pieces[p]);
                   });
                 }
               });
  for (const Fault& fault : faults) {
    if (fault.kind != FaultKind::kNone) return fault;
  }
  return {};
}

}  // namespace group_embedding
