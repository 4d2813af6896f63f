// The head of a request: rules that keep a server and the proxies before it of one opinion on where
// a request ends (RFC 9112, sections 2 to 6), stricter than Beast's parser.
#pragma once

#include <string>
#include <string_view>

namespace group_embedding::server {

// The status and the message of a request that is refused; 200: it is not.
struct HttpRefusal {
  int status = 200;
  std::string message;
};

// Checks the bytes up to and with the empty line that ends the head.
//
// Refused are: a CR or LF that is not half of CRLF, other control bytes, folded lines, a blank
// before a colon, none or two Hosts, Content-Length beside Transfer-Encoding, two of either, a
// length that is no number, a coding that is not "chunked", Transfer-Encoding in HTTP/1.0, a body
// of GET or HEAD, and more than 100 fields.
HttpRefusal CheckHead(std::string_view head);

// The path of a request target: without scheme, authority and query, %XX decoded. False: malformed.
bool ReadPath(std::string_view target, std::string* path);

}  // namespace group_embedding::server
