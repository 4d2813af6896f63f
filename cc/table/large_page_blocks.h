// LargePageBlocks: blocks that are smaller than a large page. K. Knowlton, "A fast storage
// allocator" (1965): a page is halved until a block has the requested size; two free halves are
// merged.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <set>

#include "table/large_pages.h"
#include "table/touch_ahead.h"

namespace group_embedding {

// May be called by several threads.
class LargePageBlocks : public GrowingMemory {
 public:
  static constexpr int64_t kLeastBytes = int64_t{64} << 10;

  ~LargePageBlocks();

  // The process's blocks, shared by all tables.
  static LargePageBlocks& Shared();

  // `bytes`: a power of two, at least kLeastBytes and less than a large page. The content is left
  // over from former owners. Throws NoMemory.
  char* Take(int64_t bytes);
  void Return(char* block, int64_t bytes);
  bool TouchNextPage() override;

 private:
  static constexpr int kNumSizes = 5;  // kLeastBytes to a half of a page
  static_assert(kLeastBytes << kNumSizes == kLargePage);

  static int SizeIndex(int64_t bytes);
  // With the lock.
  void MakeFree(char* block, int size_index);

  std::mutex mutex_;
  std::array<std::set<char*>, kNumSizes> free_;
  char* spare_ = nullptr;  // the next page, once one was needed
};

}  // namespace group_embedding
