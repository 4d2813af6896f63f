#include "serving/lower/tier_options.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "serving/lower/redis/redis_options.h"

namespace group_embedding {
namespace {

// Ages of rows are known up to 24 days.
constexpr std::chrono::hours kLongestExpiry(24 * 20);

using Units = std::vector<std::pair<std::string, double>>;

const Units& ByteUnits() {
  static const Units units = {{"", 1},         {"kB", 1e3},     {"MB", 1e6},
                              {"GB", 1e9},     {"TB", 1e12},    {"KiB", 0x1p10},
                              {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  return units;
}

const Units& MicrosecondUnits() {
  static const Units units = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 6e7}, {"h", 3.6e9}};
  return units;
}

// A number above 0 with a unit, in the units of 1; -1: it is none.
int64_t ReadQuantity(const std::string& text, const Units& units) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number > 0)) return -1;
  for (const auto& [unit, factor] : units) {
    if (std::string(end) == unit && number * factor < 0x1p62) {
      return static_cast<int64_t>(number * factor);
    }
  }
  return -1;
}

Status ReadWord(const std::string& name, const std::string& value, TierOptions* options) {
  const std::string where = "option 'tiers', " + name;
  if (name == "on_failure") {
    const auto word = Parse(OnFailureWords(), value);
    if (!word) return UnknownWord(where, OnFailureWords(), value);
    options->on_failure = *word;
  } else {
    const auto word = Parse(InsertWords(), value);
    if (!word) return UnknownWord(where, InsertWords(), value);
    options->insert = *word;
  }
  return {};
}

Status ReadDuration(const std::string& name, const std::string& value, TierOptions* options) {
  const int64_t microseconds = ReadQuantity(value, MicrosecondUnits());
  const bool is_timeout = name == "timeout";
  const auto longest = std::chrono::duration_cast<std::chrono::microseconds>(kLongestExpiry);
  if (microseconds < (is_timeout ? 1 : 1'000'000) || microseconds > longest.count()) {
    return "option 'tiers', " + name + ": expected a duration with us, ms, s, min or h, " +
           (is_timeout ? "as 50ms" : "from 1s to 480h") + ", got '" + value + "'";
  }
  if (is_timeout) {
    options->timeout = std::chrono::microseconds(microseconds);
  } else {
    options->expire = std::chrono::seconds(microseconds / 1'000'000);
  }
  return {};
}

// The names and values of a text. A piece without a name is one more address of Redis.
bool Split(const std::string& text, std::vector<std::pair<std::string, std::string>>* tiers) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string piece = text.substr(begin, end - begin);
    const size_t equals = piece.find('=');
    if (equals != piece.npos && piece.find_first_of(":/?@[") >= equals) {
      tiers->emplace_back(piece.substr(0, equals), piece.substr(equals + 1));
    } else if (!tiers->empty() && tiers->back().first == "redis") {
      tiers->back().second += ',' + piece;
    } else {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

}  // namespace

Status ReadTiers(const std::string& text, TierOptions* options) {
  *options = {};
  const bool has_login = text.find('@') != text.npos;  // a password is not repeated
  const std::string expected =
      "option 'tiers': expected memory=SIZE,rocksdb=FOLDER or "
      "memory=SIZE,redis=HOST:PORT[,HOST:PORT...], hbm=SIZE alone or with them, and timeout=, "
      "on_failure=, insert= and expire= where wanted, each once, as "
      "memory=16GB,rocksdb=/var/rows,timeout=50ms, got " +
      (has_login ? "another text" : "'" + text + "'");
  std::vector<std::pair<std::string, std::string>> tiers;
  if (!Split(text, &tiers)) return expected;
  std::vector<std::string> names;
  for (const auto& [name, value] : tiers) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return expected;
    names.push_back(name);
    Status status;
    if (name == "memory" || name == "hbm") {
      int64_t* bytes = name == "hbm" ? &options->hbm_bytes : &options->memory_bytes;
      *bytes = ReadQuantity(value, ByteUnits());
      if (*bytes < 1) return expected;
    } else if (name == "rocksdb" && !value.empty()) {
      options->rocksdb = value;
    } else if (name == "redis") {
      RedisOptions redis;
      status = ReadRedisOptions(value, &redis).In("option 'tiers', redis: ");
      options->redis = value;
    } else if (name == "timeout" || name == "expire") {
      status = ReadDuration(name, value, options);
    } else if (name == "on_failure" || name == "insert") {
      status = ReadWord(name, value, options);
    } else {
      return expected;
    }
    if (!status.ok()) return status;
  }
  if (options->expire && options->insert == Insert::kOff) {
    return "option 'tiers': expected expire= or insert=off, got both: rows that never come into "
           "memory do not leave it";
  }
  const bool has_one = options->rocksdb.empty() != options->redis.empty();
  const bool is_hbm_alone = names == std::vector<std::string>{"hbm"};
  return is_hbm_alone || (options->memory_bytes > 0 && has_one) ? Status() : expected;
}

}  // namespace group_embedding
