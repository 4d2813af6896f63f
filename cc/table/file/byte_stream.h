// Numbers, strings and arrays as bytes, little-endian, without padding.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace group_embedding {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are written as memory has them");

class ByteWriter {
 public:
  template <typename T>
  void Put(T number) {
    static_assert(std::is_arithmetic_v<T>);
    PutArray(&number, sizeof(T));
  }
  void PutString(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    PutArray(text.data(), text.size());
  }
  void PutArray(const void* data, size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Whether bytes are text in UTF-8 (RFC 3629).
inline bool IsUtf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) -> uint32_t {
      return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
    };
    const uint32_t first = byte(at);
    const int more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : 3;
    if (more == 3 && first >> 3 != 30) return false;
    uint32_t code = more == 0 ? first : first & (0x3fu >> more);
    for (int i = 1; i <= more; ++i) {
      if (byte(at + i) >> 6 != 2) return false;
      code = code << 6 | (byte(at + i) & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    at += 1 + more;
  }
  return true;
}

// Reads what a ByteWriter wrote. Once there is too little left, everything is empty and ok() false.
class ByteReader {
 public:
  ByteReader(const char* data, size_t bytes) : data_(data), left_(bytes) {}
  explicit ByteReader(const std::string& bytes) : ByteReader(bytes.data(), bytes.size()) {}

  template <typename T>
  T Get() {
    T number{};
    GetArray(&number, sizeof(T));
    return number;
  }
  std::string GetString() {
    const uint32_t size = Get<uint32_t>();
    std::string text(Has(size) ? size : 0, '\0');
    GetArray(text.data(), text.size());
    return text;
  }
  // A string that is text in UTF-8: a name, which messages repeat.
  std::string GetText() {
    std::string text = GetString();
    ok_ = ok_ && IsUtf8(text);
    return ok_ ? text : "";
  }
  // Appends `count` values to `values`.
  template <typename T>
  void GetVector(uint64_t count, std::vector<T>* values) {
    if (count > left_ / sizeof(T) || !Has(count * sizeof(T))) {
      ok_ = false;
      return;
    }
    const size_t old = values->size();
    values->resize(old + count);
    GetArray(values->data() + old, count * sizeof(T));
  }
  size_t left() const { return left_; }
  bool ok() const { return ok_; }
  // Whether everything was there, and nothing else.
  bool Ended() const { return ok_ && left_ == 0; }

 private:
  bool Has(uint64_t bytes) {
    ok_ = ok_ && bytes <= left_;
    return ok_;
  }
  void GetArray(void* to, size_t bytes) {
    if (!Has(bytes) || bytes == 0) return;
    std::memcpy(to, data_, bytes);
    data_ += bytes;
    left_ -= bytes;
  }

  const char* data_;
  size_t left_;
  bool ok_ = true;
};

}  // namespace group_embedding
