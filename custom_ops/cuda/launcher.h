// The seam between the host code and whatever runs the kernels: the CUDA driver, or an emulation on
// the CPU for tests. No CUDA headers on either side.
//
// All functions that return an int return 0 or an error that LauncherErrorString explains.
#pragma once

#include <cstdint>

namespace tf_adasum {

struct Device {
  int multiprocessors;
  int compute_capability;       // 10 · major + minor, such as 90
  int64_t shared_bytes;         // the most shared memory that one block may have
  bool has_cooperative_launch;  // all blocks of a grid can run at once and wait for each other
};

struct LaunchShape {
  int64_t blocks;
  int threads;               // in a block
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  bool cooperative = false;
};

// Of the calling thread's current context. Loads the kernels, so that no later call has to.
int GetDevice(Device* device);

// Blocks of this shape that fit on one multiprocessor at once.
int GetResidentBlocks(const char* kernel, const LaunchShape& shape, int* blocks);

// Runs a kernel by name. `arguments` are pointers to its arguments, in their order.
int Launch(const char* kernel, const LaunchShape& shape, void* stream, void** arguments);

// Sets one 32-bit word in device memory to zero, in stream order.
int ClearWord(void* word, void* stream);

// Copies `size` bytes from host to device memory, in stream order.
int CopyToDevice(void* to, const void* from, int64_t size, void* stream);

const char* LauncherErrorString(int error);

}  // namespace tf_adasum
