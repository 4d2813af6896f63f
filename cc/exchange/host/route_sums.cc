#include "exchange/host/route_sums.h"

#include <algorithm>
#include <numeric>

#include "fused/sample_ids.h"
#include "grouping/group_ids.h"

namespace group_embedding {
namespace {

// What one owner is asked for.
struct OfOwner {
  std::vector<RowSum> sums;
  std::vector<int64_t> ids;
  std::vector<float> weights;         // of each id, where the batch has some
  std::vector<int64_t> counted_keys;  // which have no part in a sum
  int32_t num_open = 0;               // ids since the last sum
};

// Divides the ids of samples among their owners.
class SumsByOwner {
 public:
  SumsByOwner(const RouteInput& input, const RoutedTable& table)
      : owners_(table.placement, input.num_ranks),
        weighted_(input.batch.weights != nullptr),
        of_owner_(input.num_ranks) {}

  void Add(int64_t id, float weight) {
    const Owner owner = owners_.Of(id);
    OfOwner& of_owner = of_owner_[owner.rank];
    if (of_owner.num_open++ == 0) open_.push_back(owner.rank);
    of_owner.ids.push_back(owner.local_id);
    if (weighted_) of_owner.weights.push_back(weight);
  }

  void CountKey(int64_t key) { of_owner_[owners_.Of(key).rank].counted_keys.push_back(key); }

  // Makes sums of the ids since the last call, and appends them, by ascending owner.
  void EndSample(float scale) {
    std::sort(open_.begin(), open_.end());
    for (const int64_t rank : open_) {
      OfOwner& of_owner = of_owner_[rank];
      ranks_.push_back(rank);
      numbers_.push_back(static_cast<int64_t>(of_owner.sums.size()));
      of_owner.sums.push_back({of_owner.num_open, scale});
      of_owner.num_open = 0;
    }
    open_.clear();
  }

  int64_t num_sums() const { return static_cast<int64_t>(ranks_.size()); }

  // rows: written, the row of each sum of a sample in the matrix of all sums.
  TableRequest End(std::vector<int64_t>* rows) {
    TableRequest request;
    request.first_row.assign(1, 0);
    request.first_id.assign(1, 0);
    for (OfOwner& of_owner : of_owner_) {
      SumCountedKeys(&of_owner);
      Append(of_owner.sums, &request.sums);
      Append(of_owner.ids, &request.ids);
      Append(of_owner.weights, &request.weights);
      request.first_row.push_back(static_cast<int64_t>(request.sums.size()));
      request.first_id.push_back(static_cast<int64_t>(request.ids.size()));
    }
    rows->resize(ranks_.size());
    for (size_t i = 0; i < ranks_.size(); ++i) {
      (*rows)[i] = request.first_row[ranks_[i]] + numbers_[i];
    }
    return request;
  }

 private:
  void SumCountedKeys(OfOwner* of_owner) const {
    const std::vector<int64_t>& keys = of_owner->counted_keys;
    if (keys.empty()) return;
    of_owner->sums.push_back({static_cast<int32_t>(keys.size()), 0.0f});
    Append(keys, &of_owner->ids);
    if (weighted_) of_owner->weights.resize(of_owner->ids.size(), 1.0f);
  }

  template <typename T>
  static void Append(const std::vector<T>& from, std::vector<T>* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  const Owners owners_;
  const bool weighted_;
  std::vector<OfOwner> of_owner_;         // [num_ranks]
  std::vector<int64_t> open_;             // the owners of the ids since the last sum
  std::vector<int64_t> ranks_, numbers_;  // of each sum of a sample: its owner, and which it is
};

IdUse UseOf(const RouteInput& input, const RoutedTable& table, Combiner combiner, int64_t id,
            float weight) {
  if (table.num_rows == kAnyKey) {  // any key is valid
    return WeightCounts(combiner, weight) ? IdUse::kRow : IdUse::kNone;
  }
  return UseOfId(id, weight, table.num_rows, combiner, input.invalid_ids.prune_negative);
}

// Adds the ids of one sample, and returns what their sum is multiplied by.
float AddSample(const RouteInput& input, const RoutedTable& table, int64_t f, int64_t sample,
                SumsByOwner* sums, Fault* fault) {
  const Feature& feature = input.features[f];
  const Batch& batch = input.batch;
  const int64_t* split = batch.row_splits + feature.first_sample + sample;
  float sum_weights = 0.0f, sum_squares = 0.0f;
  for (int64_t i = split[0]; i < split[1]; ++i) {
    const int64_t id = batch.ids[i];
    const float weight = batch.weights ? batch.weights[i] : 1.0f;
    const IdUse use = UseOf(input, table, feature.combiner, id, weight);
    if (use == IdUse::kNone) {
      if (table.num_rows == kAnyKey) sums->CountKey(id);
      continue;
    }
    sum_weights += weight;
    sum_squares += weight * weight;
    if (use == IdUse::kRow) {
      sums->Add(id, weight);
    } else if (!input.invalid_ids.read_zeros && fault->kind == FaultKind::kNone) {
      *fault = {FaultKind::kIdOutOfRange, static_cast<int32_t>(f), sample, id};
    }
  }
  return CombinerScale(feature.combiner, sum_weights, sum_squares);
}

// Calls `body(feature index, row splits, ids, whether these are sums)` for all features in order:
// the routed ids of its sample s are ids[row_splits[s]] to ids[row_splits[s + 1]].
template <typename Body>
void ForFeatures(const RouteInput& input, const int64_t* ids, const std::vector<SampleSums>& sums,
                 Body&& body) {
  std::vector<int64_t> next_sample(input.num_tables, 0);  // among those of a table
  for (int64_t f = 0; f < input.num_features; ++f) {
    const Feature& feature = input.features[f];
    const SampleSums& of_table = sums[feature.table];
    if (of_table.row_splits.empty()) {
      body(f, input.batch.row_splits + feature.first_sample, ids, false);
      continue;
    }
    body(f, of_table.row_splits.data() + next_sample[feature.table], of_table.rows.data(), true);
    next_sample[feature.table] += feature.num_samples;
  }
}

}  // namespace

TableRequest RouteSums(const RouteInput& input, const RoutedTable& table,
                       const std::vector<int64_t>& features, SampleSums* sums, Fault* fault) {
  SumsByOwner by_owner(input, table);
  sums->row_splits.assign(1, 0);
  for (const int64_t f : features) {
    for (int64_t s = 0; s < input.features[f].num_samples; ++s) {
      by_owner.EndSample(AddSample(input, table, f, s, &by_owner, fault));
      sums->row_splits.push_back(by_owner.num_sums());
    }
  }
  return by_owner.End(&sums->rows);
}

void CountRoutedIds(const RouteInput& input, const std::vector<SampleSums>& sums,
                    int64_t* num_ids) {
  ForFeatures(input, nullptr, sums, [&](int64_t f, const int64_t* splits, const int64_t*, bool) {
    num_ids[f] = splits[input.features[f].num_samples] - splits[0];
  });
}

void WriteRoutedBatch(const RouteInput& input, const int64_t* ids,
                      const std::vector<SampleSums>& sums, const int64_t* num_ids, float* buffer) {
  const Batch& batch = input.batch;
  const int64_t total_ids = std::accumulate(num_ids, num_ids + input.num_features, int64_t{0});
  const BatchLayout at = LayOutBatch(batch.num_samples, total_ids, batch.weights != nullptr);
  int64_t* row_splits = reinterpret_cast<int64_t*>(buffer);
  int64_t* routed = reinterpret_cast<int64_t*>(buffer + at.ids);
  float* weights = buffer + at.weights;
  int64_t to = 0;
  row_splits[0] = 0;
  ForFeatures(input, ids, sums,
              [&](int64_t f, const int64_t* splits, const int64_t* from, bool are_sums) {
                const Feature& feature = input.features[f];
                const int64_t first = splits[0];
                std::copy_n(from + first, num_ids[f], routed + to);
                if (batch.weights != nullptr && are_sums) {
                  std::fill_n(weights + to, num_ids[f], 1.0f);
                } else if (batch.weights != nullptr) {
                  std::copy_n(batch.weights + first, num_ids[f], weights + to);
                }
                for (int64_t s = 0; s < feature.num_samples; ++s) {
                  row_splits[feature.first_sample + s + 1] = to + splits[s + 1] - first;
                }
                to += num_ids[f];
              });
}

}  // namespace group_embedding
