#include "table/file/crc32c.h"

#include <array>
#include <cstring>

namespace group_embedding {
namespace {

#ifdef __SSE4_2__

uint32_t Extend(uint32_t state, const unsigned char* data, size_t bytes) {
  uint64_t wide = state;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes) state = __builtin_ia32_crc32qi(state, *data++);
  return state;
}

#else

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? 0x82f63b78u : 0);
    table[byte] = state;
  }
  return table;
}

uint32_t Extend(uint32_t state, const unsigned char* data, size_t bytes) {
  static const std::array<uint32_t, 256> table = MakeTable();
  for (; bytes > 0; --bytes) state = (state >> 8) ^ table[(state ^ *data++) & 0xff];
  return state;
}

#endif

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
  return ~Extend(~crc, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace group_embedding
