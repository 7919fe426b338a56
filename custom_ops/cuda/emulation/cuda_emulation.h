// Replaces the CUDA language and intrinsics.cuh when a C++ compiler compiles kernels.cu. It defines
// the same names, and fibers execute the threads. It tests logic, not speed, and does not emulate
// caches that are not coherent.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "fibers.h"

// ---- language ----------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx ::tf_adasum::emulation::thread_index
#define blockIdx ::tf_adasum::emulation::block_index
#define gridDim ::tf_adasum::emulation::grid_size

struct alignas(16) [[gnu::may_alias]] uint4 {
  unsigned x, y, z, w;
};

inline void __syncthreads() {
  auto& scheduler = tf_adasum::emulation::scheduler;
  scheduler.WaitAt(&scheduler.running->block->barrier);
}

inline void __syncwarp() {
  auto& scheduler = tf_adasum::emulation::scheduler;
  scheduler.WaitAt(&scheduler.running->warp().barrier);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
  auto* thread = tf_adasum::emulation::scheduler.running;
  auto& exchanged = thread->warp().exchanged;
  memcpy(&exchanged[thread->lane()], &value, sizeof(value));
  __syncwarp();
  T received;
  memcpy(&received, &exchanged[thread->lane() ^ distance], sizeof(received));
  __syncwarp();
  return received;
}

// ---- kernels by name ---------------------------------------------------------------------------

namespace tf_adasum::emulation {

using KernelCall = std::function<void(void** arguments)>;

inline std::map<std::string, KernelCall>& Kernels() {
  static std::map<std::string, KernelCall> kernels;
  return kernels;
}

template <typename... Parameters, size_t... kIndices>
void CallKernel(void (*kernel)(Parameters...), void** arguments, std::index_sequence<kIndices...>) {
  kernel(*static_cast<std::decay_t<Parameters>*>(arguments[kIndices])...);
}

template <typename... Parameters>
bool RegisterKernel(const char* name, void (*kernel)(Parameters...)) {
  Kernels()[name] = [kernel](void** arguments) {
    CallKernel(kernel, arguments, std::index_sequence_for<Parameters...>());
  };
  return true;
}

}  // namespace tf_adasum::emulation

#define TF_ADASUM_REGISTER_KERNEL(NAME) \
  static const bool NAME##_is_registered = tf_adasum::emulation::RegisterKernel(#NAME, &NAME);

// ---- intrinsics.cuh ----------------------------------------------------------------------------

#define TF_ADASUM_SHARED_ARRAY(T, NAME, COUNT) \
  static const char NAME##_declaration = 0;    \
  T* const NAME =                              \
      static_cast<T*>(tf_adasum::emulation::SharedArray(&NAME##_declaration, sizeof(T) * (COUNT)))
#define TF_ADASUM_DYNAMIC_SHARED_ARRAY(T, NAME) \
  T* const NAME =                               \
      reinterpret_cast<T*>(tf_adasum::emulation::scheduler.running->block->dynamic_shared.get())

namespace tf_adasum {

constexpr unsigned kAllLanes = 0xffffffffu;

inline uint4 LoadOnce(const uint4* from) { return *from; }
inline void StoreOnce(uint4* to, uint4 value) { *to = value; }
inline uint4 LoadThroughL2(const uint4* from) { return *from; }
inline double LoadThroughL2(const double* from) { return *from; }

// The copy happens as late as the hardware may do it: when the thread waits for it.
inline void StartCopyToShared(uint4* to, const uint4* from, int bytes) {
  emulation::scheduler.running->copies.push_back({to, from, bytes});
}
inline void FinishCopiesToShared() {
  for (const emulation::Copy& copy : emulation::scheduler.running->copies) {
    memset(copy.to, 0, sizeof(uint4));
    memcpy(copy.to, copy.from, copy.bytes);
  }
  emulation::scheduler.running->copies.clear();
}

inline void WaitForAllBlocks(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    ++*arrived;
    emulation::scheduler.NoteProgress();
    while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) emulation::scheduler.Yield();
  }
  __syncthreads();
}

inline float RoundedProduct(float a, float b) { return a * b; }
inline double RoundedProduct(double a, double b) { return a * b; }

inline float HalfBitsToFloat(unsigned short bits) {
  _Float16 value;
  memcpy(&value, &bits, sizeof(value));
  return static_cast<float>(value);
}
inline unsigned short FloatToHalfBits(float value) {
  const _Float16 rounded = static_cast<_Float16>(value);
  unsigned short bits;
  memcpy(&bits, &rounded, sizeof(bits));
  return bits;
}
inline float BFloat16BitsToFloat(unsigned short bits) {
  const unsigned widened = static_cast<unsigned>(bits) << 16;
  float value;
  memcpy(&value, &widened, sizeof(value));
  return value;
}
inline unsigned short FloatToBFloat16Bits(float value) {
  if (std::isnan(value)) return 0x7fff;
  unsigned bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// d += A B, in the layout that intrinsics.cuh describes.
template <typename ToFloat>
void EmulateMma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], ToFloat to_float) {
  auto* thread = emulation::scheduler.running;
  auto& fragments = thread->warp().fragments;
  memcpy(fragments[thread->lane()], a, sizeof(a));
  memcpy(fragments[thread->lane()] + 4, b, sizeof(b));
  __syncwarp();
  const auto element = [&](int lane, int index, int k) {
    return to_float(static_cast<unsigned short>(fragments[lane][index] >> (k % 2 * 16)));
  };
  const int group = thread->lane() / 4;
  const int column = thread->lane() % 4 * 2;
  for (int entry = 0; entry < 4; ++entry) {
    const int row = group + entry / 2 * 8;
    const int n = column + entry % 2;
    for (int k = 0; k < 16; ++k) {
      const float of_a = element(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k);
      const float of_b = element(n * 4 + k % 8 / 2, 4 + k / 8, k);
      d[entry] += of_a * of_b;
    }
  }
  __syncwarp();
}
inline void MmaHalf(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  EmulateMma(d, a, b, HalfBitsToFloat);
}
inline void MmaBFloat16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  EmulateMma(d, a, b, BFloat16BitsToFloat);
}

}  // namespace tf_adasum
