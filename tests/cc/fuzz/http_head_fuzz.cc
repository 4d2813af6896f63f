// Heads of HTTP/1.1: one that is taken says of its body what Beast's parser reads of it.
#include <boost/beast/http.hpp>

#include "parts.h"
#include "serving/server/protocol/http_head.h"

using namespace group_embedding::server;
namespace http = boost::beast::http;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  std::string path;
  if (ReadPath(input, &path)) EXPECT(!path.empty() && path.size() <= input.size());
  const size_t end = input.find("\r\n\r\n");
  if (end == std::string::npos) return 0;
  const std::string head = input.substr(0, end + 4);
  if (CheckHead(head).status != 200) return 0;

  http::request_parser<http::string_body> parser;
  parser.header_limit(1 << 20);
  boost::beast::error_code error;
  size_t used = 0;
  while (!parser.is_header_done() && !error && used < head.size()) {
    used += parser.put(boost::asio::buffer(head.data() + used, head.size() - used), error);
  }
  if (error && error != http::error::need_more) return 0;  // refused later
  EXPECT(parser.is_header_done() && used == head.size());
  const auto& message = parser.get();
  EXPECT(message.count(http::field::content_length) <= 1);
  EXPECT(message.count(http::field::transfer_encoding) <= 1);
  EXPECT(message.count(http::field::host) <= 1);
  EXPECT(!parser.chunked() || !parser.content_length());
  const bool has_body = parser.chunked() || parser.content_length().value_or(0) > 0;
  EXPECT(!has_body ||
         (message.method() != http::verb::get && message.method() != http::verb::head));
  return 0;
}
