// RocksDB whose reads are slow, or fail, as the file SLOW_ROCKSDB says: "sleep 0.2", "fail" or
// nothing. All other functions are those of the library that this one is linked to.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using MultiGet = void (*)(void*, const void*, size_t, const char* const*, const size_t*, char**,
                          size_t*, char**);

MultiGet Real() {
  static void* const library = dlopen(getenv("REAL_ROCKSDB"), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<MultiGet>(dlsym(library, "rocksdb_multi_get"));
}

}  // namespace

extern "C" void rocksdb_multi_get(void* db, const void* options, size_t num_keys,
                                  const char* const* keys, const size_t* key_bytes, char** values,
                                  size_t* value_bytes, char** errors) {
  char word[16] = "";
  double seconds = 0;
  if (FILE* file = std::fopen(std::getenv("SLOW_ROCKSDB"), "r")) {
    if (std::fscanf(file, "%15s %lf", word, &seconds) < 1) word[0] = 0;
    std::fclose(file);
  }
  if (seconds > 0) usleep(static_cast<useconds_t>(seconds * 1e6));
  if (std::strcmp(word, "fail") != 0) {
    Real()(db, options, num_keys, keys, key_bytes, values, value_bytes, errors);
    return;
  }
  for (size_t i = 0; i < num_keys; ++i) {
    values[i] = nullptr;
    errors[i] = strdup("IO error: the disk is gone");
  }
}
