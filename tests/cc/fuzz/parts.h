// A fuzzer's input as several byte strings.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

// Ends the process, as the sanitizers do: the fuzzer keeps the input.
#define EXPECT(condition) \
  if (!(condition)) std::abort()

class Parts {
 public:
  Parts(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  // Two bytes say how many follow.
  std::string Next() {
    const size_t low = Byte(), size = low | size_t{Byte()} << 8;
    std::string part(rest_.substr(0, size));
    rest_.remove_prefix(part.size());
    return part;
  }

  std::string Rest() {
    std::string part(rest_);
    rest_ = {};
    return part;
  }

 private:
  std::string_view rest_;
};
