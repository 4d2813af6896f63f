#include "serving/lower/redis/redis_errors.h"

namespace group_embedding {
namespace {

// An error that a server told begins with a word in capitals.
bool IsOfServer(const std::string& error) {
  const size_t end = error.find(' ');
  return end != error.npos && end > 2 &&
         error.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == end;
}

}  // namespace

bool RedisErrorIs(const std::string& error, const std::string& word) {
  return error.compare(0, word.size(), word) == 0;
}

bool RedisErrorPasses(const std::string& error) {
  for (const char* word : {"LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"}) {
    if (RedisErrorIs(error, word)) return true;
  }
  return false;
}

std::string AdvisedRedisError(const std::string& error) {
  for (const char* login : {"NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR invalid password"}) {
    if (RedisErrorIs(error, login)) {
      return error +
             "; give a user and a password who may read and write: "
             "redis=redis://USER:PASSWORD@HOST:PORT, or GROUP_EMBEDDING_REDIS_PASSWORD";
    }
  }
  if (RedisErrorIs(error, "OOM")) return error + "; raise maxmemory, or remove other keys";
  if (RedisErrorIs(error, "READONLY")) return error + "; name the primary, which takes writes";
  if (RedisErrorIs(error, "MISCONF")) return error + "; see the server's log";
  const bool is_certificate = RedisErrorIs(error, "TLS") || RedisErrorIs(error, "ssl_");
  if (IsOfServer(error) || is_certificate) return error;
  return error + "; is Redis running there, and reached from here?";
}

}  // namespace group_embedding
