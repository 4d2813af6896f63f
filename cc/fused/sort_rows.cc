#include "fused/sort_rows.h"

#include <algorithm>
#include <cstring>

#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int kMaxDigitBits = 11;    // 2,048 counters: half of a first-level cache
constexpr int64_t kSmall = 64;       // up to here std::sort is faster than clearing the counters
constexpr int64_t kLarge = 1 << 15;  // from here a table is split: runs fit a second-level cache
constexpr int kSplitBits = 8;
constexpr int64_t kBuckets = int64_t{1} << kSplitBits;
constexpr int64_t kBytesPerId = 16;  // of workspace and spare memory together

int BitsFor(uint64_t values) {  // bits that hold 0 .. values - 1
  return values <= 1 ? 0 : 64 - __builtin_clzll(values - 1);
}

int PlaceBits(const Batch& batch) {
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

// A radix sort by `bits` bits from `shift` on, stable.
void SortByDigits(RowEntry* from, int64_t count, int shift, int bits,
                  std::vector<RowEntry>* spare) {
  const int passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
  if (count <= kSmall) return std::sort(from, from + count);
  if (passes == 0) return;
  if (static_cast<int64_t>(spare->size()) < count) spare->resize(count);
  RowEntry* to = spare->data();
  const int digit_bits = (bits + passes - 1) / passes;
  const RowEntry mask = (RowEntry{1} << digit_bits) - 1;
  uint32_t offsets[1 << kMaxDigitBits];
  for (int pass = 0; pass < passes; ++pass, shift += digit_bits) {
    std::fill(offsets, offsets + mask + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++offsets[from[i] >> shift & mask];
    uint32_t total = 0;
    for (RowEntry digit = 0; digit <= mask; ++digit) {
      const uint32_t here = offsets[digit];
      offsets[digit] = total;
      total += here;
    }
    for (int64_t i = 0; i < count; ++i) to[offsets[from[i] >> shift & mask]++] = from[i];
    std::swap(from, to);
  }
  if (passes % 2 == 1) std::memcpy(to, from, count * sizeof(RowEntry));
}

// Sorts by the lowest `bits` bits, the upper eight of them first, in place: an entry goes where it
// belongs, and the one that was there next (American flag sort; McIlroy, Bostic, McIlroy 1993).
void SortInPlace(RowEntry* from, int64_t count, int bits, std::vector<RowEntry>* spare) {
  if (count < kLarge) return SortByDigits(from, count, 0, bits, spare);
  if (bits == 0) return;
  const int shift = std::max(bits - kSplitBits, 0);
  int64_t counts[kBuckets] = {}, next[kBuckets], ends[kBuckets];
  auto bucket_of = [=](RowEntry entry) { return entry >> shift & (kBuckets - 1); };
  for (int64_t i = 0; i < count; ++i) ++counts[bucket_of(from[i])];
  int64_t total = 0;
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    next[bucket] = total;
    ends[bucket] = total += counts[bucket];
  }
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    while (next[bucket] < ends[bucket]) {
      RowEntry& entry = from[next[bucket]];
      std::swap(entry, from[next[bucket_of(entry)]++]);
    }
  }
  for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    SortInPlace(from + ends[bucket] - counts[bucket], counts[bucket], shift, spare);
  }
}

template <typename T>
T* Take(char** at, int64_t count) {
  T* part = reinterpret_cast<T*>(*at);
  *at += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  return count == 0 ? nullptr : part;
}

}  // namespace

int64_t RowSorter::MaxRows(const Group& group) {
  return static_cast<int64_t>(~uint64_t{0} >> std::max(PlaceBits(group.batch), 1));
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
  place_bits_ = PlaceBits(batch);

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
    if (run.end - run.begin >= kLarge) bytes += (run.end - run.begin) * sizeof(RowEntry);
  }
  has_long_spares_ = bytes <= kBytesPerId * batch.num_ids;
}

void RowSorter::AddRuns(int64_t table, int64_t begin, int64_t end,
                        const ParallelFor& parallel_for) {
  if (begin == end) return;
  if (end - begin >= kLarge) return SplitTable(table, begin, end, parallel_for);
  runs_.push_back({table, begin, end, BitsFor(group_.tables[table].num_rows + 1), false, 0, 0});
}

// write(entry) for every id of a piece of a feature, in order. An id without a gradient gets the
// row after the table's last, and is sorted behind all others.
template <typename Write>
void RowSorter::Expand(const FeaturePiece& piece, const Write& write) const {
  const Feature& feature = group_.features[piece.feature];
  const uint64_t num_rows = static_cast<uint64_t>(group_.tables[feature.table].num_rows);
  const Batch& batch = group_.batch;
  const bool prunes = group_.invalid_ids.prune_negative;
  for (int64_t s = feature.first_sample + piece.begin; s < feature.first_sample + piece.end; ++s) {
    const int64_t end = batch.Begin(s + 1);
    float sum_weights = 0, sum_squares = 0;
    for (int64_t i = batch.Begin(s); i < end; ++i) {
      const int64_t id = batch.ids[i];
      IdUse use;
      if (batch.weights == nullptr) {
        use = UseOfId(id, 1.0f, num_rows, Combiner::kSum, prunes);
        sum_weights += use == IdUse::kNone ? 0.0f : 1.0f;
        sum_squares = sum_weights;
      } else {
        const float weight = batch.weights[i];
        use = UseOfId(id, weight, num_rows, feature.combiner, prunes);
        sum_weights += use == IdUse::kNone ? 0.0f : weight;
        sum_squares += use == IdUse::kNone ? 0.0f : weight * weight;
        samples_[i] = static_cast<uint32_t>(s);
      }
      const RowEntry row = use == IdUse::kRow ? static_cast<uint64_t>(id) : num_rows;
      write(row << place_bits_ | static_cast<RowEntry>(batch.weights == nullptr ? s : i));
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
    const int64_t num_pieces = std::min(num_samples, NumIds(group_, f) / (kLarge / 2) + 1);
    for (int64_t p = 0; p < num_pieces; ++p) {
      pieces.push_back({f, num_samples * p / num_pieces, num_samples * (p + 1) / num_pieces});
    }
  }
  const int bits = BitsFor(group_.tables[table].num_rows + 1);
  const int low_bits = std::max(bits - kSplitBits, 0);
  const int shift = place_bits_ + low_bits;
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  std::vector<int64_t> offsets(num_pieces * kBuckets, 0);
  const int64_t cost = (end - begin) / num_pieces * 2;
  parallel_for(num_pieces, cost, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      int64_t* counts = offsets.data() + p * kBuckets;
      Expand(pieces[p], [=](RowEntry entry) { ++counts[entry >> shift]; });
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
      runs_.push_back({table, bucket_begin, total, low_bits, true, 0, 0});
    }
  }
  parallel_for(num_pieces, cost, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      int64_t* next = offsets.data() + p * kBuckets;
      Expand(pieces[p], [=](RowEntry entry) { entries_[next[entry >> shift]++] = entry; });
    }
  });
}

void RowSorter::Sort(RowRun* run, std::vector<RowEntry>* spare) const {
  if (!run->is_expanded) {
    RowEntry* to = entries_ + run->begin;
    for (const int64_t f : features_of_[run->table]) {
      Expand({f, 0, group_.features[f].num_samples}, [&](RowEntry entry) { *to++ = entry; });
    }
  }
  SortEntries(*run, spare);
  const RowEntry end_row = static_cast<RowEntry>(group_.tables[run->table].num_rows);
  const RowEntry* entry = entries_ + run->begin;
  while (run->end > run->begin && entries_[run->end - 1] >> place_bits_ == end_row) --run->end;
  RowEntry last = end_row;
  run->num_unique = 0;
  for (const RowEntry* stop = entries_ + run->end; entry != stop; ++entry) {
    const RowEntry row = *entry >> place_bits_;
    run->num_unique += row != last;
    last = row;
  }
}

void RowSorter::SortEntries(const RowRun& run, std::vector<RowEntry>* spare) const {
  const int64_t count = run.end - run.begin;
  if (count < kLarge || has_long_spares_) {
    SortByDigits(entries_ + run.begin, count, place_bits_, run.bits, spare);
  } else if (run.bits > 0) {
    SortInPlace(entries_ + run.begin, count, place_bits_ + run.bits, spare);
  }
}

int64_t RowSorter::CostOfRun(int64_t passes) const {
  int64_t nanoseconds = 0;
  for (const RowRun& run : runs_) {
    nanoseconds += (run.end - run.begin) * (20 + passes * group_.tables[run.table].dim);
  }
  return 100 + nanoseconds / std::max<int64_t>(1, static_cast<int64_t>(runs_.size()));
}

std::vector<int64_t> RowSorter::CountRows() {
  std::vector<int64_t> num_unique(group_.num_tables + 1, 0);
  for (RowRun& run : runs_) {
    run.first_unique = num_unique[run.table + 1];
    num_unique[run.table + 1] += run.num_unique;
  }
  for (int64_t t = 0; t < group_.num_tables; ++t) num_unique[t + 1] += num_unique[t];
  return num_unique;
}

}  // namespace group_embedding
