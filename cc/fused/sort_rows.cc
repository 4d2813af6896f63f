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

// A radix sort's digits, all of as many bits.
struct Digits {
  explicit Digits(int bits)
      : count((bits + kMaxDigitBits - 1) / kMaxDigitBits),
        bits(count == 0 ? 0 : (bits + count - 1) / count) {}
  const int count, bits;
};

// Writes entries in the order of one digit, stable. `count` and `move` each hand all of them, in
// the same order, to the function that they are given; what lies below `shift` may differ.
template <typename Count, typename Move>
void Distribute(int shift, int bits, RowEntry* to, const Count& count, const Move& move) {
  uint32_t offsets[1 << kMaxDigitBits];
  const RowEntry mask = (RowEntry{1} << bits) - 1;
  std::fill(offsets, offsets + mask + 1, 0);
  count([&](RowEntry entry) { ++offsets[entry >> shift & mask]; });
  uint32_t total = 0;
  for (RowEntry digit = 0; digit <= mask; ++digit) {
    const uint32_t here = offsets[digit];
    offsets[digit] = total;
    total += here;
  }
  move([&](RowEntry entry) { to[offsets[entry >> shift & mask]++] = entry; });
}

// Distributes by each of `num_digits` digits from `shift` on, the lowest first, from one array to
// the other and back; returns the one that has the result.
RowEntry* DistributeByDigits(RowEntry* from, RowEntry* to, int64_t count, int shift, int digit_bits,
                             int num_digits) {
  for (; num_digits > 0; --num_digits, shift += digit_bits, std::swap(from, to)) {
    const auto for_each = [=](const auto& use) {
      for (int64_t i = 0; i < count; ++i) use(from[i]);
    };
    Distribute(shift, digit_bits, to, for_each, for_each);
  }
  return from;
}

RowEntry* Resized(std::vector<RowEntry>* spare, int64_t count) {
  if (static_cast<int64_t>(spare->size()) < count) spare->resize(count);
  return spare->data();
}

// A radix sort by `bits` bits from `shift` on, stable where the rest is ascending already.
void SortByDigits(RowEntry* from, int64_t count, int shift, int bits,
                  std::vector<RowEntry>* spare) {
  if (count <= kSmall) return std::sort(from, from + count);
  const Digits digits(bits);
  RowEntry* sorted =
      DistributeByDigits(from, Resized(spare, count), count, shift, digits.bits, digits.count);
  if (sorted != from) std::memcpy(from, sorted, count * sizeof(RowEntry));
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
    if (run.end - run.begin >= kLarge) bytes += (run.end - run.begin) * sizeof(RowEntry);
  }
  has_long_spares_ = bytes <= kBytesPerId * batch.num_ids;
}

void RowSorter::AddRuns(int64_t table, int64_t begin, int64_t end,
                        const ParallelFor& parallel_for) {
  if (begin == end) return;
  if (end - begin >= kLarge) return SplitTable(table, begin, end, parallel_for);
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
    const int64_t num_pieces = std::min(num_samples, NumIds(group_, f) / (kLarge / 2) + 1);
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
  if (count < kLarge || has_long_spares_) {
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
  if (count <= kSmall || digits.count == 0) {
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
