// Sums of weighted rows over one block, in double.
#ifndef TF_ADASUM_KERNELS_WEIGHTED_TERMS_H_
#define TF_ADASUM_KERNELS_WEIGHTED_TERMS_H_

#include <cstdint>

namespace tf_adasum {

#define TF_ADASUM_DECLARE_WEIGHTED_TERMS(T)                                              \
  /* sum[k] = c · x[k] */                                                                \
  void SetWeighted(double c, const T* x, int64_t count, double* sum);                    \
  /* sum[k] += c · x[k] */                                                               \
  void AddWeighted(double c, const T* x, int64_t count, double* sum);                    \
  /* combined[k] = c · x[k] + d · y[k], which may be x or y */                           \
  void CombineWeighted(double c, const T* x, double d, const T* y, int64_t count, T* combined);

TF_ADASUM_DECLARE_WEIGHTED_TERMS(double)
TF_ADASUM_DECLARE_WEIGHTED_TERMS(float)
#undef TF_ADASUM_DECLARE_WEIGHTED_TERMS

// combined[k] = c · x[k] + d · y[k] in float, which may be x or y
void CombineInFloat(float c, const float* x, float d, const float* y, int64_t count,
                    float* combined);

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_WEIGHTED_TERMS_H_
