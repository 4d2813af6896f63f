#include "serving/server/protocol/http_head.h"

#include <algorithm>

namespace group_embedding::server {
namespace {

constexpr int kMostFields = 100;
constexpr size_t kMostDigits = 18;  // of a length: below 2^63
constexpr std::string_view kEnd = "\r\n";

HttpRefusal Bad(const std::string& message) { return {400, "malformed request: " + message}; }

// A character of a method or of a field's name (RFC 9110, section 5.6.2).
bool IsTokenCharacter(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kOthers.find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenCharacter);
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view WithoutBlanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool HasOnlyWholeLines(std::string_view head) {
  for (size_t i = 0; i < head.size(); ++i) {
    const auto c = static_cast<unsigned char>(head[i]);
    if (c == '\r' && (i + 1 == head.size() || head[i + 1] != '\n')) return false;
    if (c == '\n' && (i == 0 || head[i - 1] != '\r')) return false;
    const bool is_control = c < 0x20 || c == 0x7f;
    if (is_control && c != '\r' && c != '\n' && c != '\t') return false;
  }
  return true;
}

// What the fields of a head say of its body.
struct Framing {
  int hosts = 0, lengths = 0, codings = 0;
  std::string_view length, coding;
};

HttpRefusal ReadField(std::string_view line, Framing* framing) {
  if (line.front() == ' ' || line.front() == '\t') return Bad("a folded field");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) {
    return Bad("expected NAME: VALUE");
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = WithoutBlanks(line.substr(colon + 1));
  if (EqualsIgnoringCase(name, "Host")) ++framing->hosts;
  if (EqualsIgnoringCase(name, "Content-Length")) {
    ++framing->lengths;
    framing->length = value;
  }
  if (EqualsIgnoringCase(name, "Transfer-Encoding")) {
    ++framing->codings;
    framing->coding = value;
  }
  return {};
}

HttpRefusal CheckFraming(const Framing& framing, std::string_view method, bool is_1_0) {
  if (framing.hosts > 1 || (framing.hosts == 0 && !is_1_0)) return Bad("expected one Host");
  if (framing.lengths > 1) return Bad("expected one Content-Length");
  if (framing.codings > 1) return Bad("expected one Transfer-Encoding");
  if (framing.lengths > 0 && framing.codings > 0) {
    return Bad("expected Content-Length or Transfer-Encoding, got both");
  }
  if (framing.codings > 0 && is_1_0) return Bad("HTTP/1.0 has no Transfer-Encoding");
  if (framing.codings > 0 && !EqualsIgnoringCase(framing.coding, "chunked")) {
    return {501, "Transfer-Encoding: expected chunked"};
  }
  const bool is_number = !framing.length.empty() && framing.length.size() <= kMostDigits &&
                         framing.length.find_first_not_of("0123456789") == std::string_view::npos;
  if (framing.lengths > 0 && !is_number) return Bad("Content-Length is not a number");
  const bool has_body =
      framing.codings > 0 ||
      (framing.lengths > 0 && framing.length.find_first_not_of('0') != std::string_view::npos);
  if (has_body && (method == "GET" || method == "HEAD")) {
    return Bad(std::string(method) + " has no body");
  }
  return {};
}

}  // namespace

HttpRefusal CheckHead(std::string_view head) {
  if (!HasOnlyWholeLines(head))
    return Bad("expected lines that end by CRLF, without control bytes");
  const size_t end = head.find(kEnd);
  const std::string_view line = head.substr(0, end);
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || second == first + 1 ||
      line.find_first_of(" \t", second + 1) != std::string_view::npos) {
    return Bad("expected METHOD PATH HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first), version = line.substr(second + 1);
  if (!IsToken(method)) return Bad("expected METHOD PATH HTTP/1.1");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return version.rfind("HTTP/", 0) == 0 ? HttpRefusal{505, "expected HTTP/1.1"}
                                          : Bad("expected METHOD PATH HTTP/1.1");
  }
  Framing framing;
  int fields = 0;
  std::string_view rest = head.substr(end + kEnd.size());
  while (rest.size() > kEnd.size()) {
    const size_t length = rest.find(kEnd);
    if (++fields > kMostFields) return {431, "expected at most 100 fields"};
    if (length == 0 || length == std::string_view::npos) return Bad("an empty line in the head");
    if (HttpRefusal refusal = ReadField(rest.substr(0, length), &framing); refusal.status != 200) {
      return refusal;
    }
    rest.remove_prefix(length + kEnd.size());
  }
  return CheckFraming(framing, method, version == "HTTP/1.0");
}

bool ReadPath(std::string_view target, std::string* path) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.rfind(scheme, 0) != 0) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (target.empty() || target.front() == '?') target = "/";
  }
  target = target.substr(0, target.find('?'));
  if (target.empty() || target.front() != '/') return false;
  path->clear();
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path->push_back(target[i]);
      continue;
    }
    if (i + 2 >= target.size()) return false;
    const int high = digit(target[i + 1]), low = digit(target[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
    path->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

}  // namespace group_embedding::server
