#include "cuda_library.h"

#include <dlfcn.h>

#include <string>

#include "../old_glibc.h"
#include "absl/strings/str_cat.h"

namespace tf_adasum {
namespace {

constexpr char kFileName[] = "_adasum_cuda.so";

struct Opened {
  CudaLibrary library = {};
  absl::Status status;
};

// Returns the folder of the shared library that contains this code, with a slash at the end.
std::string OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) == 0) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

Opened Open() {
  Opened opened;
  const std::string path = OwnFolder() + kFileName;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    opened.status = absl::FailedPreconditionError(
        absl::StrCat("tf_adasum's CUDA kernels cannot be loaded: ", dlerror(),
                     ". Run `python -m tf_adasum.doctor` for details."));
    return opened;
  }
  const auto find = [&](const char* name, auto* function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) {
      opened.status = absl::FailedPreconditionError(
          absl::StrCat(path, " has no ", name, ": it belongs to another version of tf_adasum."));
    }
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  CudaLibrary& library = opened.library;
  find("adasum_plan_create", &library.plan_create);
  find("adasum_plan_destroy", &library.plan_destroy);
  find("adasum_plan_map_size", &library.plan_map_size);
  find("adasum_plan_copy_map", &library.plan_copy_map);
  find("adasum_plan_workspace_size", &library.plan_workspace_size);
  find("adasum_pairwise_combine", &library.pairwise_combine);
  find("adasum_segment_gram", &library.segment_gram);
  find("adasum_segment_weighted_sum", &library.segment_weighted_sum);
  find("adasum_error_string", &library.error_string);
  return opened;
}

}  // namespace

absl::Status CudaLibrary::StatusOf(int error) const {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("tf_adasum's CUDA kernels: ", error_string(error)));
}

absl::Status GetCudaLibrary(const CudaLibrary** library) {
  static const Opened* const opened = new Opened(Open());
  *library = &opened->library;
  return opened->status;
}

}  // namespace tf_adasum
