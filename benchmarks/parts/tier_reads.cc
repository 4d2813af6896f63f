// Reads rows of one table through the tiers under a served model, and by bare calls of the same
// stores, by turns in one process, for bench_tiers.py. A line of JSON for each case.
//
//   tier_reads redis HOST:PORT ROWS DIM ZIPF TURNS
//   tier_reads rocksdb FOLDER ROWS DIM ZIPF TURNS
//   tier_reads updates - ROWS DIM ZIPF TURNS
#include <hiredis/hiredis.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serving/table/served_table.h"
#include "table/disk/rocksdb_handles.h"

namespace group_embedding {
namespace {

constexpr int64_t kKeysOfOneMget = 512;
constexpr int kInTurn = 20;  // requests
constexpr std::chrono::seconds kPatience(30);

struct Setting {
  std::string where;
  int64_t num_rows, dim;
  double zipf;
  int turns;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// This thread's time of the processor.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Check(bool ok, const std::string& why) {
  if (ok) return;
  std::fprintf(stderr, "tier_reads: %s\n", why.c_str());
  std::exit(1);
}
void Check(const Status& status) { Check(status.ok(), status.message()); }

// Keys by Zipf's law; ranks are scattered over the table.
class Keys {
 public:
  Keys(int64_t num_rows, double exponent) : cumulative_(num_rows) {
    double sum = 0;
    for (int64_t i = 0; i < num_rows; ++i) {
      cumulative_[i] = sum += std::pow(static_cast<double>(i + 1), -exponent);
    }
  }
  std::vector<int64_t> Draw(int64_t count) {
    std::uniform_real_distribution<double> at(0, cumulative_.back());
    std::vector<int64_t> keys(count);
    for (int64_t& key : keys) {
      const auto found = std::lower_bound(cumulative_.begin(), cumulative_.end(), at(random_));
      const uint64_t rank = found - cumulative_.begin();
      key = static_cast<int64_t>(rank * 0x9e3779b97f4a7c15 % cumulative_.size());
    }
    return keys;
  }

 private:
  std::vector<double> cumulative_;
  std::mt19937_64 random_{1};
};

float ValueOf(int64_t key) { return static_cast<float>(key & 0xffff); }

std::vector<float> RowsOf(const std::vector<int64_t>& keys, int64_t dim) {
  std::vector<float> rows;
  for (const int64_t key : keys) rows.insert(rows.end(), dim, ValueOf(key));
  return rows;
}

// Keys that may become rows, in blocks.
template <typename Write>
void ForBlocks(int64_t num_rows, int64_t dim, const Write& write) {
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < num_rows; begin += kBlock) {
    std::vector<int64_t> keys(std::min(kBlock, num_rows - begin));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = begin + static_cast<int64_t>(i);
    write(keys, RowsOf(keys, dim));
  }
}

std::unique_ptr<LowerRows> Filled(LowerTier* tier, const Setting& setting) {
  const LowerRowsId id = {"bench", static_cast<uint64_t>(setting.num_rows * 1000 + setting.dim)};
  Status status;
  auto rows = tier->Find(id, setting.dim, Deadline::In(kPatience), &status);
  Check(status);
  if (rows != nullptr) return rows;
  rows = tier->Make(id, RowFormat::kFloat32, setting.dim);
  ForBlocks(setting.num_rows, setting.dim, [&](const auto& keys, const auto& values) {
    Check(rows->Write(keys.data(), static_cast<int64_t>(keys.size()),
                      reinterpret_cast<const char*>(values.data()), false,
                      Deadline::In(kPatience)));
  });
  Check(rows->Complete({}, Deadline::In(kPatience)));
  return rows;
}

using Read = std::function<void(const std::vector<int64_t>&, float*)>;

Read FromLower(LowerRows* lower, int64_t dim) {
  return [lower, dim](const std::vector<int64_t>& keys, float* rows) {
    const auto count = static_cast<int64_t>(keys.size());
    const std::unique_ptr<bool[]> found(new bool[count]);
    const RowPlaces places = {reinterpret_cast<char*>(rows),
                              dim * static_cast<int64_t>(sizeof(float))};
    Check(lower->Read(keys.data(), count, Deadline::Never(), found.get(), places));
    Check(std::all_of(found.get(), found.get() + count, [](bool f) { return f; }), "a key is gone");
  };
}

// One MGET after the other is sent, then their replies are read: keys of 8 bytes, values of a row.
Read FromMget(redisContext* redis, int64_t dim) {
  return [redis, dim](const std::vector<int64_t>& keys, float* rows) {
    const auto count = static_cast<int64_t>(keys.size());
    std::vector<const char*> words(kKeysOfOneMget + 1);
    std::vector<size_t> sizes(kKeysOfOneMget + 1, sizeof(int64_t));
    words[0] = "MGET";
    sizes[0] = 4;
    for (int64_t begin = 0; begin < count; begin += kKeysOfOneMget) {
      const int64_t some = std::min(kKeysOfOneMget, count - begin);
      for (int64_t i = 0; i < some; ++i) {
        words[i + 1] = reinterpret_cast<const char*>(keys.data() + begin + i);
      }
      redisAppendCommandArgv(redis, static_cast<int>(some + 1), words.data(), sizes.data());
    }
    for (int64_t begin = 0; begin < count; begin += kKeysOfOneMget) {
      void* reply = nullptr;
      Check(redisGetReply(redis, &reply) == REDIS_OK, "MGET has failed");
      auto* all = static_cast<redisReply*>(reply);
      for (size_t i = 0; i < all->elements; ++i) {
        Check(all->element[i]->type == REDIS_REPLY_STRING, "a key is gone");
        std::memcpy(rows + (begin + static_cast<int64_t>(i)) * dim, all->element[i]->str,
                    dim * sizeof(float));
      }
      freeReplyObject(reply);
    }
  };
}

void FillForMget(redisContext* redis, const Setting& setting) {
  ForBlocks(setting.num_rows, setting.dim, [&](const auto& keys, const auto& values) {
    for (size_t i = 0; i < keys.size(); ++i) {
      redisAppendCommand(redis, "SET %b %b", &keys[i], sizeof(keys[i]), &values[i * setting.dim],
                         setting.dim * sizeof(float));
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      void* reply = nullptr;
      Check(redisGetReply(redis, &reply) == REDIS_OK, "SET has failed");
      freeReplyObject(reply);
    }
  });
}

// One call for all keys of a request, in the order in which they come.
Read FromMultiGet(const RocksdbApi& api, RocksdbApi::Db* db, RocksdbApi::ReadOptions* options,
                  int64_t dim) {
  return [&api, db, options, dim](const std::vector<int64_t>& keys, float* rows) {
    const size_t count = keys.size();
    std::vector<const char*> starts(count);
    std::vector<size_t> sizes(count, sizeof(int64_t)), value_sizes(count);
    std::vector<char*> values(count), messages(count);
    for (size_t i = 0; i < count; ++i) starts[i] = reinterpret_cast<const char*>(&keys[i]);
    api.multi_get(db, options, count, starts.data(), sizes.data(), values.data(),
                  value_sizes.data(), messages.data());
    for (size_t i = 0; i < count; ++i) {
      Check(messages[i] == nullptr && values[i] != nullptr, "MultiGet has failed");
      std::memcpy(rows + i * dim, values[i], dim * sizeof(float));
      api.free_memory(values[i]);
    }
  };
}

// A served table's rows, as a lookup reads them.
Read FromTable(ServedTable* table, const Overlay* const* overlay) {
  return [table, overlay](const std::vector<int64_t>& keys, float* rows) {
    const ServedTable::Reader reader(table);
    const auto count = static_cast<int64_t>(keys.size());
    std::vector<int64_t> found(count);
    if (table->Locate(*overlay, keys.data(), count, found.data()) > 0) {
      std::vector<int64_t> missing;
      for (int64_t i = 0; i < count; ++i) {
        if (found[i] == ServedTable::kNotInMemory) missing.push_back(i);
      }
      bool is_late = false;
      Check(
          table->Fetch(keys.data(), std::move(missing), Deadline::Never(), found.data(), &is_late));
    }
    const int64_t dim = table->options().dim;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(rows + i * dim, table->rows() + found[i] * table->row_bytes(),
                  dim * sizeof(float));
    }
  };
}

// Times of requests, by turns; the first turn warms up.
void Compare(const std::string& name, const Setting& setting,
             const std::vector<std::pair<std::string, Read>>& reads) {
  Keys draw(setting.num_rows, setting.zipf);
  for (const int64_t count : {26, 832, 26'000}) {
    const int in_turn = count > 1000 ? 1 : kInTurn;
    std::vector<std::vector<double>> times(reads.size());
    std::vector<float> rows(count * setting.dim);
    for (int turn = -5; turn < setting.turns; ++turn) {
      for (size_t r = 0; r < reads.size(); ++r) {
        for (int i = 0; i < in_turn; ++i) {
          const std::vector<int64_t> keys = draw.Draw(count);
          const double start = Seconds();
          reads[r].second(keys, rows.data());
          if (turn >= 0) times[r].push_back(Seconds() - start);
          for (int64_t k = 0; k < count; ++k) {
            Check(rows[k * setting.dim] == ValueOf(keys[k]), "a wrong row");
          }
        }
      }
    }
    std::printf("{\"store\": \"%s\", \"keys\": %ld", name.c_str(), static_cast<long>(count));
    for (size_t r = 0; r < reads.size(); ++r) {
      std::printf(", \"%s\": %.5f", reads[r].first.c_str(), Median(times[r]) * 1e3);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
}

std::unique_ptr<ServedTable> TableOf(const Setting& setting, std::unique_ptr<LowerRows> lower,
                                     const TierOptions& tiers = TierOptions()) {
  ServedTableOptions options;
  options.name = "bench";
  options.dim = static_cast<int32_t>(setting.dim);
  Status status;
  auto table = std::make_unique<ServedTable>(options, nullptr, &status);
  Check(status);
  if (lower != nullptr) {
    table->Attach(std::move(lower));
    table->StartCache(setting.num_rows / 10, tiers, nullptr);
  }
  return table;
}

void CompareStore(const std::string& name, const Setting& setting, LowerTier* tier,
                  std::pair<std::string, Read> bare) {
  const Overlay* none = nullptr;
  const std::unique_ptr<LowerRows> lower = Filled(tier, setting);
  const auto table = TableOf(setting, Filled(tier, setting));
  TierOptions no_memory;
  no_memory.insert = Insert::kOff;
  const auto alone = TableOf(setting, Filled(tier, setting), no_memory);
  Compare(name, setting,
          {{"tier", FromLower(lower.get(), setting.dim)},
           std::move(bare),
           {"nothing in memory", FromTable(alone.get(), &none)},
           {"a tenth in memory", FromTable(table.get(), &none)}});
}

void CompareRedis(const Setting& setting) {
  Status status;
  const std::shared_ptr<LowerTier> tier = OpenRedisTier(setting.where, &status);
  Check(status);
  const size_t colon = setting.where.find(':');
  redisContext* redis = redisConnect(setting.where.substr(0, colon).c_str(),
                                     std::stoi(setting.where.substr(colon + 1)));
  Check(redis != nullptr && redis->err == 0, "hiredis cannot connect");
  FillForMget(redis, setting);
  CompareStore("redis", setting, tier.get(), {"bare", FromMget(redis, setting.dim)});
  redisFree(redis);
}

void CompareRocksdb(const Setting& setting) {
  Status status;
  const RocksdbApi* api = LoadRocksdb(&status);
  Check(status);
  const std::shared_ptr<LowerTier> tier = OpenRocksdbTier(setting.where + "/tier", &status);
  Check(status);
  Owned<RocksdbApi::Db> db = OpenRocksdb(*api, setting.where + "/bare", 256 << 20, &status);
  Check(status);
  const auto read = MakeReadOptions(*api);
  Owned<RocksdbApi::WriteOptions> write(api->writeoptions_create(), api->writeoptions_destroy);
  ForBlocks(setting.num_rows, setting.dim, [&](const auto& keys, const auto& values) {
    Owned<RocksdbApi::WriteBatch> batch(api->writebatch_create(), api->writebatch_destroy);
    for (size_t i = 0; i < keys.size(); ++i) {
      api->writebatch_put(batch.get(), reinterpret_cast<const char*>(&keys[i]), sizeof(keys[i]),
                          reinterpret_cast<const char*>(&values[i * setting.dim]),
                          setting.dim * sizeof(float));
    }
    char* message = nullptr;
    api->write(db.get(), write.get(), batch.get(), &message);
    Check(message == nullptr, "RocksDB cannot write");
  });
  Owned<RocksdbApi::FlushOptions> flush(api->flushoptions_create(), api->flushoptions_destroy);
  char* message = nullptr;
  api->flush(db.get(), flush.get(), &message);
  Check(message == nullptr, "RocksDB cannot flush");
  CompareStore("rocksdb", setting, tier.get(),
               {"bare", FromMultiGet(*api, db.get(), read.get(), setting.dim)});
}

// Keys a second of processor time of one thread, in a table in memory, while another one brings
// deltas and merges them.
void CountUnderUpdates(const Setting& setting) {
  const auto table = TableOf(setting, nullptr);
  table->Reserve(setting.num_rows);
  ForBlocks(setting.num_rows, setting.dim, [&](const auto& keys, const auto& values) {
    Check(table->Load(keys.data(), static_cast<int64_t>(keys.size()),
                      reinterpret_cast<const char*>(values.data()), false));
  });
  Keys draw(setting.num_rows, setting.zipf);
  std::vector<std::vector<int64_t>> requests;
  for (int i = 0; i < 200; ++i) requests.push_back(draw.Draw(26'000));
  std::vector<int64_t> found(26'000);
  for (const bool with_updates : {false, true}) {
    std::atomic<bool> stop{false};
    std::atomic<int64_t> num_deltas{0};
    std::unique_ptr<Overlay> overlay;
    RowChanges changes;
    changes.keys = draw.Draw(100'000);
    std::sort(changes.keys.begin(), changes.keys.end());
    changes.keys.erase(std::unique(changes.keys.begin(), changes.keys.end()), changes.keys.end());
    const std::vector<float> values = RowsOf(changes.keys, setting.dim);
    changes.values.assign(reinterpret_cast<const char*>(values.data()),
                          reinterpret_cast<const char*>(values.data() + values.size()));
    Check(table->Stage(changes, &overlay));
    const Overlay* serving = with_updates ? overlay.get() : nullptr;
    // Deltas are staged and dropped again: the reader stays in one version, as a request does.
    std::thread updates([&] {
      while (with_updates && !stop) {
        std::unique_ptr<Overlay> next;
        Check(table->Stage(changes, &next));
        table->Drop(std::move(next));
        ++num_deltas;
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
      }
    });
    std::vector<double> rates;
    for (int turn = 0; turn < setting.turns; ++turn) {
      const double start = ThreadSeconds();
      for (const auto& keys : requests) {
        table->Locate(serving, keys.data(), static_cast<int64_t>(keys.size()), found.data());
      }
      rates.push_back(200 * 26'000 / (ThreadSeconds() - start));
    }
    stop = true;
    updates.join();
    table->Drop(std::move(overlay));
    std::printf("{\"store\": \"memory\", \"updates\": %ld, \"million keys/s\": %.2f}\n",
                static_cast<long>(num_deltas.load()), Median(rates) / 1e6);
  }
}

}  // namespace
}  // namespace group_embedding

int main(int argc, char** argv) {
  using namespace group_embedding;
  Check(argc == 7, "expected redis, rocksdb or updates, and WHERE ROWS DIM ZIPF TURNS");
  const Setting setting = {argv[2], std::stoll(argv[3]), std::stoll(argv[4]), std::stod(argv[5]),
                           std::stoi(argv[6])};
  const std::string part = argv[1];
  if (part == "redis") CompareRedis(setting);
  if (part == "rocksdb") CompareRocksdb(setting);
  if (part == "updates") CountUnderUpdates(setting);
}
