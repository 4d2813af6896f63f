// The functions of RocksDB's C interface (rocksdb/c.h) that the disk tier uses. librocksdb is
// loaded when the first table with a disk tier is made; builds and programs without such tables
// need no library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace group_embedding {

struct RocksdbApi {
  struct Db;
  struct Options;
  struct TableFormat;
  struct FilterPolicy;
  struct Cache;
  struct ReadOptions;
  struct WriteOptions;
  struct WriteBatch;
  struct FlushOptions;
  struct Pinned;
  struct Snapshot;
  struct Iterator;

  // `error`: null, or set to a message that free_memory frees.
  Db* (*open)(const Options*, const char* path, char** error);
  void (*close)(Db*);
  void (*free_memory)(void*);
  int (*property_int)(Db*, const char* name, uint64_t* value);  // 0: there is such a property

  void (*write)(Db*, const WriteOptions*, WriteBatch*, char** error);
  // A key that is not there gets a null value and no error; the others' values are freed by
  // free_memory.
  void (*multi_get)(Db*, const ReadOptions*, size_t num_keys, const char* const* keys,
                    const size_t* key_bytes, char** values, size_t* value_bytes, char** errors);
  // The value of one key, where RocksDB has it, until pinned_destroy; null: there is none, or
  // `error`.
  Pinned* (*get_pinned)(Db*, const ReadOptions*, const char* key, size_t key_bytes, char** error);
  const char* (*pinned_value)(const Pinned*, size_t* bytes);
  void (*pinned_destroy)(Pinned*);
  void (*flush)(Db*, const FlushOptions*, char** error);
  void (*compact_range)(Db*, const char* begin, size_t begin_bytes, const char* end,
                        size_t end_bytes);

  const Snapshot* (*create_snapshot)(Db*);
  void (*release_snapshot)(Db*, const Snapshot*);
  Iterator* (*create_iterator)(Db*, const ReadOptions*);
  void (*iter_destroy)(Iterator*);
  void (*iter_seek_to_first)(Iterator*);
  void (*iter_seek_to_last)(Iterator*);
  void (*iter_seek)(Iterator*, const char* key, size_t key_bytes);
  void (*iter_next)(Iterator*);
  unsigned char (*iter_valid)(const Iterator*);
  const char* (*iter_key)(const Iterator*, size_t* bytes);
  const char* (*iter_value)(const Iterator*, size_t* bytes);
  void (*iter_get_error)(const Iterator*, char** error);

  WriteBatch* (*writebatch_create)();
  void (*writebatch_destroy)(WriteBatch*);
  void (*writebatch_put)(WriteBatch*, const char* key, size_t key_bytes, const char* value,
                         size_t value_bytes);
  void (*writebatch_delete)(WriteBatch*, const char* key, size_t key_bytes);
  void (*writebatch_delete_range)(WriteBatch*, const char* begin, size_t begin_bytes,
                                  const char* end, size_t end_bytes);

  Options* (*options_create)();
  void (*options_destroy)(Options*);
  void (*options_set_create_if_missing)(Options*, unsigned char);
  void (*options_set_write_buffer_size)(Options*, size_t);
  void (*options_set_compression)(Options*, int);
  void (*options_set_info_log_level)(Options*, int);
  void (*options_set_keep_log_file_num)(Options*, size_t);
  void (*options_set_block_based_table_factory)(Options*, TableFormat*);
  void (*get_options_from_string)(const Options* base, const char* more, Options*, char** error);
  TableFormat* (*block_based_options_create)();
  void (*block_based_options_destroy)(TableFormat*);
  void (*block_based_options_set_block_size)(TableFormat*, size_t);
  void (*block_based_options_set_filter_policy)(TableFormat*, FilterPolicy*);
  void (*block_based_options_set_block_cache)(TableFormat*, Cache*);
  FilterPolicy* (*filterpolicy_create_bloom)(double bits_per_key);
  Cache* (*cache_create_lru)(size_t bytes);
  void (*cache_destroy)(Cache*);

  ReadOptions* (*readoptions_create)();
  void (*readoptions_destroy)(ReadOptions*);
  void (*readoptions_set_verify_checksums)(ReadOptions*, unsigned char);
  void (*readoptions_set_fill_cache)(ReadOptions*, unsigned char);
  void (*readoptions_set_snapshot)(ReadOptions*, const Snapshot*);
  WriteOptions* (*writeoptions_create)();
  void (*writeoptions_destroy)(WriteOptions*);
  void (*writeoptions_disable_WAL)(WriteOptions*, int);
  void (*writeoptions_set_sync)(WriteOptions*, unsigned char);
  FlushOptions* (*flushoptions_create)();
  void (*flushoptions_destroy)(FlushOptions*);
};

// The library that the environment variable GROUP_EMBEDDING_ROCKSDB names, or else librocksdb.so
// where the system looks for libraries. Loaded once it is found; null where it is not, and `error`
// says in one sentence how to get it.
const RocksdbApi* LoadRocksdb(Status* error);

}  // namespace group_embedding
