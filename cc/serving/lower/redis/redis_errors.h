// Errors that Redis answers, and those of connections to it.
#pragma once

#include <string>

namespace group_embedding {

// Whether an error begins with this word: "MOVED ".
bool RedisErrorIs(const std::string& error, const std::string& word);

// Whether the server does something else for a while.
bool RedisErrorPasses(const std::string& error);

// The error, and what to do about it.
std::string AdvisedRedisError(const std::string& error);

}  // namespace group_embedding
