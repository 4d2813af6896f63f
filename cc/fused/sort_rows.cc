// SortRowsCpu: every looked-up id becomes an entry (row, position), sorted by a radix sort of the
// row's significant bits. The sort is stable and entries start in the order of positions, so that
// each row's positions ascend, however the work was cut for threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fused/feature_pieces.h"
#include "fused/group_lookup_grad.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

// Row in the upper half, position in the lower one. Rows need more than 32 bits only in a table of
// more than 2^32 rows; then positions get fewer, and kRowBits + kPositionBits stay within 64.
using Entry = uint64_t;

constexpr int kMaxDigitBits = 11;    // 2,048 counters: half of a first-level cache
constexpr int64_t kSmall = 64;       // up to here std::sort is faster than clearing the counters
constexpr int64_t kLarge = 1 << 17;  // from here a table is split so that threads can share it
constexpr int kSplitBits = 8;

int BitsFor(uint64_t values) {  // bits that hold 0 .. values - 1
  return values <= 1 ? 0 : 64 - __builtin_clzll(values - 1);
}

template <typename T>
T* Take(char** at, int64_t count) {
  T* part = reinterpret_cast<T*>(*at);
  *at += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  return part;
}

struct Workspace {
  Entry *entries, *spare;         // [num_ids]; once sorted, `spare` holds the unique rows
  int64_t* segments;              // [num_ids + 1]
  uint32_t *positions, *samples;  // [num_ids]
  float* scales;                  // [num_samples]
  int64_t* num_unique;            // [num_tables + 1]
};

Workspace Lay(const Group& group, void* memory, int64_t* bytes) {
  char* at = static_cast<char*>(memory);
  Workspace w;
  w.entries = Take<Entry>(&at, group.batch.num_ids);
  w.spare = Take<Entry>(&at, group.batch.num_ids);
  w.segments = Take<int64_t>(&at, group.batch.num_ids + 1);
  w.positions = Take<uint32_t>(&at, group.batch.num_ids);
  w.samples = Take<uint32_t>(&at, group.batch.num_ids);
  w.scales = Take<float>(&at, group.batch.num_samples);
  w.num_unique = Take<int64_t>(&at, group.num_tables + 1);
  if (bytes != nullptr) *bytes = at - static_cast<char*>(memory);
  return w;
}

// A run of entries that one thread sorts: all of a table's, or those of one split of a large table.
struct Run {
  int64_t table;
  int64_t begin, end;
  int bits;  // significant bits of the rows in it, below those that the split has settled
};

struct Sorter {
  const Group& group;
  const ParallelFor& parallel_for;
  const Workspace& w;
  const int position_bits;

  std::vector<int64_t> feature_begin;  // first entry of each feature
  std::vector<int64_t> table_begin;    // first entry of each table, and the end

  Sorter(const Group& g, const ParallelFor& p, const Workspace& workspace)
      : group(g), parallel_for(p), w(workspace), position_bits(BitsFor(g.batch.num_ids)) {
    table_begin.assign(group.num_tables + 1, 0);
    feature_begin.resize(group.num_features);
    for (int64_t f = 0; f < group.num_features; ++f) {
      table_begin[group.features[f].table + 1] += NumIds(f);
    }
    for (int64_t t = 0; t < group.num_tables; ++t) table_begin[t + 1] += table_begin[t];
    std::vector<int64_t> next(table_begin.begin(), table_begin.end() - 1);
    for (int64_t f = 0; f < group.num_features; ++f) {
      feature_begin[f] = next[group.features[f].table];
      next[group.features[f].table] += NumIds(f);
    }
  }

  int64_t NumIds(int64_t f) const {
    const Feature& feature = group.features[f];
    const int64_t* splits = group.batch.row_splits + feature.first_sample;
    return splits[feature.num_samples] - splits[0];
  }

  // Writes entries, samples and scales of one piece. An id without a gradient gets the row after
  // the table's last, and is sorted behind all others.
  void Expand(const FeaturePiece& piece) const {
    const Feature& feature = group.features[piece.feature];
    const int64_t num_rows = group.tables[feature.table].num_rows;
    const Batch& batch = group.batch;
    const int64_t shift = feature_begin[piece.feature] - batch.row_splits[feature.first_sample];
    for (int64_t s = feature.first_sample + piece.begin; s < feature.first_sample + piece.end;
         ++s) {
      float sum_weights = 0, sum_squares = 0;
      for (int64_t i = batch.row_splits[s]; i < batch.row_splits[s + 1]; ++i) {
        const float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
        const IdUse use = UseOfId(batch.ids[i], weight, num_rows, feature.combiner,
                                  group.invalid_ids.prune_negative);
        if (use != IdUse::kNone) {
          sum_weights += weight;
          sum_squares += weight * weight;
        }
        const int64_t row = use == IdUse::kRow ? batch.ids[i] : num_rows;
        w.entries[shift + i] = static_cast<Entry>(row) << position_bits | static_cast<Entry>(i);
        w.samples[i] = static_cast<uint32_t>(s);
      }
      w.scales[s] = CombinerScale(feature.combiner, sum_weights, sum_squares);
    }
  }

  void ExpandAll() const {
    const std::vector<FeaturePiece> pieces = CutFeatures(group);
    parallel_for(static_cast<int64_t>(pieces.size()), kPieceNanoseconds,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t p = begin; p < end; ++p) Expand(pieces[p]);
                 });
  }

  // Splits a large table by the upper bits of its rows, in place of `entries`; appends its runs.
  void Split(int64_t table, std::vector<Run>* runs) const {
    const int64_t begin = table_begin[table], count = table_begin[table + 1] - begin;
    const int bits = BitsFor(group.tables[table].num_rows + 1);
    const int low_bits = std::max(bits - kSplitBits, 0);
    const int shift = position_bits + low_bits;
    constexpr int64_t kBuckets = int64_t{1} << kSplitBits;
    const int64_t num_parts = 16, part = (count + num_parts - 1) / num_parts;
    std::vector<int64_t> offsets(num_parts * kBuckets, 0);
    auto for_parts = [&](const std::function<void(int64_t*, const Entry*, const Entry*)>& body) {
      parallel_for(num_parts, part * 2, [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p) {
          const Entry* entries = w.entries + begin;
          body(offsets.data() + p * kBuckets, entries + std::min(count, p * part),
               entries + std::min(count, (p + 1) * part));
        }
      });
    };
    for_parts([&](int64_t* counts, const Entry* entry, const Entry* last) {
      for (; entry != last; ++entry) ++counts[*entry >> shift];
    });
    int64_t total = begin;
    for (int64_t bucket = 0; bucket < kBuckets; ++bucket) {
      const int64_t bucket_begin = total;
      for (int64_t p = 0; p < num_parts; ++p) {
        int64_t& offset = offsets[p * kBuckets + bucket];
        const int64_t here = offset;
        offset = total;
        total += here;
      }
      if (total > bucket_begin) runs->push_back({table, bucket_begin, total, low_bits});
    }
    for_parts([&](int64_t* next, const Entry* entry, const Entry* last) {
      for (; entry != last; ++entry) w.spare[next[*entry >> shift]++] = *entry;
    });
    parallel_for(count, 1, [&](int64_t first, int64_t last) {
      std::memcpy(w.entries + begin + first, w.spare + begin + first,
                  (last - first) * sizeof(Entry));
    });
  }

  void SortRun(const Run& run) const {
    const int64_t count = run.end - run.begin;
    Entry* from = w.entries + run.begin;
    if (count <= kSmall) return std::sort(from, from + count);
    Entry* to = w.spare + run.begin;
    const int passes = (run.bits + kMaxDigitBits - 1) / kMaxDigitBits;
    if (passes == 0) return;
    const int digit_bits = (run.bits + passes - 1) / passes;
    const Entry mask = (Entry{1} << digit_bits) - 1;
    int64_t offsets[1 << kMaxDigitBits];
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = position_bits + pass * digit_bits;
      std::fill(offsets, offsets + mask + 1, 0);
      for (int64_t i = 0; i < count; ++i) ++offsets[from[i] >> shift & mask];
      int64_t total = 0;
      for (Entry digit = 0; digit <= mask; ++digit) {
        const int64_t here = offsets[digit];
        offsets[digit] = total;
        total += here;
      }
      for (int64_t i = 0; i < count; ++i) to[offsets[from[i] >> shift & mask]++] = from[i];
      std::swap(from, to);
    }
    if (from != w.entries + run.begin) std::memcpy(to, from, count * sizeof(Entry));
  }

  // Entries of valid ids, and unique rows among them, in a sorted run.
  void Count(const Run& run, int64_t* num_valid, int64_t* num_unique) const {
    const Entry end_row = static_cast<Entry>(group.tables[run.table].num_rows);
    *num_valid = *num_unique = 0;
    Entry last = end_row;
    for (int64_t i = run.begin; i < run.end; ++i) {
      const Entry row = w.entries[i] >> position_bits;
      if (row == end_row) return;
      *num_unique += row != last;
      last = row;
      ++*num_valid;
    }
  }
};

}  // namespace

int64_t SortRowsWorkspaceBytes(const Group& group) {
  int64_t bytes;
  Lay(group, nullptr, &bytes);
  return bytes;
}

SortedRowsCpu SortRowsCpu(const Group& group, void* workspace, const ParallelFor& parallel_for) {
  const Workspace w = Lay(group, workspace, nullptr);
  Sorter sorter(group, parallel_for, w);
  sorter.ExpandAll();

  std::vector<Run> runs;
  for (int64_t t = 0; t < group.num_tables; ++t) {
    const int64_t begin = sorter.table_begin[t], end = sorter.table_begin[t + 1];
    if (end - begin >= kLarge) {
      sorter.Split(t, &runs);
    } else if (end > begin) {
      runs.push_back({t, begin, end, BitsFor(group.tables[t].num_rows + 1)});
    }
  }
  const int64_t num_runs = static_cast<int64_t>(runs.size());
  const int64_t cost = 100 + 10 * group.batch.num_ids / std::max<int64_t>(num_runs, 1);
  std::vector<int64_t> valid(num_runs + 1, 0), unique(num_runs + 1, 0);
  parallel_for(num_runs, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      sorter.SortRun(runs[r]);
      sorter.Count(runs[r], &valid[r + 1], &unique[r + 1]);
    }
  });
  std::fill(w.num_unique, w.num_unique + group.num_tables + 1, 0);
  for (int64_t r = 0; r < num_runs; ++r) {
    w.num_unique[runs[r].table + 1] += unique[r + 1];
    valid[r + 1] += valid[r];
    unique[r + 1] += unique[r];
  }
  for (int64_t t = 0; t < group.num_tables; ++t) w.num_unique[t + 1] += w.num_unique[t];

  int64_t* rows = reinterpret_cast<int64_t*>(w.spare);
  const Entry position_mask = (Entry{1} << sorter.position_bits) - 1;
  parallel_for(num_runs, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Entry* entries = w.entries + runs[r].begin;
      int64_t u = unique[r];
      for (int64_t i = valid[r]; i < valid[r + 1]; ++i, ++entries) {
        const int64_t row = static_cast<int64_t>(*entries >> sorter.position_bits);
        if (i == valid[r] || row != rows[u - 1]) {
          rows[u] = row;
          w.segments[u++] = i;
        }
        w.positions[i] = static_cast<uint32_t>(*entries & position_mask);
      }
    }
  });
  w.segments[unique[num_runs]] = valid[num_runs];
  return {rows, w.segments, w.positions, w.samples, w.scales, w.num_unique};
}

}  // namespace group_embedding
