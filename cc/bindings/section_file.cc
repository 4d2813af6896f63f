#include "bindings/section_file.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/file_source.h"
#include "table/file/crc32c.h"
#include "table/file/memory_file.h"
#include "table/file/section_file.h"

namespace group_embedding {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::dict SumDict(const FileSum& sum) { return py::dict("bytes"_a = sum.bytes, "crc"_a = sum.crc); }

struct Section {
  uint32_t kind;
  const char* data;
  size_t bytes;
};

Status Encode(const std::vector<Section>& sections, std::string* content, FileSum* sum) {
  const MemoryFile memory(content);
  SectionWriter file("sections", memory);
  Status status = file.Open();
  for (const Section& section : sections) {
    if (status.ok()) status = file.Write(section.kind, {section.data, section.bytes});
  }
  return status.ok() ? file.Finish(sum) : status;
}

py::tuple EncodeSections(const std::vector<std::pair<uint32_t, py::buffer>>& given) {
  std::vector<py::buffer_info> buffers;  // keep what they point to
  std::vector<Section> sections;
  for (const auto& [kind, payload] : given) {
    buffers.push_back(payload.request());
    const py::buffer_info& buffer = buffers.back();
    sections.push_back({kind, static_cast<const char*>(buffer.ptr),
                        static_cast<size_t>(buffer.size * buffer.itemsize)});
  }
  std::string content;
  Status status;
  FileSum sum;
  {
    py::gil_scoped_release release;
    status = Encode(sections, &content, &sum);
  }
  Require(status);
  return py::make_tuple(py::bytes(content), SumDict(sum));
}

class PySectionFile {
 public:
  PySectionFile(const std::string& path, uint64_t max_bytes, py::object open)
      : source_(SourceOf(std::move(open))), file_(path, *source_), max_bytes_(max_bytes) {
    Require(file_.Open());
  }

  py::tuple Next() {
    if (has_ended_) throw py::stop_iteration();
    uint32_t kind;
    std::string payload;
    Status status;
    {
      py::gil_scoped_release release;
      status = file_.Read(max_bytes_, &kind, &payload);
    }
    Require(status);
    has_ended_ = kind == kFooter;
    if (has_ended_) throw py::stop_iteration();
    return py::make_tuple(kind, py::bytes(payload));
  }

  py::dict Sum() const { return SumDict(file_.sum()); }

 private:
  const std::unique_ptr<FileSource> source_;
  SectionReader file_;
  const uint64_t max_bytes_;
  bool has_ended_ = false;
};

uint32_t Checksum(const py::buffer& data, uint32_t crc) {
  const py::buffer_info buffer = data.request();
  const size_t bytes = static_cast<size_t>(buffer.size * buffer.itemsize);
  py::gil_scoped_release release;
  return Crc32c(crc, buffer.ptr, bytes);
}

}  // namespace

void BindSectionFile(py::module_& m) {
  m.def("encode_sections", &EncodeSections, "sections"_a,
        "(content, {bytes, crc}) of a file of sections, (kind, contiguous buffer) each.");
  m.def("crc32c", &Checksum, "data"_a, "crc"_a = 0,
        "The CRC-32C of bytes with the checksum `crc`, followed by a contiguous buffer.");
  py::class_<PySectionFile>(m, "SectionFile", py::module_local(),
                            R"(The sections of a file, (kind, payload) each.

RuntimeError where one is damaged, or larger than max_bytes. `open`: as of verify_table_file.)")
      .def(py::init<const std::string&, uint64_t, py::object>(), "path"_a, "max_bytes"_a,
           py::kw_only(), "open"_a = py::none())
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &PySectionFile::Next)
      .def_property_readonly("sum", &PySectionFile::Sum, "{bytes, crc}, after the last section.");
}

}  // namespace group_embedding
