#include "fused/sort_rows.h"

#include <algorithm>

#include "fused/radix_sort.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int64_t kBytesPerId = 16;  // of workspace and spare memory together

int BitsFor(uint64_t values) {  // bits that hold 0 .. values - 1
  return values <= 1 ? 0 : 64 - __builtin_clzll(values - 1);
}

int SourceBits(const Batch& batch) {
  return BitsFor(batch.weights == nullptr ? batch.num_samples : batch.num_ids);
}

bool HasScales(const Group& group) {
  for (int64_t f = 0; f < group.num_features; ++f) {
    if (group.features[f].combiner != Combiner::kSum) return true;
  }
  return false;
}

int64_t NumIds(const Group& group, int64_t f) {
  const Feature& feature = group.features[f];
  return group.batch.Begin(feature.first_sample + feature.num_samples) -
         group.batch.Begin(feature.first_sample);
}

template <typename T>
T* Take(char** at, int64_t count) {
  T* part = reinterpret_cast<T*>(*at);
  *at += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  return count == 0 ? nullptr : part;
}

}  // namespace

int64_t RowSorter::MaxRows(const Group& group) {
  return static_cast<int64_t>(~uint64_t{0} >> std::max(SourceBits(group.batch), 1));
}

int64_t RowSorter::WorkspaceBytes(const Group& group) {
  char* at = nullptr;
  Take<RowEntry>(&at, group.batch.num_ids);
  Take<uint32_t>(&at, group.batch.weights == nullptr ? 0 : group.batch.num_ids);
  Take<float>(&at, HasScales(group) ? group.batch.num_samples : 0);
  return reinterpret_cast<intptr_t>(at);
}

RowSorter::RowSorter(const Group& group, void* workspace, const ParallelFor& parallel_for)
    : group_(group), features_of_(group.num_tables) {
  const Batch& batch = group.batch;
  const bool weighted = batch.weights != nullptr;
  char* at = static_cast<char*>(workspace);
  entries_ = Take<RowEntry>(&at, batch.num_ids);
  samples_ = Take<uint32_t>(&at, weighted ? batch.num_ids : 0);
  scales_ = Take<float>(&at, HasScales(group) ? batch.num_samples : 0);
  source_bits_ = SourceBits(batch);

  for (int64_t f = 0; f < group.num_features; ++f) {
    const Feature& feature = group.features[f];
    if (feature.num_samples > 0 && feature.output != nullptr) {
      features_of_[feature.table].push_back(f);
    }
  }
  int64_t begin = 0;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    int64_t end = begin;
    for (const int64_t f : features_of_[t]) end += NumIds(group, f);
    AddRuns(t, begin, end, parallel_for);
    begin = end;
  }
  int64_t bytes = WorkspaceBytes(group);
  for (const RowRun& run : runs_) {
    if (run.end - run.begin >= kManyEntries) bytes += (run.end - run.begin) * sizeof(RowEntry);
  }
  has_long_spares_ = bytes <= kBytesPerId * batch.num_ids;
}

void RowSorter::AddRuns(int64_t table, int64_t begin, int64_t end,
                        const ParallelFor& parallel_for) {
  if (begin == end) return;
  if (end - begin >= kManyEntries) return SplitTable(table, begin, end, parallel_for);
  runs_.push_back(
      {table, begin, end, BitsFor(group_.tables[table].num_rows + 1), false, nullptr, 0, 0});
}

// use(row) for every id of a piece of a feature, in order. An id without a gradient gets the row
// after the table's last, and is sorted behind all others.
template <typename Use>
void RowSorter::ForEachRow(const FeaturePiece& piece, const Use& use) const {
  const Feature& feature = group_.features[piece.feature];
  const uint64_t num_rows = static_cast<uint64_t>(group_.tables[feature.table].num_rows);
  const Batch& batch = group_.batch;
  const int64_t end = batch.Begin(feature.first_sample + piece.end);
  for (int64_t i = batch.Begin(feature.first_sample + piece.begin); i < end; ++i) {
    const uint64_t id = static_cast<uint64_t>(batch.ids[i]);
    const bool counts =
        batch.weights == nullptr || WeightCounts(feature.combiner, batch.weights[i]);
    use(counts && id < num_rows ? id : num_rows);
  }
}

// use(entry) for every id of a piece of a feature, in order, with its row as of ForEachRow. Writes
// the samples of the positions and the samples' scales.
template <typename Use>
void RowSorter::Expand(const FeaturePiece& piece, const Use& use) const {
  const Feature& feature = group_.features[piece.feature];
  const uint64_t num_rows = static_cast<uint64_t>(group_.tables[feature.table].num_rows);
  const Batch& batch = group_.batch;
  const bool prunes = group_.invalid_ids.prune_negative;
  for (int64_t s = feature.first_sample + piece.begin; s < feature.first_sample + piece.end; ++s) {
    const int64_t end = batch.Begin(s + 1);
    float sum_weights = 0, sum_squares = 0;
    for (int64_t i = batch.Begin(s); i < end; ++i) {
      const int64_t id = batch.ids[i];
      IdUse id_use;
      if (batch.weights == nullptr) {
        id_use = UseOfId(id, 1.0f, num_rows, Combiner::kSum, prunes);
        sum_weights += id_use == IdUse::kNone ? 0.0f : 1.0f;
        sum_squares = sum_weights;
      } else {
        const float weight = batch.weights[i];
        id_use = UseOfId(id, weight, num_rows, feature.combiner, prunes);
        sum_weights += id_use == IdUse::kNone ? 0.0f : weight;
        sum_squares += id_use == IdUse::kNone ? 0.0f : weight * weight;
        samples_[i] = static_cast<uint32_t>(s);
      }
      const RowEntry row = id_use == IdUse::kRow ? static_cast<uint64_t>(id) : num_rows;
      use(row << source_bits_ | static_cast<RowEntry>(batch.weights == nullptr ? s : i));
    }
    if (scales_ != nullptr) scales_[s] = CombinerScale(feature.combiner, sum_weights, sum_squares);
  }
}

// Writes the entries of a large table in order of the upper bits of their rows: a run for each
// value of those. Pieces of its features are counted, then written, by many threads; where a piece
// writes follows from the counts alone.
void RowSorter::SplitTable(int64_t table, int64_t begin, int64_t end,
                           const ParallelFor& parallel_for) {
  std::vector<FeaturePiece> pieces;
  for (const int64_t f : features_of_[table]) {
    const int64_t num_samples = group_.features[f].num_samples;
    const int64_t num_pieces = std::min(num_samples, NumIds(group_, f) / (kManyEntries / 2) + 1);
    for (int64_t p = 0; p < num_pieces; ++p) {
      pieces.push_back({f, num_samples * p / num_pieces, num_samples * (p + 1) / num_pieces});
    }
  }
  const int bits = BitsFor(group_.tables[table].num_rows + 1);
  const int low_bits = std::max(bits - kSplitBits, 0);
  const int shift = source_bits_ + low_bits;
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  std::vector<int64_t> offsets(num_pieces * kBuckets, 0);
  const int64_t cost = (end - begin) / num_pieces * 2;
  parallel_for(num_pieces, cost, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      int64_t* counts = offsets.data() + p * kBuckets;
      ForEachRow(pieces[p], [=](RowEntry row) { ++counts[row >> low_bits]; });
    }
  });
  int64_t total = begin;
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    const int64_t bucket_begin = total;
    for (int64_t p = 0; p < num_pieces; ++p) {
      const int64_t here = offsets[p * kBuckets + bucket];
      offsets[p * kBuckets + bucket] = total;
      total += here;
    }
    if (total > bucket_begin) {
      runs_.push_back({table, bucket_begin, total, low_bits, true, nullptr, 0, 0});
    }
  }
  parallel_for(num_pieces, cost, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      int64_t* next = offsets.data() + p * kBuckets;
      Expand(pieces[p], [=](RowEntry entry) { entries_[next[entry >> shift]++] = entry; });
    }
  });
}

void RowSorter::Sort(RowRun* run, std::vector<RowEntry>* scratch) const {
  if (run->is_expanded) return SortExpanded(run, scratch);
  const int64_t count = run->end - run->begin;
  RowEntry* space = Resized(scratch, 2 * count);
  ExpandSorted(run, space, space + count);
}

void RowSorter::SortToKeep(RowRun* run, std::vector<RowEntry>* scratch) const {
  if (run->is_expanded) return SortExpanded(run, scratch);
  ExpandSorted(run, entries_ + run->begin, Resized(scratch, run->end - run->begin));
}

void RowSorter::SortExpanded(RowRun* run, std::vector<RowEntry>* scratch) const {
  RowEntry* const entries = entries_ + run->begin;
  const int64_t count = run->end - run->begin;
  if (count < kManyEntries || has_long_spares_) {
    SortByDigits(entries, count, source_bits_, run->bits, scratch);
  } else if (run->bits > 0) {
    SortInPlace(entries, count, source_bits_ + run->bits, scratch);
  }
  run->entries = entries;
  DropIdsWithoutGradient(run);
}

// Entries come in the order of their places, and are written in that of their rows' lowest digit at
// once.
void RowSorter::ExpandSorted(RowRun* run, RowEntry* to, RowEntry* spare) const {
  const int64_t count = run->end - run->begin;
  const auto for_each_feature = [&](const auto& body) {
    for (const int64_t f : features_of_[run->table]) {
      body(FeaturePiece{f, 0, group_.features[f].num_samples});
    }
  };
  const auto expand = [&](const auto& use) {
    for_each_feature([&](const FeaturePiece& all) { Expand(all, use); });
  };
  const Digits digits(run->bits);
  if (count <= kFewEntries || digits.count == 0) {
    RowEntry* next = to;
    expand([&](RowEntry entry) { *next++ = entry; });
    std::sort(to, next);
  } else {
    const auto count_rows = [&](const auto& use) {
      for_each_feature([&](const FeaturePiece& all) {
        ForEachRow(all, [&](RowEntry row) { use(row << source_bits_); });
      });
    };
    if (digits.count % 2 == 0) std::swap(to, spare);
    Distribute(source_bits_, digits.bits, to, count_rows, expand);
    to = DistributeByDigits(to, spare, count, source_bits_ + digits.bits, digits.bits,
                            digits.count - 1);
  }
  run->entries = to;
  DropIdsWithoutGradient(run);
}

// They are the last.
void RowSorter::DropIdsWithoutGradient(RowRun* run) const {
  const RowEntry end_row = static_cast<RowEntry>(group_.tables[run->table].num_rows);
  int64_t count = run->end - run->begin;
  while (count > 0 && run->entries[count - 1] >> source_bits_ == end_row) --count;
  run->end = run->begin + count;
}

int64_t RowSorter::CostOfRun(int64_t passes) const {
  int64_t nanoseconds = 0;
  for (const RowRun& run : runs_) {
    nanoseconds += (run.end - run.begin) * (20 + passes * group_.tables[run.table].dim);
  }
  return 100 + nanoseconds / std::max<int64_t>(1, static_cast<int64_t>(runs_.size()));
}

void RowSorter::CountRows(RowRun* run) const {
  RowEntry last = ~RowEntry{0};
  run->num_unique = 0;
  for (int64_t e = 0; e < run->end - run->begin; ++e) {
    const RowEntry row = run->entries[e] >> source_bits_;
    run->num_unique += row != last;
    last = row;
  }
}

std::vector<int64_t> RowSorter::SumRows() {
  std::vector<int64_t> num_unique(group_.num_tables + 1, 0);
  for (RowRun& run : runs_) {
    run.first_unique = num_unique[run.table + 1];
    num_unique[run.table + 1] += run.num_unique;
  }
  for (int64_t t = 0; t < group_.num_tables; ++t) num_unique[t + 1] += num_unique[t];
  return num_unique;
}

}  // namespace group_embedding
