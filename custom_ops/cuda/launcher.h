// The interface between the host code and the launcher, which runs the kernels. The launcher uses
// the CUDA driver or, for tests, an emulation on the CPU. Neither side needs CUDA headers.
//
// All functions that return an int return 0 or an error code. LauncherErrorString explains the
// code.
#pragma once

#include <cstdint>

namespace tf_adasum {

struct Device {
  int multiprocessors;
  int compute_capability;       // 10 · major + minor, such as 90
  int64_t shared_bytes;         // largest shared memory of one block
  bool has_cooperative_launch;  // all blocks of a grid can run at once and wait for each other
};

struct LaunchShape {
  int64_t blocks;
  int threads;               // in a block
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  bool cooperative = false;
};

// Describes the device of the calling thread's current context. It also loads the kernels, so that
// later calls do not have to load them.
int GetDevice(Device* device);

// Returns how many blocks of this shape can run on one multiprocessor at once.
int GetResidentBlocks(const char* kernel, const LaunchShape& shape, int* blocks);

// Launches the kernel with this name. `arguments` are pointers to the kernel's arguments, in order.
int Launch(const char* kernel, const LaunchShape& shape, void* stream, void** arguments);

// Sets one 32-bit word in device memory to zero, in stream order.
int ClearWord(void* word, void* stream);

// Copies `size` bytes from host to device memory, in stream order.
int CopyToDevice(void* to, const void* from, int64_t size, void* stream);

const char* LauncherErrorString(int error);

}  // namespace tf_adasum
