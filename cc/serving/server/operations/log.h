// Lines on stderr, and the time.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace group_embedding::server {

inline void Log(const std::string& subject, const std::string& sentence) {
  std::fprintf(stderr, "ge-serve: %s: %s\n", subject.c_str(), sentence.c_str());
}

// Seconds since 1970.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace group_embedding::server
