#include "table/file/section_file.h"

#include <cstring>

#include "table/file/byte_stream.h"
#include "table/file/crc32c.h"

namespace group_embedding {
namespace {

constexpr char kMagic[8] = {'\x89', 'G', 'E', 'T', 'B', 'L', '\r', '\n'};
constexpr size_t kPreambleBytes = 16, kFrameBytes = 24;
// A frame ends in its own checksum. With that the checksum of every frame is the same number.
constexpr size_t kSummedBytes = kFrameBytes - sizeof(uint32_t);

std::string WithCrc(const ByteWriter& content) {
  ByteWriter all = content;
  all.Put(Crc32c(0, content.bytes().data(), content.bytes().size()));
  return all.bytes();
}

std::string Preamble() {
  ByteWriter preamble;
  preamble.PutArray(kMagic, sizeof(kMagic));
  preamble.Put(kFileVersion);
  return WithCrc(preamble);
}

std::string Frame(uint32_t kind, uint32_t index, const std::string& payload) {
  ByteWriter frame;
  frame.Put(kind);
  frame.Put(index);
  frame.Put(static_cast<uint64_t>(payload.size()));
  frame.Put(Crc32c(0, payload.data(), payload.size()));
  return WithCrc(frame);
}

}  // namespace

Status SectionWriter::Append(const void* data, size_t bytes) {
  sum_.bytes += static_cast<int64_t>(bytes);
  return file_->Append(data, bytes);
}

Status SectionWriter::Open() {
  Status status = files_.Create(path_, &file_);
  if (!status.ok()) return status;
  const std::string preamble = Preamble();
  return Append(preamble.data(), preamble.size());
}

Status SectionWriter::Write(uint32_t kind, const std::string& payload) {
  const std::string frame = Frame(kind, num_sections_++, payload);
  sum_.crc = Crc32c(sum_.crc, frame.data(), kSummedBytes);
  Status status = Append(frame.data(), frame.size());
  return status.ok() ? Append(payload.data(), payload.size()) : status;
}

Status SectionWriter::Finish(FileSum* sum) {
  Status status = Write(kFooter, "");
  if (status.ok()) status = file_->Finish();
  *sum = sum_;
  return status;
}

std::string SectionReader::Damaged(const std::string& how) const {
  return "file '" + path_ + "' is damaged: " + how;
}

Status SectionReader::Take(void* to, uint64_t bytes, const char* what) {
  if (bytes > static_cast<uint64_t>(file_bytes_ - sum_.bytes)) {
    return Damaged("it ends at byte " + std::to_string(file_bytes_) + ", within " + what);
  }
  char* at = static_cast<char*>(to);
  int64_t from = sum_.bytes;
  for (uint64_t left = bytes; left > 0;) {
    size_t taken = 0;
    const Status status = file_->Read(from, left, at, &taken);
    if (!status.ok()) return status;
    if (taken == 0) return Damaged(std::string("it became shorter while it was read, in ") + what);
    at += taken;
    from += static_cast<int64_t>(taken);
    left -= static_cast<uint64_t>(taken);
  }
  sum_.bytes += static_cast<int64_t>(bytes);
  return {};
}

Status SectionReader::Open() {
  Status status = file_ == nullptr ? files_.Open(path_, &file_) : Status();
  if (!status.ok()) return status;
  file_bytes_ = file_->bytes();
  num_sections_ = 0;
  sum_ = FileSum();
  char preamble[kPreambleBytes];
  status = Take(preamble, kPreambleBytes, "its first bytes");
  if (!status.ok()) return status;
  ByteReader fields(preamble + sizeof(kMagic), sizeof(preamble) - sizeof(kMagic));
  version_ = fields.Get<uint32_t>();
  if (std::memcmp(preamble, kMagic, sizeof(kMagic)) != 0) {
    return Damaged("its first bytes are not those of a table's file");
  }
  if (fields.Get<uint32_t>() != Crc32c(0, preamble, kPreambleBytes - 4)) {
    return Damaged("wrong checksum of its first bytes");
  }
  if (version_ >= kOldestFileVersion && version_ <= kFileVersion) return {};
  return "file '" + path_ + "': expected format version " + std::to_string(kFileVersion) +
         " or older, got " + std::to_string(version_) +
         ", which a newer release of this package reads";
}

Status SectionReader::Read(uint64_t max_bytes, uint32_t* kind, std::string* payload) {
  const std::string name = "section " + std::to_string(num_sections_);
  char frame[kFrameBytes];
  Status status = Take(frame, kFrameBytes, name.c_str());
  if (!status.ok()) return status;
  ByteReader fields(frame, kFrameBytes);
  *kind = fields.Get<uint32_t>();
  const uint32_t index = fields.Get<uint32_t>();
  const uint64_t bytes = fields.Get<uint64_t>();
  const uint32_t payload_crc = fields.Get<uint32_t>();
  if (fields.Get<uint32_t>() != Crc32c(0, frame, kFrameBytes - 4)) {
    return Damaged("wrong checksum of the frame of " + name);
  }
  if (index != num_sections_) {
    return Damaged("expected " + name + ", got section " + std::to_string(index));
  }
  sum_.crc = Crc32c(sum_.crc, frame, kSummedBytes);
  ++num_sections_;
  if (bytes > static_cast<uint64_t>(file_bytes_ - sum_.bytes)) {
    return Damaged("it ends within " + name);
  }
  if (bytes > max_bytes) {
    return Damaged("expected at most " + std::to_string(max_bytes) + " bytes in " + name +
                   ", got " + std::to_string(bytes));
  }
  payload->resize(bytes);
  status = Take(payload->data(), bytes, name.c_str());
  if (!status.ok()) return status;
  if (payload_crc != Crc32c(0, payload->data(), bytes)) {
    return Damaged("wrong checksum of " + name);
  }
  if (*kind == kFooter && sum_.bytes != file_bytes_) {
    return Damaged("expected its end at byte " + std::to_string(sum_.bytes) + ", got " +
                   std::to_string(file_bytes_) + " bytes");
  }
  return {};
}

}  // namespace group_embedding
