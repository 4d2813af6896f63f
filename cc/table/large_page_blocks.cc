#include "table/large_page_blocks.h"

#include <algorithm>
#include <new>
#include <utility>

#include "table/memory_left.h"
#include "table/no_memory.h"

namespace group_embedding {
namespace {

char* NewPageOrNull() {
  if (!HasMemoryFor(kLargePage)) return nullptr;
  char* page = MapLargePages(kLargePage, PROT_READ | PROT_WRITE);
  if (page != nullptr) TouchLargePages(page, kLargePage);  // before threads share it
  return page;
}

char* NewPage() {
  char* page = NewPageOrNull();
  if (page == nullptr) throw NoMemory(kLargePage);
  return page;
}

}  // namespace

LargePageBlocks& LargePageBlocks::Shared() {
  static auto* blocks = new LargePageBlocks;  // never deleted: tables may live until the very end
  return *blocks;
}

LargePageBlocks::~LargePageBlocks() {
  TouchAhead::Shared().Forget(this);
  if (spare_ != nullptr) munmap(spare_, kLargePage);
}

int LargePageBlocks::SizeIndex(int64_t bytes) {
  int index = 0;
  while (kLeastBytes << index < bytes) ++index;
  return index;
}

void LargePageBlocks::MakeFree(char* block, int size_index) {
  try {
    free_[size_index].insert(block);
  } catch (const std::bad_alloc&) {  // nobody will use the block again, which is better than to end
  }
}

char* LargePageBlocks::Take(int64_t bytes) {
  const int wanted = SizeIndex(bytes);
  std::unique_lock<std::mutex> lock(mutex_);
  int size = wanted;
  while (size < kNumSizes && free_[size].empty()) ++size;
  char* block;
  if (size < kNumSizes) {
    block = *free_[size].begin();
    free_[size].erase(free_[size].begin());
  } else {
    block = std::exchange(spare_, nullptr);
    lock.unlock();  // new memory takes time, and threads get it in parallel
    if (block == nullptr) block = NewPage();
    TouchAhead::Shared().Ask(this);
    lock.lock();
  }
  while (size > wanted) {
    --size;
    MakeFree(block + (kLeastBytes << size), size);
  }
  return block;
}

bool LargePageBlocks::TouchNextPage() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (spare_ != nullptr) return false;
  }
  char* page = NewPageOrNull();
  std::lock_guard<std::mutex> lock(mutex_);
  spare_ = page;  // no other thread sets it
  return false;
}

void LargePageBlocks::Return(char* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int size = SizeIndex(bytes); size < kNumSizes; ++size) {
    const intptr_t half = reinterpret_cast<intptr_t>(block) ^ (kLeastBytes << size);
    char* other = reinterpret_cast<char*>(half);
    if (free_[size].erase(other) == 0) return MakeFree(block, size);
    block = std::min(block, other);
  }
  munmap(block, kLargePage);
}

}  // namespace group_embedding
