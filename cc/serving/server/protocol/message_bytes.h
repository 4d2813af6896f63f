// The memory that a message of gRPC takes, known before protobuf reads it: two bytes of a request
// can become an object of two hundred.
#pragma once

#include <cstddef>
#include <string_view>

namespace google::protobuf {
class Descriptor;
}

namespace group_embedding::server {

// Bytes of the objects, strings and numbers that a message of this type is read into, as an
// estimate within a factor of two. The count ends once it is above `most`. Bytes that are no
// message count as far as they are one.
size_t CountMemory(std::string_view message, const google::protobuf::Descriptor& type, size_t most);

}  // namespace group_embedding::server
