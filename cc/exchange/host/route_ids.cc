#include "exchange/host/route_ids.h"

#include <algorithm>

#include "exchange/host/route_sums.h"
#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int64_t kLeftOut = -1, kReadsZeros = -2;

// The unique ids of one table, in the order they were first seen.
//
// No branch depends on whether an id is new: it would be mispredicted, which costs more than all
// the rest. Each id is written behind the unique ids first. An empty cell holds a number above
// their count, and the id's number is the minimum of the cell and the count.
class UniqueIds {
 public:
  // Starts with the next table. are_counted: whether the occurrences of each id are needed.
  void Clear(int64_t max_ids, bool are_counted) {
    size_t size = 16;
    while (size < 2 * static_cast<size_t>(max_ids)) size *= 2;
    cells_.assign(size, kEmpty);
    mask_ = size - 1;
    size_ = 0;
    ids_.resize(max_ids + 1);
    times_.assign(are_counted ? max_ids + 1 : 0, 0);
  }

  // Returns the number of `id`, which occurs so many times, among the unique ids.
  int64_t Add(int64_t id, int64_t times) {
    ids_[size_] = id;
    size_t cell = (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> 20) & mask_;
    uint32_t number = NumberIn(cell);
    while (ids_[number] != id) {
      cell = (cell + 1) & mask_;
      number = NumberIn(cell);
    }
    cells_[cell] = number;
    size_ += number == size_;
    if (!times_.empty()) times_[number] = std::min(times_[number] + times, kMaxTimes);
    return number;
  }

  int64_t size() const { return size_; }
  const int64_t* ids() const { return ids_.data(); }                                 // [size()]
  const int64_t* times() const { return times_.empty() ? nullptr : times_.data(); }  // [size()]

 private:
  static constexpr uint32_t kEmpty = 0xFFFFFFFF;

  uint32_t NumberIn(size_t cell) const {
    uint32_t number = std::min(cells_[cell], size_);
    asm("" : "+r"(number));  // keeps GCC from branching on the minimum
    return number;
  }

  std::vector<uint32_t> cells_;  // open addressing; number of a unique id, or kEmpty
  size_t mask_ = 0;
  uint32_t size_ = 0;
  std::vector<int64_t> ids_, times_;  // with space for one more id
};

// The ranks that are asked for ids of one table, and what for: owners for local ids, or proxies for
// the ids themselves.
class AskedRanks {
 public:
  AskedRanks(const RouteInput& input, const RoutedTable& table)
      : owners_(table.placement, input.num_ranks),
        proxies_(input.proxies),
        num_ranks_(proxies_.of.empty() ? input.num_ranks : proxies_.num_ranks) {}

  int64_t num_ranks() const { return num_ranks_; }
  Owner For(int64_t id) const {
    const Owner owner = owners_.Of(id);
    return proxies_.of.empty() ? owner : Owner{proxies_.of[owner.rank], id};
  }

 private:
  const Owners owners_;
  const Proxies& proxies_;
  const int64_t num_ranks_;
};

// Sorts unique ids by the rank that is asked, stably; `new_number`: written, the new number of
// each.
TableRequest SortByRank(const UniqueIds& unique, const AskedRanks& ranks,
                        std::vector<int64_t>* new_number) {
  const int64_t *ids = unique.ids(), *times = unique.times();
  const int64_t num_ids = unique.size(), num_ranks = ranks.num_ranks();
  TableRequest request;
  request.first_row.assign(num_ranks + 1, 0);
  for (int64_t u = 0; u < num_ids; ++u) ++request.first_row[ranks.For(ids[u]).rank + 1];
  for (int64_t n = 0; n < num_ranks; ++n) request.first_row[n + 1] += request.first_row[n];
  std::vector<int64_t> next(request.first_row.begin(), request.first_row.end() - 1);
  request.ids.resize(num_ids);
  request.times.resize(times == nullptr ? 0 : num_ids);
  new_number->resize(num_ids);
  for (int64_t u = 0; u < num_ids; ++u) {
    const Owner asked = ranks.For(ids[u]);
    const int64_t to = (*new_number)[u] = next[asked.rank]++;
    request.ids[to] = asked.local_id;
    if (times != nullptr) request.times[to] = times[u];
  }
  return request;
}

// Calls `body(position, id, weight, feature index, sample)` for the ids of one table, in order.
template <typename Body>
void ForIdsOfTable(const RouteInput& input, const std::vector<int64_t>& features, Body&& body) {
  const Batch& batch = input.batch;
  for (const int64_t f : features) {
    const Feature& feature = input.features[f];
    for (int64_t s = 0; s < feature.num_samples; ++s) {
      const int64_t* split = batch.row_splits + feature.first_sample + s;
      for (int64_t i = split[0]; i < split[1]; ++i) {
        body(i, batch.ids[i], batch.weights ? batch.weights[i] : 1.0f, f, s);
      }
    }
  }
}

int64_t NumIds(const RouteInput& input, const std::vector<int64_t>& features) {
  int64_t num_ids = 0;
  for (const int64_t f : features) {
    const Feature& feature = input.features[f];
    num_ids += input.batch.row_splits[feature.first_sample + feature.num_samples] -
               input.batch.row_splits[feature.first_sample];
  }
  return num_ids;
}

TableRequest RouteTable(const RouteInput& input, const RoutedTable& table,
                        const std::vector<int64_t>& features, UniqueIds* unique, int64_t* ids,
                        Fault* fault) {
  unique->Clear(NumIds(input, features), /*are_counted=*/table.num_rows == kAnyKey);
  ForIdsOfTable(input, features, [&](int64_t i, int64_t id, float weight, int64_t f, int64_t s) {
    const int64_t times = input.times == nullptr ? 1 : input.times[i];
    if (table.num_rows == kAnyKey) {
      ids[i] = unique->Add(id, times);
      return;
    }
    const IdUse use = UseOfId(id, weight, table.num_rows, input.features[f].combiner,
                              input.invalid_ids.prune_negative);
    if (use == IdUse::kZeros && !input.invalid_ids.read_zeros && fault->kind == FaultKind::kNone) {
      *fault = {FaultKind::kIdOutOfRange, static_cast<int32_t>(f), s, id};
    }
    ids[i] = use == IdUse::kRow     ? unique->Add(id, times)
             : use == IdUse::kZeros ? kReadsZeros
                                    : kLeftOut;
  });
  std::vector<int64_t> new_number;
  TableRequest request = SortByRank(*unique, AskedRanks(input, table), &new_number);
  const int64_t past_the_end = static_cast<int64_t>(new_number.size());
  ForIdsOfTable(input, features, [&](int64_t i, int64_t, float, int64_t, int64_t) {
    if (ids[i] != kLeftOut) ids[i] = ids[i] == kReadsZeros ? past_the_end : new_number[ids[i]];
  });
  return request;
}

template <typename T>
void Repeat(int64_t times, std::vector<T>* values) {
  const size_t size = values->size();
  values->resize(times * size);
  for (int64_t n = 1; n < times; ++n) {
    std::copy_n(values->begin(), size, values->begin() + n * size);
  }
}

// Where each of many ranks' rows begin that are as many as those of the first one.
void RepeatFirst(std::vector<int64_t>* begin) {
  for (size_t n = 2; n < begin->size(); ++n) (*begin)[n] = static_cast<int64_t>(n) * (*begin)[1];
}

// Asks all ranks for what the first one is asked for.
void AskAllRanks(int64_t num_ranks, TableRequest* request) {
  RepeatFirst(&request->first_row);
  RepeatFirst(&request->first_id);
  Repeat(num_ranks, &request->ids);
  Repeat(num_ranks, &request->sums);
  Repeat(num_ranks, &request->weights);
}

}  // namespace

std::vector<TableRequest> RouteIds(const RouteInput& input, int64_t* ids,
                                   std::vector<SampleSums>* sums, Fault* fault,
                                   const ParallelFor& parallel_for) {
  std::vector<std::vector<int64_t>> features_of(input.num_tables);
  for (int64_t f = 0; f < input.num_features; ++f) {
    features_of[input.features[f].table].push_back(f);
  }
  std::vector<TableRequest> requests(input.num_tables);
  std::vector<Fault> faults(input.num_tables);
  sums->assign(input.num_tables, {});
  const int64_t cost = 20 * (1 + input.batch.num_ids / std::max<int64_t>(1, input.num_tables));
  parallel_for(input.num_tables, cost, [&](int64_t begin, int64_t end) {
    UniqueIds unique;
    for (int64_t t = begin; t < end; ++t) {
      RoutedTable table = input.tables[t];
      const bool is_by_columns = table.placement.kind == PlacementKind::kColumns;
      if (is_by_columns) table.placement = {PlacementKind::kOneRank, 0};
      requests[t] = table.sums ? RouteSums(input, table, features_of[t], &(*sums)[t], &faults[t])
                               : RouteTable(input, table, features_of[t], &unique, ids, &faults[t]);
      if (is_by_columns) AskAllRanks(input.num_ranks, &requests[t]);
    }
  });
  const auto bad = std::find_if(faults.begin(), faults.end(),
                                [](const Fault& f) { return f.kind != FaultKind::kNone; });
  *fault = bad == faults.end() ? Fault() : *bad;
  return requests;
}

}  // namespace group_embedding
