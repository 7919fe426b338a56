// The intrinsics and PTX instructions that the kernels use. The emulation replaces this file with
// functions of the same names, so the code that it has to replace is collected here.
//
// This file needs no header of the CUDA toolkit, so NVRTC compiles it without an include path.
#pragma once

#define TF_ADASUM_REGISTER_KERNEL(NAME)
#define TF_ADASUM_SHARED_ARRAY(T, NAME, COUNT) __shared__ T NAME[COUNT]
#define TF_ADASUM_DYNAMIC_SHARED_ARRAY(T, NAME)                          \
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[]; \
  T* const NAME = reinterpret_cast<T*>(dynamic_shared_memory)

namespace tf_adasum {

constexpr unsigned kAllLanes = 0xffffffffu;

// ---- memory ------------------------------------------------------------------------------------

// For data that is not needed again. The caches evict it first.
__device__ __forceinline__ uint4 LoadOnce(const uint4* from) { return __ldcs(from); }
__device__ __forceinline__ void StoreOnce(uint4* to, uint4 value) { __stcs(to, value); }

// For data that is read again soon, or that another block has written. These loads bypass the L1
// cache, which is not coherent between multiprocessors.
__device__ __forceinline__ uint4 LoadThroughL2(const uint4* from) { return __ldcg(from); }
__device__ __forceinline__ double LoadThroughL2(const double* from) { return __ldcg(from); }

// Starts to copy `bytes` bytes from global to shared memory, and fills the rest of the 16 bytes
// with zeros. Both addresses must be multiples of 16.
__device__ __forceinline__ void StartCopyToShared(uint4* to, const uint4* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  const unsigned shared_address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
               "r"(bytes)
               : "memory");
#else
  const unsigned char* from_bytes = reinterpret_cast<const unsigned char*>(from);
  unsigned char* to_bytes = reinterpret_cast<unsigned char*>(to);
  if (bytes == 16) {
    *to = *from;
  } else {
    for (int k = 0; k < 16; ++k) to_bytes[k] = k < bytes ? from_bytes[k] : 0;
  }
#endif
}

// Waits for the copies that this thread has started. Other threads see the data after a
// __syncthreads().
__device__ __forceinline__ void FinishCopiesToShared() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A grid barrier: waits until all blocks of a cooperative launch have called this function.
// `*arrived` must be zero at the start of the kernel. After the barrier, everything that a block
// wrote before it is visible to the other blocks, through L2.
__device__ __forceinline__ void WaitForAllBlocks(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}

// ---- arithmetic --------------------------------------------------------------------------------

// Returns a·b, rounded. The compiler never fuses this product with an addition. With fused
// multiply-adds, a·b + c·d and c·d + a·b may differ in the last bit.
__device__ __forceinline__ float RoundedProduct(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double RoundedProduct(double a, double b) { return __dmul_rn(a, b); }

// ---- 16-bit numbers ----------------------------------------------------------------------------

__device__ __forceinline__ float HalfBitsToFloat(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short FloatToHalfBits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float BFloat16BitsToFloat(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ __forceinline__ unsigned short FloatToBFloat16Bits(float value) {
#if __CUDA_ARCH__ >= 800
  unsigned short rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
  return rounded;
#else
  const unsigned bits = __float_as_uint(value);
  constexpr unsigned kNaN = 0x7fffu;
  const unsigned nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<unsigned short>(value == value ? nearest_even : kNaN);
#endif
}

// ---- tensor cores ------------------------------------------------------------------------------

// d += A B for one warp. A is 16x16 (row-major), B is 16x8 (column-major), D is 16x8. Lane l holds
// these elements, with g = l / 4 and t = l % 4. Each register of A and B holds two elements, for
// k = 2t and k = 2t + 1:
//     a[0]: A[g][k]    a[1]: A[g + 8][k]    a[2]: A[g][k + 8]    a[3]: A[g + 8][k + 8]
//     b[0]: B[k][g]    b[1]: B[k + 8][g]
//     d[0..1]: D[g][2t..2t+1]               d[2..3]: D[g + 8][2t..2t+1]
#if __CUDA_ARCH__ >= 800
#define TF_ADASUM_MMA(TYPE)                                                 \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE       \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#else
#define TF_ADASUM_MMA(TYPE)  // not used on older devices
#endif
__device__ __forceinline__ void MmaHalf(float (&d)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
  TF_ADASUM_MMA("f16");
}
__device__ __forceinline__ void MmaBFloat16(float (&d)[4], const unsigned (&a)[4],
                                            const unsigned (&b)[2]) {
  TF_ADASUM_MMA("bf16");
}
#undef TF_ADASUM_MMA

}  // namespace tf_adasum
