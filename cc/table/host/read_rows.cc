// Rows of keys, copied out. In memory a part of the keys is located at a time, shard by shard, and
// its rows are copied in the order of the keys: both are in the cache until the next part.
#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "table/host/host_shards.h"
#include "table/host/keys_by_shard.h"

namespace group_embedding {
namespace {

constexpr int64_t kPartKeys = 4096;
constexpr int64_t kReadNanoseconds = 40;  // a key, about
constexpr int64_t kLine = 64;
// What is larger is no longer in the cache when it is read, and was not when it is written.
constexpr int64_t kCacheBytes = int64_t{8} << 20;
constexpr int64_t kWord = sizeof(__m128i);

// As Access::kRead does. `first_shard`: where it begins, so that threads seldom want one lock.
void LocatePart(HostShards* table, KeysByShard* keys, int64_t first_shard, int64_t* rows) {
  keys->Sort();
  const auto snapshot = table->snapshot();
  for (int64_t n = 0; n < HostShards::kNumShards; ++n) {
    const int s = static_cast<int>((first_shard + n) % HostShards::kNumShards);
    HostShards::Shard& shard = table->shard(s);
    std::lock_guard<std::mutex> lock(shard.mutex);
    int64_t num_keys = 0, num_found = 0;
    keys->ForShard(
        s, [&](int64_t, uint64_t hash) { shard.index.Prefetch(hash); },
        [&](uint64_t hash) { return shard.index.PrefetchInfo(hash); },
        [&](int64_t i, int64_t key, uint64_t hash, int64_t probable_row) {
          const int64_t found = shard.index.Find(key, hash, probable_row);
          const int64_t row = HostShards::UnlessEvicted(snapshot.get(), found);
          rows[i] = row != kNoRow ? row : table->store().DefaultRow(key);
          ++num_keys;
          num_found += row != kNoRow;
        });
    ShardUse::Add(num_found, &shard.use.num_found);
    ShardUse::Add(num_keys - num_found, &shard.use.num_without);
  }
}

// Writes past the cache, so that the memory is not read first. `bytes`: whole words.
void CopyPastCache(const char* from, int64_t bytes, char* to) {
  for (int64_t at = 0; at < bytes; at += kWord) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
}

// `values`: [num_rows, dim].
template <typename Copy>
void CopyRows(const RowStore& store, const int64_t* rows, int64_t num_rows, char* values,
              const Copy& copy) {
  constexpr int64_t kAhead = 64;
  const int64_t bytes = store.row_bytes();
  int64_t next = 0;
  auto prefetch_until = [&](int64_t end) {
    for (; next < std::min(end, num_rows); ++next) {
      const char* row = store.Row(rows[next]);
      for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 2);
    }
  };
  for (int64_t i = 0; i < num_rows; ++i) {
    prefetch_until(i + kAhead);
    copy(store.Row(rows[i]), bytes, values + i * bytes);
  }
}

// Copies rows. total_rows: the number of rows of the whole call.
void CopyRowsOf(int64_t total_rows, const RowStore& store, const int64_t* rows, int64_t num_rows,
                char* values) {
  const bool is_in_words =
      store.row_bytes() % kWord == 0 && reinterpret_cast<uintptr_t>(values) % kWord == 0;
  if (is_in_words && total_rows * store.row_bytes() > kCacheBytes) {
    CopyRows(store, rows, num_rows, values, CopyPastCache);
    _mm_sfence();  // before another thread knows that they are there
  } else {
    CopyRows(store, rows, num_rows, values,
             [](const char* from, int64_t bytes, char* to) { std::memcpy(to, from, bytes); });
  }
}

// body(part, its first key, its number of keys) for all parts of the keys.
template <typename Body>
void ForParts(int64_t num_keys, const ParallelFor& parallel_for, const Body& body) {
  const int64_t num_parts = (num_keys + kPartKeys - 1) / kPartKeys;
  parallel_for(num_parts, kPartKeys * kReadNanoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      body(p, p * kPartKeys, std::min(kPartKeys, num_keys - p * kPartKeys));
    }
  });
}

void ReadFromMemory(HostShards* table, const int64_t* keys, int64_t num_keys, char* values,
                    const ParallelFor& parallel_for) {
  const RowStore& store = table->store();
  ForParts(num_keys, parallel_for, [&](int64_t p, int64_t first, int64_t count) {
    KeysByShard part(keys + first, count);
    std::vector<int64_t> rows(count);
    LocatePart(table, &part, 7 * p, rows.data());
    CopyRowsOf(num_keys, store, rows.data(), count, values + first * store.row_bytes());
  });
}

// All rows must be in memory before any is copied.
Status ReadFromTiers(HostShards* table, const int64_t* keys, int64_t num_keys, int64_t batch,
                     char* values, const ParallelFor& parallel_for) {
  const RowStore& store = table->store();
  std::vector<int64_t> rows(num_keys);
  const KeysToLocate request = {table, keys, num_keys, rows.data(), batch};
  Status status = LocateRowsCpu(&request, 1, Access::kRead, -1, parallel_for);
  if (!status.ok()) return status;
  ForParts(num_keys, parallel_for, [&](int64_t, int64_t first, int64_t count) {
    CopyRowsOf(num_keys, store, rows.data() + first, count, values + first * store.row_bytes());
  });
  return {};
}

}  // namespace

Status HostShards::ReadRows(const int64_t* keys, int64_t num_keys, void* values,
                            const ParallelFor& parallel_for) {
  auto* to = static_cast<char*>(values);
  const TableBatch batch(this);
  if (lower_tier() != nullptr) {
    return ReadFromTiers(this, keys, num_keys, batch.number(), to, parallel_for);
  }
  ReadFromMemory(this, keys, num_keys, to, parallel_for);
  return {};
}

}  // namespace group_embedding
