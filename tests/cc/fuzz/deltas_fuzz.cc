// Files of a published version: as bytes, and as sections whose checksums are right.
#include <map>

#include "parts.h"
#include "serving/session/delta.h"
#include "table/file/memory_file.h"

using namespace group_embedding;

namespace {

// Files in memory, by name.
class MemoryFiles : public FileSource {
 public:
  std::map<std::string, std::string> files;

  Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const override {
    const auto found = files.find(path.substr(path.rfind('/') + 1));
    if (found == files.end()) return "there is no file '" + path + "'";
    *file = std::make_unique<Reader>(found->second);
    return {};
  }

 private:
  class Reader : public ReadableFile {
   public:
    explicit Reader(const std::string& bytes) : bytes_(bytes) {}
    int64_t bytes() const override { return static_cast<int64_t>(bytes_.size()); }
    Status Read(int64_t offset, size_t bytes, char* to, size_t* taken) const override {
      *taken = offset >= this->bytes() ? 0 : bytes_.copy(to, bytes, offset);
      return {};
    }

   private:
    const std::string& bytes_;
  };
};

int64_t ElementBytes(int32_t dtype) { return dtype == 1 ? 4 : dtype == 9 ? 8 : 0; }

// Sections of the input's parts, with right checksums.
std::string Sections(Parts* parts, FileSum* sum) {
  std::string bytes;
  MemoryFile file(&bytes);
  SectionWriter writer("file", file);
  EXPECT(writer.Open().ok());
  for (int left = parts->Byte() % 4; left > 0; --left) {
    const uint32_t kind = 1 + parts->Byte() % 40;  // 0 is the footer's
    EXPECT(writer.Write(kind, parts->Next()).ok());
  }
  EXPECT(writer.Finish(sum).ok());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parts parts(data, size);
  MemoryFiles files;
  FileSum sums[3];
  const bool is_raw = (parts.Byte() & 1) != 0;
  for (const int i : {0, 1, 2}) {
    const std::string name = std::string(1, static_cast<char>('a' + i));
    files.files[name] = is_raw ? parts.Next() : Sections(&parts, &sums[i]);
  }
  VersionRecord record;
  if (!ReadVersionRecord("folder/a", files, &record).ok()) return 0;
  for (size_t i = 0; i < record.files.size(); ++i) {
    VersionRecord::File& file = record.files[i];
    const bool is_rows = file.kind == VersionRecord::kRows;
    file.path = is_rows ? "b" : "c";
    if (!is_raw) file.sum = sums[is_rows ? 1 : 2];
  }
  const std::map<std::string, DeltaTable> tables = {{"t", {4, DataType::kFloat32}},
                                                    {"u", {1, DataType::kBFloat16}}};
  Delta delta;
  if (!ReadDelta("folder", record, files, tables, ElementBytes, &delta).ok()) return 0;
  for (const auto& [name, changes] : delta.tables) {
    const DeltaTable& table = tables.at(name);
    const size_t row_bytes = table.dim * (table.dtype == DataType::kFloat32 ? 4 : 2);
    EXPECT(changes.values.size() == changes.keys.size() * row_bytes);
  }
  for (const auto& entry : delta.variables) {
    const VariableChange& variable = entry.second;
    EXPECT(ElementBytes(variable.dtype) > 0);
    EXPECT(variable.values.size() % ElementBytes(variable.dtype) == 0);
  }
  return 0;
}
