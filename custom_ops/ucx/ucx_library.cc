#include "ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <type_traits>

#include "../old_glibc.h"

namespace tf_adasum {
namespace {

// Sets environment variables that UCX reads when it is opened, unless the user has set them.
void SetGlobalDefaults() {
  // UCX must not install signal handlers: Python, TensorFlow and the user's program have their own.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_DEBUG_SIGNO", "0", 0);  // the default is SIGHUP
  // UCX would patch malloc and mmap to detect when registered memory is freed. Only RDMA registers
  // memory; without the patches, it registers memory anew instead of keeping registrations.
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
  // UCX would log to stdout, which belongs to the program.
  setenv("UCX_LOG_FILE", "stderr", 0);
}

const UcxLibrary* Find(void* handle, const std::string& path, std::string* failure) {
  auto* library = new UcxLibrary;
  failure->clear();
  const auto find = [&](const char* name, auto* function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) *failure = path + " has no " + name + ": it is too old";
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  find("ucp_get_version_string", &library->get_version_string);
  find("ucp_init_version", &library->init_version);
  find("ucp_cleanup", &library->cleanup);
  find("ucp_config_read", &library->config_read);
  find("ucp_config_modify", &library->config_modify);
  find("ucp_config_release", &library->config_release);
  find("ucp_worker_create", &library->worker_create);
  find("ucp_worker_destroy", &library->worker_destroy);
  find("ucp_worker_get_efd", &library->worker_get_efd);
  find("ucp_worker_get_address", &library->worker_get_address);
  find("ucp_worker_release_address", &library->worker_release_address);
  find("ucp_worker_progress", &library->worker_progress);
  find("ucp_worker_arm", &library->worker_arm);
  find("ucp_ep_create", &library->ep_create);
  find("ucp_tag_send_nbx", &library->tag_send_nbx);
  find("ucp_tag_recv_nbx", &library->tag_recv_nbx);
  find("ucp_request_free", &library->request_free);
  find("ucs_status_string", &library->status_string);  // of libucs, on which libucp depends
  if (failure->empty()) return library;
  delete library;
  return nullptr;
}

}  // namespace

const UcxLibrary* OpenUcx(const std::string& path, std::string* failure) {
  static std::mutex mutex;
  static const UcxLibrary* opened = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (opened != nullptr) return opened;
  // Use a UCX that is already loaded, e.g. by mpi4py: parts of two versions do not work together.
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  void* handle = dlopen("libucp.so.0", kFlags | RTLD_NOLOAD);
  if (handle == nullptr) {
    SetGlobalDefaults();
    handle = dlopen(path.c_str(), kFlags);
  }
  if (handle == nullptr) {
    *failure = dlerror();
    return nullptr;
  }
  opened = Find(handle, path, failure);
  return opened;
}

}  // namespace tf_adasum
