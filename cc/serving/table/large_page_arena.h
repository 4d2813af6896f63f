// LargePageArena: memory in large pages for arrays that are smaller than one, one after another.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace group_embedding {

// May be called by several threads.
class LargePageArena {
 public:
  LargePageArena() = default;
  ~LargePageArena();
  LargePageArena(const LargePageArena&) = delete;
  LargePageArena& operator=(const LargePageArena&) = delete;

  // `bytes` of zeros, at most a large page, that live as long as the arena; null: there is no
  // memory. They begin where a cache line does.
  char* Take(int64_t bytes);

 private:
  std::mutex mutex_;
  std::vector<char*> blocks_;  // of addresses; the system gives memory where it is written
  int64_t used_ = 0;           // bytes of the last block
};

}  // namespace group_embedding
