// Implements launcher.h with the CUDA driver API. The driver library is opened at the first use, so
// this library can be loaded on machines without a driver. It does not need the CUDA runtime.
#include <dlfcn.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../old_glibc.h"
#include "errors.h"
#include "launcher.h"

namespace tf_adasum {
namespace {

constexpr char kDriverFile[] = "libcuda.so.1";
// The file with the device code (a fatbin, a cubin or PTX). It is in the folder of this library.
constexpr char kKernelFile[] = "_adasum_kernels.fatbin";

// ---- errors (the codes of the driver are positive) ---------------------------------------------

enum LauncherError {
  kNoDriver = -100,
  kNoContext = -101,
  kNoKernelFile = -102,
};

// Details that the error strings contain. They are set before the error code is returned.
std::string& DriverDetail() {
  static std::string detail;
  return detail;
}
std::string& KernelFileName() {
  static std::string name = kKernelFile;
  return name;
}

// ---- the driver --------------------------------------------------------------------------------

// The names and values are the same as in cuda.h.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = void*;
using CUmodule = void*;
using CUfunction = void*;
using CUstream = void*;

constexpr int CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
constexpr int CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
constexpr int CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95;
constexpr int CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;
constexpr int CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;

// A kernel may use this much dynamic shared memory by default. More needs a function attribute.
constexpr int64_t kSharedBytesByDefault = 48 * 1024;

struct Driver {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);
  CUresult (*cuDeviceGetAttribute)(int* value, int attribute, CUdevice device);
  CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
  CUresult (*cuFuncSetAttribute)(CUfunction function, int attribute, int value);
  CUresult (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, CUfunction function,
                                                          int threads, size_t shared_bytes);
  CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** arguments,
                             void** extra);
  CUresult (*cuLaunchCooperativeKernel)(CUfunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes, CUstream stream,
                                        void** arguments);
  CUresult (*cuMemsetD32Async)(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
  CUresult (*cuMemcpyHtoDAsync_v2)(CUdeviceptr to, const void* from, size_t size, CUstream stream);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);
};

// Opens the driver library and looks up its functions. The names include the suffixes that cuda.h
// adds by macros, such as _v2.
int OpenDriver(Driver* driver) {
  void* library = dlopen(kDriverFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    DriverDetail() = dlerror();
    return kNoDriver;
  }
#define TF_ADASUM_LOOK_UP(NAME)                                                   \
  driver->NAME = reinterpret_cast<decltype(driver->NAME)>(dlsym(library, #NAME)); \
  if (driver->NAME == nullptr) {                                                  \
    DriverDetail() = "it has no function " #NAME;                                 \
    return kNoDriver;                                                             \
  }
  TF_ADASUM_LOOK_UP(cuInit)
  TF_ADASUM_LOOK_UP(cuCtxGetCurrent)
  TF_ADASUM_LOOK_UP(cuCtxGetDevice)
  TF_ADASUM_LOOK_UP(cuDeviceGetAttribute)
  TF_ADASUM_LOOK_UP(cuModuleLoadData)
  TF_ADASUM_LOOK_UP(cuModuleGetFunction)
  TF_ADASUM_LOOK_UP(cuFuncSetAttribute)
  TF_ADASUM_LOOK_UP(cuOccupancyMaxActiveBlocksPerMultiprocessor)
  TF_ADASUM_LOOK_UP(cuLaunchKernel)
  TF_ADASUM_LOOK_UP(cuLaunchCooperativeKernel)
  TF_ADASUM_LOOK_UP(cuMemsetD32Async)
  TF_ADASUM_LOOK_UP(cuMemcpyHtoDAsync_v2)
  TF_ADASUM_LOOK_UP(cuGetErrorString)
#undef TF_ADASUM_LOOK_UP
  return driver->cuInit(0);
}

int GetDriver(const Driver** driver) {
  static Driver opened = {};
  static const int error = OpenDriver(&opened);
  *driver = &opened;
  return error;
}

// ---- kernels -----------------------------------------------------------------------------------

int ReadKernelFile(std::vector<char>* image) {
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(&ReadKernelFile), &library) != 0) {
    const std::string path = library.dli_fname;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) KernelFileName() = path.substr(0, slash + 1) + kKernelFile;
  }
  std::ifstream file(KernelFileName(), std::ios::binary);
  if (!file) return kNoKernelFile;
  image->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  image->push_back('\0');  // ends the text if the file is PTX
  return 0;
}

// The kernels of one context. They are never unloaded, because contexts live as long as the
// process: TensorFlow, PyTorch and CuPy use the primary contexts.
struct LoadedKernels {
  CUmodule module = nullptr;
  std::mutex mutex;  // protects `functions`
  std::map<std::string, CUfunction> functions;
};

// Returns the driver and the kernels of the current context. The first call in a context loads the
// kernels.
int LoadKernels(const Driver** driver, LoadedKernels** kernels) {
  static std::mutex mutex;
  static std::map<CUcontext, LoadedKernels> kernels_of;
  TF_ADASUM_RETURN_IF_ERROR(GetDriver(driver));
  CUcontext context = nullptr;
  TF_ADASUM_RETURN_IF_ERROR((*driver)->cuCtxGetCurrent(&context));
  if (context == nullptr) return kNoContext;
  const std::lock_guard<std::mutex> lock(mutex);
  *kernels = &kernels_of[context];
  if ((*kernels)->module != nullptr) return 0;
  std::vector<char> image;
  TF_ADASUM_RETURN_IF_ERROR(ReadKernelFile(&image));
  return (*driver)->cuModuleLoadData(&(*kernels)->module, image.data());
}

int FindKernel(const char* name, const Driver** driver, CUfunction* function) {
  LoadedKernels* kernels;
  TF_ADASUM_RETURN_IF_ERROR(LoadKernels(driver, &kernels));
  const std::lock_guard<std::mutex> lock(kernels->mutex);
  const auto found = kernels->functions.find(name);
  if (found != kernels->functions.end()) {
    *function = found->second;
    return 0;
  }
  TF_ADASUM_RETURN_IF_ERROR((*driver)->cuModuleGetFunction(function, kernels->module, name));
  kernels->functions[name] = *function;
  return 0;
}

int AllowSharedMemory(const Driver& driver, CUfunction function, int64_t bytes) {
  if (bytes <= kSharedBytesByDefault) return 0;
  return driver.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   static_cast<int>(bytes));
}

}  // namespace

int GetDevice(Device* device) {
  const Driver* driver;
  LoadedKernels* kernels;
  TF_ADASUM_RETURN_IF_ERROR(LoadKernels(&driver, &kernels));
  CUdevice handle;
  TF_ADASUM_RETURN_IF_ERROR(driver->cuCtxGetDevice(&handle));
  int major, minor, shared_bytes, cooperative;
  const auto get = [&](int* value, int attribute) {
    return driver->cuDeviceGetAttribute(value, attribute, handle);
  };
  TF_ADASUM_RETURN_IF_ERROR(
      get(&device->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  TF_ADASUM_RETURN_IF_ERROR(get(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  TF_ADASUM_RETURN_IF_ERROR(get(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  TF_ADASUM_RETURN_IF_ERROR(
      get(&shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  TF_ADASUM_RETURN_IF_ERROR(get(&cooperative, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH));
  device->compute_capability = 10 * major + minor;
  device->shared_bytes = shared_bytes;
  device->has_cooperative_launch = cooperative != 0;
  return 0;
}

int GetResidentBlocks(const char* kernel, const LaunchShape& shape, int* blocks) {
  const Driver* driver;
  CUfunction function;
  TF_ADASUM_RETURN_IF_ERROR(FindKernel(kernel, &driver, &function));
  TF_ADASUM_RETURN_IF_ERROR(AllowSharedMemory(*driver, function, shape.shared_bytes));
  return driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, shape.threads,
                                                             shape.shared_bytes);
}

int Launch(const char* kernel, const LaunchShape& shape, void* stream, void** arguments) {
  const Driver* driver;
  CUfunction function;
  TF_ADASUM_RETURN_IF_ERROR(FindKernel(kernel, &driver, &function));
  TF_ADASUM_RETURN_IF_ERROR(AllowSharedMemory(*driver, function, shape.shared_bytes));
  const unsigned blocks = static_cast<unsigned>(shape.blocks);
  const unsigned shared_bytes = static_cast<unsigned>(shape.shared_bytes);
  if (shape.cooperative) {
    return driver->cuLaunchCooperativeKernel(function, blocks, 1, 1, shape.threads, 1, 1,
                                             shared_bytes, stream, arguments);
  }
  return driver->cuLaunchKernel(function, blocks, 1, 1, shape.threads, 1, 1, shared_bytes, stream,
                                arguments, nullptr);
}

int ClearWord(void* word, void* stream) {
  const Driver* driver;
  TF_ADASUM_RETURN_IF_ERROR(GetDriver(&driver));
  return driver->cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(word), 0, 1, stream);
}

int CopyToDevice(void* to, const void* from, int64_t size, void* stream) {
  const Driver* driver;
  TF_ADASUM_RETURN_IF_ERROR(GetDriver(&driver));
  return driver->cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(to), from, size, stream);
}

const char* LauncherErrorString(int error) {
  static thread_local std::string text;
  switch (error) {
    case kNoDriver:
      text = std::string("the CUDA driver ") + kDriverFile +
             " cannot be used (is there an NVIDIA GPU with a driver?): " + DriverDetail();
      return text.c_str();
    case kNoContext:
      return "the calling thread has no current CUDA context; let the framework choose a device "
             "first";
    case kNoKernelFile:
      text = "the file with the compiled kernels cannot be read: " + KernelFileName();
      return text.c_str();
  }
  const Driver* driver;
  const char* of_driver = nullptr;
  if (GetDriver(&driver) != kNoDriver && driver->cuGetErrorString(error, &of_driver) == 0) {
    text = "CUDA driver error " + std::to_string(error) + ": " + of_driver;
  } else {
    text = "unknown error " + std::to_string(error);
  }
  return text.c_str();
}

}  // namespace tf_adasum
