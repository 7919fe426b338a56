#include "block.h"

#include "clones.h"

namespace tf_adasum {

TF_ADASUM_CLONES
double Dot(const double* x, const double* y, int64_t padded_count) {
  double lanes[kLanes] = {};
  for (int64_t k = 0; k < padded_count; k += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[k + lane] * y[k + lane];
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

#define TF_ADASUM_DEFINE_BLOCK_LOOPS(T)                                              \
  TF_ADASUM_CLONES                                                                   \
  void ToDoubles(const T* in, int64_t count, double* out) {                          \
    for (int64_t k = 0; k < count; ++k) out[k] = Widen(in[k]);                       \
    for (int64_t k = count; k < PaddedToLanes(count); ++k) out[k] = 0.0;             \
  }                                                                                  \
                                                                                     \
  TF_ADASUM_CLONES                                                                   \
  void AddScaled(double scale, const T* in, int64_t count, double* sum) {            \
    for (int64_t k = 0; k < count; ++k) sum[k] += scale * Widen(in[k]);              \
  }                                                                                  \
                                                                                     \
  TF_ADASUM_CLONES                                                                   \
  void FromDoubles(const double* in, int64_t count, T* out) {                        \
    for (int64_t k = 0; k < count; ++k) Narrow(in[k], &out[k]);                      \
  }

TF_ADASUM_DEFINE_BLOCK_LOOPS(double)
TF_ADASUM_DEFINE_BLOCK_LOOPS(float)
TF_ADASUM_DEFINE_BLOCK_LOOPS(Half)
TF_ADASUM_DEFINE_BLOCK_LOOPS(BFloat16)
#undef TF_ADASUM_DEFINE_BLOCK_LOOPS

}  // namespace tf_adasum
