#include "weighted_terms.h"

#include "clones.h"

namespace tf_adasum {

#define TF_ADASUM_DEFINE_WEIGHTED_TERMS(T)                                                       \
  TF_ADASUM_CLONES                                                                               \
  void SetWeighted(double c, const T* x, int64_t count, double* sum) {                           \
    for (int64_t k = 0; k < count; ++k) sum[k] = c * x[k];                                       \
  }                                                                                              \
                                                                                                 \
  TF_ADASUM_CLONES                                                                               \
  void AddWeighted(double c, const T* x, int64_t count, double* sum) {                           \
    for (int64_t k = 0; k < count; ++k) sum[k] += c * x[k];                                      \
  }                                                                                              \
                                                                                                 \
  TF_ADASUM_CLONES                                                                               \
  void CombineWeighted(double c, const T* x, double d, const T* y, int64_t count, T* combined) { \
    /* Element k is read before it is written: the loop may be vectorised though they overlap. */ \
    _Pragma("GCC ivdep") for (int64_t k = 0; k < count; ++k) {                                   \
      combined[k] = static_cast<T>(c * x[k] + d * y[k]);                                         \
    }                                                                                            \
  }

TF_ADASUM_DEFINE_WEIGHTED_TERMS(double)
TF_ADASUM_DEFINE_WEIGHTED_TERMS(float)
#undef TF_ADASUM_DEFINE_WEIGHTED_TERMS

TF_ADASUM_CLONES
void CombineInFloat(float c, const float* x, float d, const float* y, int64_t count,
                    float* combined) {
#pragma GCC ivdep
  for (int64_t k = 0; k < count; ++k) combined[k] = c * x[k] + d * y[k];
}

}  // namespace tf_adasum
