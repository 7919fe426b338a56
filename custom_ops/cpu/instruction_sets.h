// One source, several instruction sets.
//
// A function marked TF_ADASUM_CLONES is compiled once per instruction set, and the dynamic linker
// picks the best one that the processor has. The bits of a result must not depend on that choice,
// so the build switches off the contraction of a·b + c into one rounding (-ffp-contract=off), and
// every sum fixes its own order of additions. Only plain functions can be cloned, not templates.
//
// Where a·b is exact in double, because a and b come from floats, contraction changes nothing but
// the speed. Such functions stand between TF_ADASUM_EXACT_PRODUCTS_BEGIN and _END.
//
// Compilers do not find the instructions that convert between half precision and float (F16C) by
// themselves. Two functions below use them: several times faster than element_types.h, with the
// same bits (but for those inside a NaN).
#pragma once

#include <cstdint>

#include "element_types.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
// The levels of the x86-64 ABI: v3 has AVX2, FMA and F16C, v4 AVX-512.
#define TF_ADASUM_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TF_ADASUM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#define TF_ADASUM_EXACT_PRODUCTS_BEGIN \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=fast\")")
#define TF_ADASUM_EXACT_PRODUCTS_END _Pragma("GCC pop_options")
#else
#define TF_ADASUM_CLONES
#define TF_ADASUM_EXACT_PRODUCTS_BEGIN
#define TF_ADASUM_EXACT_PRODUCTS_END
#endif

namespace tf_adasum {

bool HasHalfInstructions();

// To be called only if HasHalfInstructions().
void ConvertHalvesToFloats(const Half* in, int64_t count, float* out);
void ConvertFloatsToHalves(const float* in, int64_t count, Half* out);  // to nearest, ties to even

}  // namespace tf_adasum
