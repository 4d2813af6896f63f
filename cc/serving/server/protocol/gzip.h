// gzip, of bodies of HTTP and of messages of gRPC.
#pragma once

#include <string>

namespace group_embedding::server {

enum class Inflated { kDone, kTooLarge, kMalformed };

// Inflates all of a gzip member, or of zlib's format, which HTTP and gRPC name deflate. Stops once
// `text` would be larger than `most_bytes`.
Inflated Inflate(const std::string& compressed, size_t most_bytes, std::string* text);

// A gzip member of the text; "" if there is no memory for it.
std::string Deflate(const std::string& text);

}  // namespace group_embedding::server
