// Defines all kernels. Their names are OPERATION_[VARIANT_]TYPE_ACCESS, such as
// pairwise_reduce_float32_vector.
//
// ACCESS is "vector" if all addresses are multiples of 16 bytes, otherwise "scalar". The host
// launches kernels by these names (adasum_cuda.cc).
#ifdef TF_ADASUM_EMULATION
#include "emulation/cuda_emulation.h"
#else
#include "intrinsics.cuh"
#endif
#include "gram_fma.cuh"
#include "gram_mma.cuh"
#include "pairwise_single_pass.cuh"
#include "pairwise_two_passes.cuh"
#include "segment_gram.cuh"
#include "weighted_sum.cuh"

// For more than 4 rows of a 16-bit type there are two kinds of kernels: kernels with tensor cores,
// and FMA kernels for older devices. Each device uses one kind; a kernel of the other kind traps.
// Such a kernel is launched if a driver translates code for an old device (PTX) for a new device.
// Without the trap, its results would stay unwritten, and no error would be reported.
#if defined(TF_ADASUM_EMULATION)
#define TF_ADASUM_WITH_MMA(...) __VA_ARGS__
#define TF_ADASUM_WITHOUT_MMA(...) __VA_ARGS__
#elif __CUDA_ARCH__ >= 800
#define TF_ADASUM_WITH_MMA(...) __VA_ARGS__
#define TF_ADASUM_WITHOUT_MMA(...) __trap()
#else
#define TF_ADASUM_WITH_MMA(...) __trap()
#define TF_ADASUM_WITHOUT_MMA(...) __VA_ARGS__
#endif
#define TF_ADASUM_ALWAYS(...) __VA_ARGS__

#define TF_ADASUM_KERNEL(NAME, THREADS, BLOCKS, PARAMETERS, ...)                                 \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME PARAMETERS { __VA_ARGS__; } \
  TF_ADASUM_REGISTER_KERNEL(NAME)

using namespace tf_adasum;  // NOLINT: the kernels below are C functions

// ---- pairwise combination ----------------------------------------------------------------------

#define TF_ADASUM_PAIRWISE(NAME, T, WIDTH)                                                \
  TF_ADASUM_KERNEL(pairwise_reduce_##NAME, kBlockThreads, kStreamingBlocks,               \
                   (const T* a_N, const T* b_N, PartitionMap map, PairResults results),   \
                   PairwiseReduce<T, WIDTH>(a_N, b_N, map, results))                      \
  TF_ADASUM_KERNEL(                                                                       \
      pairwise_combine_##NAME, kBlockThreads, kStreamingBlocks,                           \
      (const T* a_N, const T* b_N, T* combined_N, PartitionMap map, PairResults results), \
      PairwiseCombine<T, WIDTH>(a_N, b_N, combined_N, map, results))

#define TF_ADASUM_PAIRWISE_SINGLE_PASS(NAME, T)                                      \
  TF_ADASUM_KERNEL(                                                                  \
      pairwise_single_pass_##NAME, kSinglePassThreads, 1,                            \
      (const T* a_N, const T* b_N, T* combined_N, int64 element_count, int capacity, \
       PartitionMap map, PairResults results, unsigned* arrived),                    \
      PairwiseSinglePass(a_N, b_N, combined_N, element_count, capacity, map, results, arrived))

// ---- Gram matrix -------------------------------------------------------------------------------

#define TF_ADASUM_GRAM(NAME, BLOCKS, T, BODY, ...)                                                \
  TF_ADASUM_KERNEL(                                                                               \
      segment_gram_##NAME, kBlockThreads, BLOCKS,                                                 \
      (const T* rows_RN, int64 row_stride, int row_count, PartitionMap map, GramResults results), \
      BODY(SegmentGram<__VA_ARGS__>(rows_RN, row_stride, row_count, map, results)))

#define TF_ADASUM_GRAM_FMA(NAME, BLOCKS, T, WIDTH, ROWS, KIND, BODY) \
  TF_ADASUM_GRAM(NAME, BLOCKS, T, BODY, FmaTile<T, WIDTH, ROWS, TileKind::KIND>)

#define TF_ADASUM_GRAM_FMA_TILES(NAME, T, WIDTH, BODY)                                   \
  TF_ADASUM_GRAM_FMA(fma2_##NAME, kFma2Blocks, T, WIDTH, 2, kDiagonal, TF_ADASUM_ALWAYS) \
  TF_ADASUM_GRAM_FMA(fma4_##NAME, kFma4Blocks, T, WIDTH, 4, kDiagonal, TF_ADASUM_ALWAYS) \
  TF_ADASUM_GRAM_FMA(fma8_##NAME, kFma8Blocks, T, WIDTH, 8, kDiagonal, BODY)             \
  TF_ADASUM_GRAM_FMA(fma8_below_##NAME, kFma8Blocks, T, WIDTH, 8, kBelow, BODY)

#define TF_ADASUM_GRAM_MMA(NAME, BLOCKS, T, ALIGNED, ROWS, KIND) \
  TF_ADASUM_GRAM(NAME, BLOCKS, T, TF_ADASUM_WITH_MMA, MmaTile<T, ALIGNED, ROWS, TileKind::KIND>)

#define TF_ADASUM_GRAM_MMA_TILES(NAME, T, ALIGNED)                          \
  TF_ADASUM_GRAM_MMA(mma8_##NAME, kMma8Blocks, T, ALIGNED, 8, kDiagonal)    \
  TF_ADASUM_GRAM_MMA(mma16_##NAME, kMma16Blocks, T, ALIGNED, 16, kDiagonal) \
  TF_ADASUM_GRAM_MMA(mma16_below_##NAME, kMma16BelowBlocks, T, ALIGNED, 16, kBelow)

// ---- weighted sum ------------------------------------------------------------------------------

#define TF_ADASUM_WEIGHTED_SUM(NAME, T, WIDTH)                                                   \
  TF_ADASUM_KERNEL(segment_weighted_sum_##NAME, kBlockThreads, kStreamingBlocks,                 \
                   (const T* rows_RN, int64 row_stride, int row_count,                           \
                    const double* coefficients_SR, T* combined_N, PartitionMap map),             \
                   SegmentWeightedSum<T, WIDTH>(rows_RN, row_stride, row_count, coefficients_SR, \
                                                combined_N, map))

// ---- all types and accesses --------------------------------------------------------------------

#define TF_ADASUM_ALL(TYPE, T, FMA8_BODY)                                \
  TF_ADASUM_PAIRWISE(TYPE##_vector, T, kVectorWidth<T>)                  \
  TF_ADASUM_PAIRWISE(TYPE##_scalar, T, 1)                                \
  TF_ADASUM_PAIRWISE_SINGLE_PASS(TYPE##_vector, T)                       \
  TF_ADASUM_GRAM_FMA_TILES(TYPE##_vector, T, kVectorWidth<T>, FMA8_BODY) \
  TF_ADASUM_GRAM_FMA_TILES(TYPE##_scalar, T, 1, FMA8_BODY)               \
  TF_ADASUM_WEIGHTED_SUM(TYPE##_vector, T, kVectorWidth<T>)              \
  TF_ADASUM_WEIGHTED_SUM(TYPE##_scalar, T, 1)

TF_ADASUM_ALL(float32, float, TF_ADASUM_ALWAYS)
TF_ADASUM_ALL(float64, double, TF_ADASUM_ALWAYS)
TF_ADASUM_ALL(float16, Half, TF_ADASUM_WITHOUT_MMA)
TF_ADASUM_ALL(bfloat16, BFloat16, TF_ADASUM_WITHOUT_MMA)

TF_ADASUM_GRAM_FMA(fma16_float32_vector, kFma16Blocks, float, kVectorWidth<float>, 16, kDiagonal,
                   TF_ADASUM_ALWAYS)
TF_ADASUM_GRAM_FMA(fma16_float32_scalar, kFma16Blocks, float, 1, 16, kDiagonal, TF_ADASUM_ALWAYS)

TF_ADASUM_GRAM_MMA_TILES(float16_vector, Half, true)
TF_ADASUM_GRAM_MMA_TILES(float16_scalar, Half, false)
TF_ADASUM_GRAM_MMA_TILES(bfloat16_vector, BFloat16, true)
TF_ADASUM_GRAM_MMA_TILES(bfloat16_scalar, BFloat16, false)

TF_ADASUM_KERNEL(segment_gram_finish, kBlockThreads, 1,
                 (int row_count, PartitionMap map, GramResults results),
                 SegmentGramFinish(row_count, map, results))
