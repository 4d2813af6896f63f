#include "serving/server/protocol/message_bytes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <unordered_map>

namespace group_embedding::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MessageFactory;
using google::protobuf::io::CodedInputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr size_t kAllocation = 16;  // what malloc keeps of each
constexpr size_t kPointer = 8;      // of an object, in its list
constexpr size_t kMapNode = 64;
constexpr size_t kUnknownField = 16;
constexpr size_t kNumber = 8;
constexpr int kMostDepth = 100;  // protobuf reads no deeper

// In a list, of so many characters; short ones lie within the object.
size_t StringBytes(size_t length) {
  return sizeof(std::string) + kAllocation + kPointer + (length > 15 ? length + kAllocation : 0);
}

size_t NumbersIn(std::string_view varints) {
  return std::count_if(varints.begin(), varints.end(), [](char c) { return (c & 0x80) == 0; });
}

class Counter {
 public:
  explicit Counter(size_t most) : most_(most) {}

  size_t bytes() const { return bytes_; }

  // type: null for fields that no message knows.
  void Count(std::string_view message, const Descriptor* type, int depth) {
    CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()),
                        static_cast<int>(message.size()));
    while (bytes_ <= most_) {
      const uint32_t tag = in.ReadTag();
      if (tag == 0) return;  // the end, or no message
      const FieldDescriptor* field =
          type == nullptr ? nullptr : type->FindFieldByNumber(Wire::GetTagFieldNumber(tag));
      if (Wire::GetTagWireType(tag) != Wire::WIRETYPE_LENGTH_DELIMITED) {
        bytes_ += field == nullptr ? kUnknownField : kNumber;
        // The ends of groups, which no message here has, are unknown fields too.
        if (Wire::GetTagWireType(tag) == Wire::WIRETYPE_END_GROUP) continue;
        if (Wire::GetTagWireType(tag) == Wire::WIRETYPE_START_GROUP) continue;
        if (!Wire::SkipField(&in, tag)) return;
        continue;
      }
      uint32_t length = 0;
      const auto at = [&] { return static_cast<size_t>(in.CurrentPosition()); };
      if (!in.ReadVarint32(&length) || length > message.size() - at()) return;
      CountLengthDelimited(message.substr(at(), length), field, depth);
      in.Skip(static_cast<int>(length));
    }
  }

 private:
  void CountLengthDelimited(std::string_view value, const FieldDescriptor* field, int depth) {
    if (field == nullptr) {
      bytes_ += kUnknownField + StringBytes(value.size());
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      bytes_ += StringBytes(value.size());
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      bytes_ +=
          kAllocation + kPointer + (field->is_map() ? kMapNode : SizeOf(field->message_type()));
      if (depth < kMostDepth) Count(value, field->message_type(), depth + 1);
    } else {
      const bool is_fixed = field->type() == FieldDescriptor::TYPE_FLOAT ||
                            field->type() == FieldDescriptor::TYPE_DOUBLE ||
                            field->type() == FieldDescriptor::TYPE_FIXED32 ||
                            field->type() == FieldDescriptor::TYPE_FIXED64;
      bytes_ += is_fixed ? value.size() : kNumber * NumbersIn(value);
    }
  }

  size_t SizeOf(const Descriptor* type) {
    size_t& size = sizes_[type];
    if (size == 0) {
      size = MessageFactory::generated_factory()->GetPrototype(type)->SpaceUsedLong();
    }
    return size;
  }

  const size_t most_;
  size_t bytes_ = 0;
  std::unordered_map<const Descriptor*, size_t> sizes_;
};

}  // namespace

size_t CountMemory(std::string_view message, const Descriptor& type, size_t most) {
  Counter counter(most);
  counter.Count(message, &type, 0);
  return counter.bytes();
}

}  // namespace group_embedding::server
