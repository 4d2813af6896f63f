#include "exchange/route_ids.h"

#include <algorithm>

#include "fused/sample_ids.h"

namespace group_embedding {
namespace {

constexpr int64_t kLeftOut = -1, kReadsZeros = -2;

// The unique rows of one table, in the order they were first seen.
class UniqueRows {
 public:
  explicit UniqueRows(int64_t max_rows) {
    size_t size = 16;
    while (size < 2 * static_cast<size_t>(max_rows)) size *= 2;
    slots_.assign(size, -1);
  }

  // Returns the number of `row` among the unique rows.
  int64_t Add(int64_t row) {
    const size_t mask = slots_.size() - 1;
    size_t slot = (static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15u >> 20) & mask;
    while (slots_[slot] >= 0 && rows_[slots_[slot]] != row) slot = (slot + 1) & mask;
    if (slots_[slot] < 0) {
      slots_[slot] = static_cast<int64_t>(rows_.size());
      rows_.push_back(row);
    }
    return slots_[slot];
  }

  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  std::vector<int64_t> slots_;  // open addressing; number of a unique row, or -1
  std::vector<int64_t> rows_;
};

// Where the unique rows of one table stand in its matrix.
struct TableRoute {
  std::vector<int64_t> rows;       // in the order of the matrix
  std::vector<int64_t> first_row;  // [num_ranks + 1] where each owner's begin
};

// Sorts unique rows by owner, stably; `place` gets the new number of each.
TableRoute SortByOwner(const std::vector<int64_t>& rows, int64_t num_ranks,
                       std::vector<int64_t>* place) {
  TableRoute route;
  route.first_row.assign(num_ranks + 1, 0);
  for (const int64_t row : rows) ++route.first_row[row % num_ranks + 1];
  for (int64_t n = 0; n < num_ranks; ++n) route.first_row[n + 1] += route.first_row[n];
  std::vector<int64_t> next(route.first_row.begin(), route.first_row.end() - 1);
  route.rows.resize(rows.size());
  place->resize(rows.size());
  for (size_t u = 0; u < rows.size(); ++u) {
    (*place)[u] = next[rows[u] % num_ranks]++;
    route.rows[(*place)[u]] = rows[u];
  }
  return route;
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

TableRoute RouteTable(const RouteInput& input, int64_t table, const std::vector<int64_t>& features,
                      int64_t* ids, Fault* fault) {
  const Batch& batch = input.batch;
  int64_t num_ids = 0;
  for (const int64_t f : features) {
    const Feature& feature = input.features[f];
    num_ids += batch.row_splits[feature.first_sample + feature.num_samples] -
               batch.row_splits[feature.first_sample];
  }
  UniqueRows unique(num_ids);
  ForIdsOfTable(input, features, [&](int64_t i, int64_t id, float weight, int64_t f, int64_t s) {
    const IdUse use = UseOfId(id, weight, input.num_rows[table], input.features[f].combiner,
                              input.invalid_ids.prune_negative);
    if (use == IdUse::kZeros && !input.invalid_ids.read_zeros && fault->kind == FaultKind::kNone) {
      *fault = {FaultKind::kIdOutOfRange, static_cast<int32_t>(f), s, id};
    }
    ids[i] = use == IdUse::kRow ? unique.Add(id) : use == IdUse::kZeros ? kReadsZeros : kLeftOut;
  });
  std::vector<int64_t> place;
  TableRoute route = SortByOwner(unique.rows(), input.num_ranks, &place);
  const int64_t past_the_end = static_cast<int64_t>(place.size());
  ForIdsOfTable(input, features, [&](int64_t i, int64_t, float, int64_t, int64_t) {
    if (ids[i] != kLeftOut) ids[i] = ids[i] == kReadsZeros ? past_the_end : place[ids[i]];
  });
  return route;
}

void WriteMessages(const RouteInput& input, const std::vector<TableRoute>& tables,
                   const Fault& fault, Route* route) {
  route->messages.clear();
  route->splits.assign(input.num_ranks, 0);
  route->counts.clear();
  for (int64_t owner = 0; owner < input.num_ranks; ++owner) {
    const size_t start = route->messages.size();
    route->messages.insert(route->messages.end(), {static_cast<int64_t>(fault.kind), fault.feature,
                                                   fault.sample, fault.value});
    for (const TableRoute& table : tables) {
      route->counts.push_back(table.first_row[owner + 1] - table.first_row[owner]);
      route->messages.push_back(route->counts.back());
    }
    for (const TableRoute& table : tables) {
      for (int64_t u = table.first_row[owner]; u < table.first_row[owner + 1]; ++u) {
        route->messages.push_back(table.rows[u] / input.num_ranks);
      }
    }
    route->splits[owner] = static_cast<int64_t>(route->messages.size() - start);
  }
}

}  // namespace

void RouteIds(const RouteInput& input, Route* route, int64_t* ids,
              const ParallelFor& parallel_for) {
  std::vector<std::vector<int64_t>> features_of(input.num_tables);
  for (int64_t f = 0; f < input.num_features; ++f) {
    features_of[input.features[f].table].push_back(f);
  }
  std::vector<TableRoute> tables(input.num_tables);
  std::vector<Fault> faults(input.num_tables);
  const int64_t cost = 20 * (1 + input.batch.num_ids / std::max<int64_t>(1, input.num_tables));
  parallel_for(input.num_tables, cost, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      tables[t] = RouteTable(input, t, features_of[t], ids, &faults[t]);
    }
  });
  const auto bad = std::find_if(faults.begin(), faults.end(),
                                [](const Fault& f) { return f.kind != FaultKind::kNone; });
  WriteMessages(input, tables, bad == faults.end() ? Fault() : *bad, route);
}

Requests ReadMessages(const int64_t* words, const int64_t* splits, int64_t num_ranks,
                      int64_t num_tables) {
  Requests requests;
  requests.valid = true;
  requests.fault_rank = -1;
  requests.totals.assign(num_tables, 0);
  std::vector<const int64_t*> rows(num_ranks);  // where the rows of each message begin
  for (int64_t n = 0; n < num_ranks; ++n) {
    const int64_t header = kFaultWords + num_tables;
    int64_t size = header;
    if (splits[n] < header) {
      requests.valid = false;
      return requests;
    }
    if (requests.fault_rank < 0 && words[0] != 0) {
      requests.fault_rank = n;
      requests.fault = {static_cast<FaultKind>(words[0]), static_cast<int32_t>(words[1]), words[2],
                        words[3]};
    }
    for (int64_t t = 0; t < num_tables; ++t) {
      const int64_t count = words[kFaultWords + t];
      requests.valid &= count >= 0;
      requests.counts.push_back(count);
      requests.totals[t] += count;
      size += count;
    }
    requests.valid &= size == splits[n];
    if (!requests.valid) return requests;
    rows[n] = words + header;
    words += splits[n];
  }
  for (int64_t t = 0; t < num_tables; ++t) {
    for (int64_t n = 0; n < num_ranks; ++n) {
      const int64_t count = requests.counts[n * num_tables + t];
      requests.ids.insert(requests.ids.end(), rows[n], rows[n] + count);
      rows[n] += count;
    }
  }
  return requests;
}

}  // namespace group_embedding
