#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "exchange/transport/nccl_api.h"

namespace group_embedding {
namespace {

Status Load(NcclApi* api) {
  const char* named = std::getenv("GROUP_EMBEDDING_NCCL");
  const std::string file = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("NCCL cannot be loaded (") + dlerror() + ")";
  std::string missing;
  auto bind = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  bind(&api->get_unique_id, "ncclGetUniqueId");
  bind(&api->comm_init_rank, "ncclCommInitRank");
  bind(&api->comm_destroy, "ncclCommDestroy");
  bind(&api->comm_abort, "ncclCommAbort");
  bind(&api->comm_get_async_error, "ncclCommGetAsyncError");
  bind(&api->group_start, "ncclGroupStart");
  bind(&api->group_end, "ncclGroupEnd");
  bind(&api->send, "ncclSend");
  bind(&api->recv, "ncclRecv");
  bind(&api->get_error_string, "ncclGetErrorString");
  bind(&api->get_last_error, "ncclGetLastError");
  if (missing.empty()) return {};
  dlclose(library);
  return "the NCCL in " + file + " has no " + missing;
}

}  // namespace

const NcclApi* LoadNccl(Status* error) {
  static std::mutex mutex;
  static NcclApi api;
  static bool loaded = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) {
    const Status failed = Load(&api);
    if (!failed.ok()) {
      *error = failed.message() +
               "; get it by `pip install nvidia-nccl-cu12` or `apt install libnccl2`, or name the "
               "file of another (version 2.13 or newer) in the environment variable "
               "GROUP_EMBEDDING_NCCL";
      return nullptr;
    }
    loaded = true;
  }
  return &api;
}

}  // namespace group_embedding
