#include "serving/server/protocol/gzip.h"

#include <zlib.h>

#include <algorithm>

namespace group_embedding::server {
namespace {

constexpr int kGzip = 15 + 16;  // the largest window, in a gzip wrapper
constexpr int kGzipOrZlib = 15 + 32;
constexpr size_t kStepBytes = size_t{256} << 10;

}  // namespace

Inflated Inflate(const std::string& compressed, size_t most_bytes, std::string* text) {
  text->clear();
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) return Inflated::kMalformed;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  int state = Z_OK;
  while (state == Z_OK && text->size() <= most_bytes) {
    const size_t begin = text->size();
    text->resize(begin + std::min(kStepBytes, most_bytes + 1 - begin));
    stream.next_out = reinterpret_cast<Bytef*>(&(*text)[begin]);
    stream.avail_out = static_cast<uInt>(text->size() - begin);
    state = inflate(&stream, Z_NO_FLUSH);
    text->resize(text->size() - stream.avail_out);
  }
  const bool is_whole = state == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (text->size() > most_bytes) return Inflated::kTooLarge;
  return is_whole ? Inflated::kDone : Inflated::kMalformed;
}

std::string Deflate(const std::string& text) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return {};
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(&compressed[0]);
  stream.avail_out = static_cast<uInt>(compressed.size());
  const bool is_whole = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  compressed.resize(is_whole ? stream.total_out : 0);
  deflateEnd(&stream);
  return compressed;
}

}  // namespace group_embedding::server
