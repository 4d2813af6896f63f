// RocksDB whose reads are slow, or fail, as the file SLOW_ROCKSDB says: "sleep 0.2", "fail" or
// nothing. All other functions are those of the library that this one is linked to.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using Clock = std::chrono::steady_clock;
using GetPinned = void* (*)(void*, const void*, const char*, size_t, char**);

GetPinned Real() {
  static void* const library = dlopen(getenv("REAL_ROCKSDB"), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<GetPinned>(dlsym(library, "rocksdb_get_pinned"));
}

}  // namespace

// Keys that a thread asks for one after the other are one read: it sleeps once.
extern "C" void* rocksdb_get_pinned(void* db, const void* options, const char* key,
                                    size_t key_bytes, char** error) {
  thread_local Clock::time_point last;
  char word[16] = "";
  double seconds = 0;
  if (FILE* file = std::fopen(std::getenv("SLOW_ROCKSDB"), "r")) {
    if (std::fscanf(file, "%15s %lf", word, &seconds) < 1) word[0] = 0;
    std::fclose(file);
  }
  const bool goes_on = Clock::now() - last < std::chrono::milliseconds(5);
  if (seconds > 0 && !goes_on) usleep(static_cast<useconds_t>(seconds * 1e6));
  last = Clock::now();
  if (std::strcmp(word, "fail") != 0) return Real()(db, options, key, key_bytes, error);
  *error = strdup("IO error: the disk is gone");
  return nullptr;
}
