// RocksDB whose reads are slow, or fail, as the file SLOW_ROCKSDB says: "sleep 0.2", "fail" or
// nothing. All other functions are those of the library that this one is linked to.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kTableBytes = 8;  // of a key: which table it is of
using GetPinned = void* (*)(void*, const void*, const char*, size_t, char**);

GetPinned Real() {
  static void* const library = dlopen(getenv("REAL_ROCKSDB"), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<GetPinned>(dlsym(library, "rocksdb_get_pinned"));
}

// Whether a thread goes on with a read, which asks for the keys of one table in order, soon after
// each other, while the file says the same.
bool GoesOn(const std::string& said, const std::string& key) {
  thread_local std::string last_said, last_key;
  thread_local Clock::time_point when;
  const bool goes_on = said == last_said && key > last_key &&
                       key.compare(0, kTableBytes, last_key, 0, kTableBytes) == 0 &&
                       Clock::now() - when < std::chrono::milliseconds(5);
  last_said = said;
  last_key = key;
  when = Clock::now();
  return goes_on;
}

}  // namespace

// A read sleeps once.
extern "C" void* rocksdb_get_pinned(void* db, const void* options, const char* key,
                                    size_t key_bytes, char** error) {
  char word[16] = "";
  double seconds = 0;
  if (FILE* file = std::fopen(std::getenv("SLOW_ROCKSDB"), "r")) {
    if (std::fscanf(file, "%15s %lf", word, &seconds) < 1) word[0] = 0;
    std::fclose(file);
  }
  const bool goes_on = GoesOn(word + std::to_string(seconds), std::string(key, key_bytes));
  if (seconds > 0 && !goes_on) usleep(static_cast<useconds_t>(seconds * 1e6));
  if (std::strcmp(word, "fail") != 0) return Real()(db, options, key, key_bytes, error);
  *error = strdup("IO error: the disk is gone");
  return nullptr;
}
