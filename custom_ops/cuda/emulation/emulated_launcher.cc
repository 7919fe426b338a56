// The launcher for tests. It runs kernels.cu on the CPU. Device memory is host memory, and a launch
// returns after the kernel has finished.
#define TF_ADASUM_EMULATION
#include <mutex>

#include "../kernels.cu"
#include "../launcher.h"

namespace tf_adasum {
namespace {

constexpr int kUnknownKernel = -200;
constexpr int kBadShape = -201;

Device device = {/*multiprocessors=*/4, /*compute_capability=*/90, /*shared_bytes=*/48 << 10,
                 /*has_cooperative_launch=*/true};

}  // namespace

int GetDevice(Device* current) {
  *current = device;
  return 0;
}

int GetResidentBlocks(const char* kernel, const LaunchShape& shape, int* blocks) {
  if (emulation::Kernels().count(kernel) == 0) return kUnknownKernel;
  *blocks = shape.shared_bytes <= device.shared_bytes ? 1 : 0;
  return 0;
}

int Launch(const char* kernel, const LaunchShape& shape, void*, void** arguments) {
  static std::mutex one_launch_at_a_time;
  const std::lock_guard<std::mutex> lock(one_launch_at_a_time);
  const auto found = emulation::Kernels().find(kernel);
  if (found == emulation::Kernels().end()) return kUnknownKernel;
  if (shape.blocks < 1 || shape.shared_bytes > device.shared_bytes ||
      (shape.cooperative && shape.blocks > device.multiprocessors)) {
    return kBadShape;
  }
  const unsigned blocks = static_cast<unsigned>(shape.blocks);
  const unsigned at_once = shape.cooperative ? blocks : 1;
  emulation::grid_size.x = blocks;
  for (unsigned first = 0; first < blocks; first += at_once) {
    emulation::scheduler.Run(first, at_once, shape.threads, shape.shared_bytes,
                             [&] { found->second(arguments); });
  }
  return 0;
}

int ClearWord(void* word, void*) {
  memset(word, 0, 4);
  return 0;
}

int CopyToDevice(void* to, const void* from, int64_t size, void*) {
  memcpy(to, from, size);
  return 0;
}

const char* LauncherErrorString(int error) {
  switch (error) {
    case kUnknownKernel:
      return "emulation: no kernel has this name";
    case kBadShape:
      return "emulation: the launch has too many blocks or too much shared memory";
  }
  return "unknown error";
}

}  // namespace tf_adasum

// Sets the properties of the emulated device. Existing plans do not change.
extern "C" void adasum_emulation_set_device(int multiprocessors, int compute_capability,
                                            int64_t shared_bytes) {
  tf_adasum::device = {multiprocessors, compute_capability, shared_bytes, shared_bytes > 0};
}
