#include "serving/table/large_page_arena.h"

#include "table/large_pages.h"

namespace group_embedding {
namespace {

constexpr int64_t kBlock = 64 * kLargePage;
constexpr int64_t kCacheLine = 64;

}  // namespace

LargePageArena::~LargePageArena() {
  for (char* block : blocks_) munmap(block, kBlock);
}

char* LargePageArena::Take(int64_t bytes) {
  if (bytes > kBlock) return nullptr;
  const int64_t taken = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (blocks_.empty() || used_ + taken > kBlock) {
    char* block = MapLargePages(kBlock, PROT_READ | PROT_WRITE);
    if (block == nullptr) return nullptr;
    blocks_.push_back(block);
    used_ = 0;
  }
  char* begin = blocks_.back() + used_;
  used_ += taken;
  return begin;
}

}  // namespace group_embedding
