#include "serving/lower/redis/redis_options.h"

#include <algorithm>
#include <cstdlib>

namespace group_embedding {
namespace {

constexpr char kDefaultPort[] = "6379";
constexpr char kExpected[] =
    "expected redis=HOST:PORT[,HOST:PORT...], or a URL as "
    "redis=rediss://USER:PASSWORD@HOST:PORT?ssl_ca_certs=FILE";

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// %XX -> a byte. False: a % without two digits.
bool Unescape(std::string* text) {
  std::string bytes;
  for (size_t i = 0; i < text->size(); ++i) {
    if ((*text)[i] != '%') {
      bytes += (*text)[i];
      continue;
    }
    const std::string digits = text->substr(i + 1, 2);
    char* end = nullptr;
    const long byte = std::strtol(digits.c_str(), &end, 16);
    if (digits.size() != 2 || *end != '\0') return false;
    bytes += static_cast<char>(byte);
    i += 2;
  }
  *text = bytes;
  return true;
}

bool ReadNumber(const std::string& text, double least, double most, double* number) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && *number >= least && *number <= most;
}

Status ReadOption(const std::string& name, const std::string& value, RedisOptions* options) {
  double number = 0;
  if (name == "db") {
    if (!ReadNumber(value, 0, 1 << 20, &number) || number != static_cast<int>(number)) {
      return "db: expected the number of a database, got '" + value + "'";
    }
    options->database = static_cast<int>(number);
  } else if (name == "ssl_ca_certs") {
    options->ca_file = value;
  } else if (name == "ssl_certfile") {
    options->cert_file = value;
  } else if (name == "ssl_keyfile") {
    options->key_file = value;
  } else if (name == "ssl_check_hostname") {
    if (value != "true" && value != "false") {
      return "ssl_check_hostname: expected true or false, got '" + value + "'";
    }
    options->check_hostname = value == "true";
  } else {
    return "expected the options db, ssl_ca_certs, ssl_certfile, ssl_keyfile and "
           "ssl_check_hostname, got '" +
           name + "'";
  }
  return {};
}

Status ReadQuery(const std::string& query, RedisOptions* options) {
  for (const std::string& one : Split(query, '&')) {
    const size_t equals = one.find('=');
    if (equals == one.npos) return kExpected;
    std::string value = one.substr(equals + 1);
    if (!Unescape(&value)) return kExpected;
    Status status = ReadOption(one.substr(0, equals), value, options);
    if (!status.ok()) return status;
  }
  const bool names_files = !options->ca_file.empty() || !options->cert_file.empty();
  if (names_files && !options->tls) return "ssl_ca_certs and ssl_certfile need a URL of rediss://";
  if (options->cert_file.empty() != options->key_file.empty()) {
    return "expected both ssl_certfile and ssl_keyfile, or none";
  }
  return {};
}

}  // namespace

std::string RedisAddress::text() const {
  const bool is_ipv6 = host.find(':') != host.npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

std::string RedisOptions::text() const {
  std::string all;
  for (const RedisAddress& address : addresses) all += (all.empty() ? "" : ",") + address.text();
  return all;
}

bool ReadRedisAddress(const std::string& text, RedisAddress* address) {
  const size_t colon = text.rfind(':');
  const size_t bracket = text.find(']');
  const bool has_port = colon != text.npos && (bracket == text.npos || colon > bracket);
  address->host = text.substr(0, has_port ? colon : text.npos);
  address->port = has_port ? text.substr(colon + 1) : kDefaultPort;
  std::string& host = address->host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]/@ ") != host.npos) {
    return false;
  }
  double port = 0;
  return !host.empty() && address->port.find_first_not_of("0123456789") == std::string::npos &&
         ReadNumber(address->port, 1, 65535, &port);
}

Status ReadRedisOptions(const std::string& text, RedisOptions* options) {
  std::string rest = text;
  if (const size_t scheme = text.find("://"); scheme != text.npos) {
    options->tls = text.substr(0, scheme) == "rediss";
    if (!options->tls && text.substr(0, scheme) != "redis") return kExpected;
    rest = text.substr(scheme + 3);
    // The last @: a host has none.
    std::string query;
    if (const size_t mark = rest.find('?'); mark != rest.npos) {
      query = rest.substr(mark + 1);
      rest.resize(mark);
    }
    if (const size_t at = rest.rfind('@'); at != rest.npos) {
      const std::string login = rest.substr(0, at);
      const size_t colon = login.find(':');
      if (colon == login.npos) return kExpected;
      options->user = login.substr(0, colon);
      options->password = login.substr(colon + 1);
      if (!Unescape(&options->user) || !Unescape(&options->password)) return kExpected;
      rest = rest.substr(at + 1);
    }
    if (const size_t slash = rest.find('/'); slash != rest.npos) {
      const std::string database = rest.substr(slash + 1);
      if (!database.empty()) {
        Status status = ReadOption("db", database, options);
        if (!status.ok()) return status;
      }
      rest.resize(slash);
    }
    if (!query.empty()) {
      Status status = ReadQuery(query, options);
      if (!status.ok()) return status;
    }
  }
  for (const std::string& one : Split(rest, ',')) {
    RedisAddress address;
    if (!ReadRedisAddress(one, &address)) return kExpected;
    options->addresses.push_back(address);
  }
  if (options->password.empty()) {
    const char* password = std::getenv("GROUP_EMBEDDING_REDIS_PASSWORD");
    if (password != nullptr) options->password = password;
  }
  return {};
}

}  // namespace group_embedding
