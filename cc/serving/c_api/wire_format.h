// Protobuf's wire format, read and written field by field: libge_serving links no protobuf.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ge_serving {

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Reads the fields of one message, in their order. What is read points into the message.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : left_(message) {}

  // Moves to the next field. False at the end, and where bytes are no field: ok() tells which.
  bool Next() {
    uint64_t tag;
    if (left_.empty() || !ok_) return false;
    ok_ = TakeVarint(&left_, &tag) && tag >> 3 > 0 && tag >> 3 < 1u << 29;
    if (!ok_) return false;
    number_ = static_cast<int>(tag >> 3);
    type_ = static_cast<WireType>(tag & 7);
    if (type_ == WireType::kVarint) {
      ok_ = TakeVarint(&left_, &varint_);
    } else if (type_ == WireType::kFixed64 || type_ == WireType::kFixed32) {
      ok_ = Take(type_ == WireType::kFixed64 ? 8 : 4);
    } else {
      uint64_t size;
      ok_ = type_ == WireType::kBytes && TakeVarint(&left_, &size) && Take(size);
    }
    return ok_;
  }

  bool ok() const { return ok_; }
  int number() const { return number_; }
  WireType type() const { return type_; }
  uint64_t varint() const { return varint_; }
  std::string_view bytes() const { return bytes_; }  // of all types but kVarint

  static bool TakeVarint(std::string_view* from, uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70 && !from->empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(from->front());
      from->remove_prefix(1);
      if (shift < 64) *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

 private:
  bool Take(uint64_t size) {
    if (size > left_.size()) return false;
    bytes_ = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }

  std::string_view left_, bytes_;
  uint64_t varint_ = 0;
  int number_ = 0;
  WireType type_ = WireType::kVarint;
  bool ok_ = true;
};

inline void AppendVarint(uint64_t value, std::string* to) {
  for (; value > 0x7f; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

inline void AppendBytes(int number, std::string_view bytes, std::string* to) {
  AppendVarint(static_cast<uint64_t>(number) << 3 | static_cast<uint64_t>(WireType::kBytes), to);
  AppendVarint(bytes.size(), to);
  to->append(bytes);
}

inline void AppendNumber(int number, uint64_t value, std::string* to) {
  AppendVarint(static_cast<uint64_t>(number) << 3, to);
  AppendVarint(value, to);
}

}  // namespace ge_serving
