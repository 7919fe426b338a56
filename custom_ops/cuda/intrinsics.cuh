// What the kernels use of the hardware beyond plain C++. The emulation replaces this file by
// functions of the same names, so everything that it has to know about is here.
//
// No header of the CUDA toolkit is needed: NVRTC compiles this without an include path.
#pragma once

#define TF_ADASUM_REGISTER_KERNEL(NAME)
#define TF_ADASUM_SHARED_ARRAY(T, NAME, COUNT) __shared__ T NAME[COUNT]
#define TF_ADASUM_DYNAMIC_SHARED_ARRAY(T, NAME)                          \
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[]; \
  T* const NAME = reinterpret_cast<T*>(dynamic_shared_memory)

namespace tf_adasum {

constexpr unsigned kAllLanes = 0xffffffffu;

// ---- memory ------------------------------------------------------------------------------------

// For data that is not needed again: the first to leave the caches.
__device__ __forceinline__ uint4 LoadOnce(const uint4* from) { return __ldcs(from); }
__device__ __forceinline__ void StoreOnce(uint4* to, uint4 value) { __stcs(to, value); }

// For data that is read again soon, or that another block has written: past the first-level cache,
// which is not coherent between multiprocessors.
__device__ __forceinline__ uint4 LoadThroughL2(const uint4* from) { return __ldcg(from); }
__device__ __forceinline__ double LoadThroughL2(const double* from) { return __ldcg(from); }

// Starts to copy the first `bytes` of 16 from global to shared memory, and zeros for the others.
// Both addresses are multiples of 16.
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

// Waits for the copies that this thread has started. Others see them after a __syncthreads().
__device__ __forceinline__ void FinishCopiesToShared() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Waits until all blocks of a cooperative launch have come here. `arrived` was zero at the start of
// the kernel. What a block wrote before is visible to the others afterwards, through L2.
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

// a·b, rounded. The compiler never fuses it with an addition: with a fused multiply-add, a·b + c·d
// and c·d + a·b may differ in the last bit.
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

// d += A B for one warp, with A of 16x16 (row by row), B of 16x8 (column by column) and D of 16x8.
// Lane l holds, with g = l / 4 and t = l % 4, two columns k = 2t, 2t + 1 in each register:
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
#define TF_ADASUM_MMA(TYPE)  // never launched there
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
