#include "serving/server/operations/text_proto.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/text_format.h>

#include <fstream>

namespace group_embedding::server {
namespace {

// Keeps the first error, which names the line.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (!error_.empty()) return;
    error_ = "line " + std::to_string(line + 1) + ", column " + std::to_string(column + 1) + ": " +
             message;
  }
  const std::string& error() const { return error_; }

 private:
  std::string error_;
};

}  // namespace

Status ReadTextProto(const std::string& file, google::protobuf::Message* message) {
  std::ifstream stream(file);
  if (!stream) return Status(StatusCode::NOT_FOUND, "cannot read '" + file + "'");
  google::protobuf::io::IstreamInputStream input(&stream);
  google::protobuf::TextFormat::Parser parser;
  FirstError errors;
  parser.RecordErrorsTo(&errors);
  if (parser.Parse(&input, message)) return Status::OK;
  return Status(StatusCode::INVALID_ARGUMENT, "'" + file + "', " + errors.error());
}

}  // namespace group_embedding::server
