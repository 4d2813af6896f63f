#include "bindings/file_source.h"

#include <cstring>
#include <string>
#include <utility>

namespace group_embedding {
namespace {

namespace py = pybind11;

// body(), and what it raised, in words. The caller does not have Python's lock.
template <typename Body>
std::string InPython(const char* what, const std::string& path, const Body& body) {
  py::gil_scoped_acquire acquire;
  try {
    body();
    return "";
  } catch (const py::error_already_set& error) {
    // Not what(), which has Python's stack behind it.
    const std::string type = py::str(error.type().attr("__name__"));
    const std::string text = py::str(error.value());
    return std::string("cannot ") + what + " '" + path + "': " + type + ": " + text;
  } catch (const py::cast_error& error) {
    return std::string("cannot ") + what + " '" + path + "': " + error.what();
  }
}

class PyFile : public ReadableFile {
 public:
  explicit PyFile(std::string path) : path_(std::move(path)) {}
  ~PyFile() override {
    InPython("close", path_, [this] {
      if (file_) file_.attr("close")();
      file_ = py::object();
    });
  }

  Status Open(const py::object& open) {
    return InPython("open", path_, [&] {
      file_ = open(path_);
      file_.attr("seek")(0, 2);
      bytes_ = file_.attr("tell")().cast<int64_t>();
    });
  }

  int64_t bytes() const override { return bytes_; }

  Status Read(int64_t offset, size_t bytes, char* to, size_t* taken) const override {
    return InPython("read", path_, [&] {
      file_.attr("seek")(offset);
      const std::string read = file_.attr("read")(bytes).cast<py::bytes>();
      *taken = read.size() < bytes ? read.size() : bytes;
      std::memcpy(to, read.data(), *taken);
    });
  }

 private:
  const std::string path_;
  py::object file_;
  int64_t bytes_ = 0;
};

class PyFiles : public FileSource {
 public:
  explicit PyFiles(py::object open) : open_(std::move(open)) {}
  ~PyFiles() override {
    py::gil_scoped_acquire acquire;
    open_ = py::object();
  }

  Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const override {
    auto opened = std::make_unique<PyFile>(path);
    Status status = opened->Open(open_);
    if (status.ok()) *file = std::move(opened);
    return status;
  }

 private:
  py::object open_;
};

class OwnFiles : public FileSource {
 public:
  Status Open(const std::string& path, std::unique_ptr<ReadableFile>* file) const override {
    return LocalFiles().Open(path, file);
  }
};

}  // namespace

std::unique_ptr<FileSource> SourceOf(pybind11::object open) {
  if (open.is_none()) return std::make_unique<OwnFiles>();
  return std::make_unique<PyFiles>(std::move(open));
}

}  // namespace group_embedding
