// Compiles the same source for several instruction sets.
//
// A function marked TF_ADASUM_CLONES is compiled once per instruction set, and the dynamic linker
// selects the best version that the processor supports. The bits of a result must not depend on
// this choice. Therefore the build disables contraction, which computes a·b + c with a single
// rounding (-ffp-contract=off), and every sum has a fixed order of additions. Only plain functions
// can be cloned, not templates.
//
// If a and b were converted from floats, a·b is exact in double, and contraction changes only the
// speed. Functions with such products are between TF_ADASUM_EXACT_PRODUCTS_BEGIN and _END, which
// enable contraction.
//
// Compilers do not generate the instructions that convert between half precision and float (F16C)
// from portable code. Two functions below use them. They are several times faster than the code in
// element_types.h and give the same bits, except inside a NaN.
#pragma once

#include <cstdint>

#include "element_types.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
// Levels of the x86-64 ABI: v3 has AVX2, FMA and F16C; v4 adds AVX-512.
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

// Call these functions only if HasHalfInstructions() returns true.
void ConvertHalvesToFloats(const Half* in, int64_t count, float* out);
void ConvertFloatsToHalves(const float* in, int64_t count, Half* out);  // to nearest, ties to even

}  // namespace tf_adasum
