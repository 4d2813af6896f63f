// Prefetch: asks for a cache line. The compiler takes a function that does nothing but
// __builtin_prefetch for one without an effect, and drops calls of it that it has not inlined
// early.
#pragma once

namespace group_embedding {

inline void Prefetch(const void* at) {
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(at)));
}

}  // namespace group_embedding
