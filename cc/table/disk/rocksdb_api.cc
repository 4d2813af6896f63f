#include "table/disk/rocksdb_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace group_embedding {
namespace {

constexpr char kHowToGetIt[] =
    "; get it by `pip install aimrocks` or `apt install librocksdb-dev`, or name the file of "
    "another "
    "(version 6.29 or newer) in the environment variable GROUP_EMBEDDING_ROCKSDB";

// Sets functions to the symbols of one library, and remembers the first that it lacks.
class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <typename Function>
  Binder& operator()(Function* function, const char* name) {
    const std::string symbol = std::string("rocksdb_") + name;
    *function = reinterpret_cast<Function>(dlsym(library_, symbol.c_str()));
    if (*function == nullptr && missing_.empty()) missing_ = symbol;
    return *this;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

void BindData(Binder& bind, RocksdbApi* api) {
  bind(&api->open, "open")(&api->close, "close");
  bind(&api->free_memory, "free")(&api->property_int, "property_int");
  bind(&api->write, "write")(&api->multi_get, "multi_get");
  bind(&api->get_pinned, "get_pinned")(&api->pinned_value, "pinnableslice_value");
  bind(&api->pinned_destroy, "pinnableslice_destroy");
  bind(&api->flush, "flush")(&api->compact_range, "compact_range");
  bind(&api->create_snapshot, "create_snapshot")(&api->release_snapshot, "release_snapshot");
  bind(&api->create_iterator, "create_iterator")(&api->iter_destroy, "iter_destroy");
  bind(&api->iter_seek_to_first, "iter_seek_to_first")(&api->iter_next, "iter_next");
  bind(&api->iter_seek_to_last, "iter_seek_to_last")(&api->iter_seek, "iter_seek");
  bind(&api->iter_valid, "iter_valid")(&api->iter_get_error, "iter_get_error");
  bind(&api->iter_key, "iter_key")(&api->iter_value, "iter_value");
  bind(&api->writebatch_create, "writebatch_create");
  bind(&api->writebatch_destroy, "writebatch_destroy");
  bind(&api->writebatch_put, "writebatch_put")(&api->writebatch_delete, "writebatch_delete");
  bind(&api->writebatch_delete_range, "writebatch_delete_range");
}

void BindSettings(Binder& bind, RocksdbApi* api) {
  bind(&api->options_create, "options_create")(&api->options_destroy, "options_destroy");
  bind(&api->options_set_create_if_missing, "options_set_create_if_missing");
  bind(&api->options_set_write_buffer_size, "options_set_write_buffer_size");
  bind(&api->options_set_compression, "options_set_compression");
  bind(&api->options_set_info_log_level, "options_set_info_log_level");
  bind(&api->options_set_keep_log_file_num, "options_set_keep_log_file_num");
  bind(&api->options_set_block_based_table_factory, "options_set_block_based_table_factory");
  bind(&api->get_options_from_string, "get_options_from_string");
  bind(&api->block_based_options_create, "block_based_options_create");
  bind(&api->block_based_options_destroy, "block_based_options_destroy");
  bind(&api->block_based_options_set_block_size, "block_based_options_set_block_size");
  bind(&api->block_based_options_set_filter_policy, "block_based_options_set_filter_policy");
  bind(&api->block_based_options_set_block_cache, "block_based_options_set_block_cache");
  bind(&api->filterpolicy_create_bloom, "filterpolicy_create_bloom");
  bind(&api->cache_create_lru, "cache_create_lru")(&api->cache_destroy, "cache_destroy");
  bind(&api->readoptions_create, "readoptions_create");
  bind(&api->readoptions_destroy, "readoptions_destroy");
  bind(&api->readoptions_set_verify_checksums, "readoptions_set_verify_checksums");
  bind(&api->readoptions_set_fill_cache, "readoptions_set_fill_cache");
  bind(&api->readoptions_set_snapshot, "readoptions_set_snapshot");
  bind(&api->writeoptions_create, "writeoptions_create");
  bind(&api->writeoptions_destroy, "writeoptions_destroy");
  bind(&api->writeoptions_disable_WAL, "writeoptions_disable_WAL");
  bind(&api->writeoptions_set_sync, "writeoptions_set_sync");
  bind(&api->flushoptions_create, "flushoptions_create");
  bind(&api->flushoptions_destroy, "flushoptions_destroy");
}

Status Load(RocksdbApi* api) {
  const char* named = std::getenv("GROUP_EMBEDDING_ROCKSDB");
  const std::string file = named != nullptr && *named != '\0' ? named : "librocksdb.so";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("RocksDB cannot be loaded (") + dlerror() + ")";
  Binder bind(library);
  BindData(bind, api);
  BindSettings(bind, api);
  // Newer than any of the above; in older ones filters have another type of argument.
  void (*newest)();
  bind(&newest, "filterpolicy_create_ribbon_hybrid");
  if (bind.missing().empty()) return {};
  dlclose(library);
  return "the RocksDB in " + file + " has no " + bind.missing();
}

}  // namespace

const RocksdbApi* LoadRocksdb(Status* error) {
  static std::mutex mutex;
  static RocksdbApi api;
  static bool loaded = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) {
    Status failed = Load(&api);
    if (!failed.ok()) {
      *error = failed.message() + kHowToGetIt;
      return nullptr;
    }
    loaded = true;
  }
  return &api;
}

}  // namespace group_embedding
