#include "serving/c_api/find_tensorflow.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdlib>

namespace ge_serving {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash);
}

// Stores the folder of TensorFlow's library, if `info` is that.
int Look(dl_phdr_info* info, size_t, void* folder) {
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string name = std::string("/") + kFrameworkLibrary;
  if (path.size() < name.size() ||
      path.compare(path.size() - name.size(), name.size(), name) != 0) {
    return 0;
  }
  *static_cast<std::string*>(folder) = FolderOf(path);
  return 1;
}

}  // namespace

bool IsFile(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

std::string OwnFolder() {
  Dl_info info;
  const bool found = dladdr(reinterpret_cast<void*>(&OwnFolder), &info) != 0;
  return found && info.dli_fname != nullptr ? FolderOf(info.dli_fname) : ".";
}

std::string FindTensorFlow(const std::string& stated, std::string* folder) {
  std::string loaded;
  dl_iterate_phdr(Look, &loaded);
  const char* named = std::getenv("GROUP_EMBEDDING_TENSORFLOW");
  if (!stated.empty()) {
    *folder = stated;
  } else if (!loaded.empty()) {
    *folder = loaded;
  } else if (named != nullptr && *named != '\0') {
    *folder = named;
  } else {
    *folder = OwnFolder() + "/../tensorflow";
  }
  if (IsFile(*folder + "/" + kTensorFlowLibrary)) return "";
  return "expected TensorFlow's Python package, with " + std::string(kTensorFlowLibrary) +
         ", at '" + *folder +
         "': name its folder in the option \"tensorflow\" or in "
         "GROUP_EMBEDDING_TENSORFLOW";
}

}  // namespace ge_serving
