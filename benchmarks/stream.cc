// Yardsticks for kernels_cpu.py: what the memory gives to loops that do almost nothing.
//
// STREAM's triad, and a read of two vectors. Built by kernels_cpu.py with -O3 -march=native
// -fopenmp; OMP_NUM_THREADS sets the threads.
#include <cstdint>

extern "C" {

// out[k] = a[k] + scale * b[k]; `out` may be `a`.
void triad(const float* a, const float* b, float scale, int64_t count, float* out) {
#pragma omp parallel for simd schedule(static)
  for (int64_t k = 0; k < count; ++k) out[k] = a[k] + scale * b[k];
}

// Reads both, with the least arithmetic that the compiler cannot remove.
float read_two(const float* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) sum += a[k] * b[k];
  return sum;
}
}
