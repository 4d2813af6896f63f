// JsonReader: the JSON of options and configurations, read value by value.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace group_embedding {

// Where one text is read from its beginning to its end. After a character that was not expected,
// ok() is false, and what is read is empty.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}

  bool ok() const { return ok_; }
  size_t at() const { return at_; }

  // Whether the next character is this one, which is taken then.
  bool Take(char expected) {
    SkipSpace();
    if (!ok_ || at_ >= text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }
  bool TakeNull() {
    SkipSpace();
    if (text_.compare(at_, 4, "null") != 0) return false;
    at_ += 4;
    return true;
  }
  bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }
  void Require(char expected) { ok_ = Take(expected) && ok_; }

  std::string String() {
    Require('"');
    std::string value;
    while (ok_ && at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        value += text_[at_++];
        continue;
      }
      ++at_;
      Escape(&value);
    }
    Require('"');
    return value;
  }

  int64_t Integer() {
    SkipSpace();
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    const std::string digits = text_.substr(begin, at_ - begin);
    ok_ = ok_ && digits.size() < 19 && !digits.empty() && digits != "-";
    return ok_ ? std::strtoll(digits.c_str(), nullptr, 10) : 0;
  }

  std::vector<std::string> Strings() {
    std::vector<std::string> values;
    Require('[');
    if (Take(']')) return values;
    do {
      values.push_back(String());
    } while (ok_ && Take(','));
    Require(']');
    return values;
  }

  // Passes over a value of any type. `depth`: of arrays and objects that may lie in one another.
  void Skip(int depth = 16) {
    SkipSpace();
    const char first = ok_ && at_ < text_.size() && depth > 0 ? text_[at_] : '\0';
    if (first == '"') {
      String();
    } else if (first == '{' || first == '[') {
      SkipItems(first == '{', depth);
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                    text_[at_] == '-' || text_[at_] == '+' || text_[at_] == '.')) {
        ++at_;
      }
      ok_ = ok_ && depth > 0 && at_ > begin;
    }
  }

 private:
  void SkipItems(bool is_object, int depth) {
    ++at_;
    const char end = is_object ? '}' : ']';
    if (Take(end)) return;
    do {
      if (is_object) {
        String();
        Require(':');
      }
      Skip(depth - 1);
    } while (ok_ && Take(','));
    Require(end);
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  void Escape(std::string* value) {
    const char escaped = at_ < text_.size() ? text_[at_++] : '\0';
    static const std::string from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    const size_t simple = escaped == '\0' ? from.npos : from.find(escaped);
    if (simple != from.npos) {
      *value += to[simple];
    } else if (escaped == 'u') {
      AppendUtf8(CodeUnit(), value);
    } else {
      ok_ = false;
    }
  }

  uint32_t CodeUnit() {
    const std::string digits = text_.substr(std::min(at_, text_.size()), 4);
    ok_ = ok_ && digits.size() == 4 &&
          digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
    at_ += 4;
    return ok_ ? static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16)) : 0;
  }

  // Two code units of UTF-16 may be one character.
  void AppendUtf8(uint32_t code, std::string* value) {
    if (code >= 0xd800 && code < 0xdc00 && text_.compare(at_, 2, "\\u") == 0) {
      at_ += 2;
      code = 0x10000 + ((code - 0xd800) << 10) + (CodeUnit() - 0xdc00);
    }
    if (code < 0x80) {
      *value += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *value += static_cast<char>((0xff00 >> (more + 1) & 0xff) | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i)
      *value += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
  }

  const std::string& text_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace group_embedding
