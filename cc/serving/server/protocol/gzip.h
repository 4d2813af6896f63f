// gzip, of bodies of HTTP.
#pragma once

#include <string>

namespace group_embedding::server {

enum class Inflated { kDone, kTooLarge, kMalformed };

// Inflates all of a gzip member. Stops once `text` would be larger than `most_bytes`.
Inflated Inflate(const std::string& compressed, size_t most_bytes, std::string* text);

// A gzip member of the text; "" if there is no memory for it.
std::string Deflate(const std::string& text);

}  // namespace group_embedding::server
