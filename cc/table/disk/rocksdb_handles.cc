#include "table/disk/rocksdb_handles.h"

#include <stdlib.h>

#include <cstdio>
#include <mutex>
#include <utility>

namespace group_embedding {
namespace {

// A key that is not there is looked for on disk 1 % of times.
constexpr double kFilterBitsPerKey = 10;
// A block holds a few records. Requested keys are scattered, and reading one checks its whole
// block.
constexpr size_t kBlockBytes = 1024;
constexpr int kNoCompression = 0, kLogErrors = 3;

// When a forked process exits, RocksDB waits for the threads that it had before. So it ends here;
// whatever was to be run earlier has been run.
void EndForkedProcess(int status, void* home) {
  if (static_cast<const HomeProcess*>(home)->IsHere()) return;
  std::fflush(nullptr);
  _exit(status);
}

// Once RocksDB has been used: it says what it does in the end when it is used first, and what was
// said last is done first.
void EndForkedProcessesEarly() {
  static HomeProcess home;
  static std::once_flag once;
  std::call_once(once, [] { on_exit(EndForkedProcess, &home); });
}

Owned<RocksdbApi::Options> Settings(const RocksdbApi& api, int64_t memory_bytes) {
  Owned<RocksdbApi::Options> settings(api.options_create(), api.options_destroy);
  api.options_set_create_if_missing(settings.get(), 1);
  api.options_set_compression(settings.get(), kNoCompression);  // trained numbers are noise
  api.options_set_info_log_level(settings.get(), kLogErrors);
  api.options_set_keep_log_file_num(settings.get(), 1);
  // Half for blocks that were read; two buffers, of which one is filled and one is written.
  api.options_set_write_buffer_size(settings.get(), memory_bytes / 4);
  Owned<RocksdbApi::TableFormat> format(api.block_based_options_create(),
                                        api.block_based_options_destroy);
  api.block_based_options_set_block_size(format.get(), kBlockBytes);
  Owned<RocksdbApi::Cache> cache(api.cache_create_lru(memory_bytes / 2), api.cache_destroy);
  api.block_based_options_set_block_cache(format.get(), cache.get());
  api.block_based_options_set_filter_policy(format.get(),
                                            api.filterpolicy_create_bloom(kFilterBitsPerKey));
  api.options_set_block_based_table_factory(settings.get(), format.get());
  return settings;
}

}  // namespace

std::string TakeMessage(const RocksdbApi& api, char* message) {
  if (message == nullptr) return "";
  std::string text = message;
  api.free_memory(message);
  return text;
}

Owned<RocksdbApi::ReadOptions> MakeReadOptions(const RocksdbApi& api) {
  Owned<RocksdbApi::ReadOptions> options(api.readoptions_create(), api.readoptions_destroy);
  api.readoptions_set_verify_checksums(options.get(), 1);
  return options;
}

Owned<RocksdbApi::Db> OpenRocksdb(const RocksdbApi& api, const std::string& path,
                                  int64_t memory_bytes, Lifetime lifetime, Status* error) {
  char* message = nullptr;
  Owned<RocksdbApi::Options> settings = Settings(api, memory_bytes);
  if (lifetime == Lifetime::kUntilClosed) {
    // Else RocksDB writes records in memory to disk as it is closed: seconds, if the folder is
    // gone.
    Owned<RocksdbApi::Options> base = std::move(settings);
    settings = {api.options_create(), api.options_destroy};
    api.get_options_from_string(base.get(), "avoid_flush_during_shutdown=true", settings.get(),
                                &message);
  }
  Owned<RocksdbApi::Db> db(nullptr, api.close);
  if (message == nullptr) db.reset(api.open(settings.get(), path.c_str(), &message));
  EndForkedProcessesEarly();
  *error = TakeMessage(api, message);
  return db;
}

}  // namespace group_embedding
