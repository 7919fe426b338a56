#include "instruction_sets.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TF_ADASUM_F16C __attribute__((target("avx,f16c")))

namespace tf_adasum {
namespace {

constexpr int64_t kLanes = 8;

}  // namespace

bool HasHalfInstructions() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

TF_ADASUM_F16C
void ConvertHalvesToFloats(const Half* in, int64_t count, float* out) {
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k));
    _mm256_storeu_ps(out + k, _mm256_cvtph_ps(halves));
  }
  for (; k < count; ++k) out[k] = _cvtsh_ss(in[k].bits);
}

TF_ADASUM_F16C
void ConvertFloatsToHalves(const float* in, int64_t count, Half* out) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + k), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k), halves);
  }
  for (; k < count; ++k) out[k].bits = _cvtss_sh(in[k], kNearestEven);
}

}  // namespace tf_adasum

#else

namespace tf_adasum {

bool HasHalfInstructions() { return false; }
void ConvertHalvesToFloats(const Half*, int64_t, float*) {}
void ConvertFloatsToHalves(const float*, int64_t, Half*) {}

}  // namespace tf_adasum

#endif
