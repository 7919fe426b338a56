// One source, several instruction sets.
//
// A function marked TF_ADASUM_CLONES is compiled once per instruction set, and the dynamic linker
// picks the best one that the processor has. The bits of a result must not depend on that choice,
// so the build switches off the contraction of a·b + c into one rounding (-ffp-contract=off), and
// every sum fixes its own order of additions. Only plain functions can be cloned, not templates.
#ifndef TF_ADASUM_KERNELS_CLONES_H_
#define TF_ADASUM_KERNELS_CLONES_H_

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define TF_ADASUM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TF_ADASUM_CLONES
#endif

#endif  // TF_ADASUM_KERNELS_CLONES_H_
