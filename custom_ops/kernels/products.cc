#include "products.h"

#include "clones.h"

namespace tf_adasum {
namespace {

constexpr int64_t kPairLanes = 16;  // enough independent sums to hide the latency of an addition

template <int64_t kLanes>
inline double SumOfLanes(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace

#define TF_ADASUM_DEFINE_PAIR_PRODUCTS(T)                                                   \
  TF_ADASUM_CLONES                                                                          \
  void AddPairProducts(const T* x, const T* y, int64_t count, double* sums_3) {             \
    double xx[kPairLanes] = {}, xy[kPairLanes] = {}, yy[kPairLanes] = {};                   \
    int64_t k = 0;                                                                          \
    for (; k + kPairLanes <= count; k += kPairLanes) {                                      \
      _Pragma("omp simd") for (int64_t lane = 0; lane < kPairLanes; ++lane) {               \
        const double x_k = x[k + lane], y_k = y[k + lane];                                  \
        xx[lane] += x_k * x_k;                                                              \
        xy[lane] += x_k * y_k;                                                              \
        yy[lane] += y_k * y_k;                                                              \
      }                                                                                     \
    }                                                                                       \
    for (int64_t lane = 0; k < count; ++k, ++lane) {                                        \
      const double x_k = x[k], y_k = y[k];                                                  \
      xx[lane] += x_k * x_k;                                                                \
      xy[lane] += x_k * y_k;                                                                \
      yy[lane] += y_k * y_k;                                                                \
    }                                                                                       \
    sums_3[0] += SumOfLanes<kPairLanes>(xx);                                                \
    sums_3[1] += SumOfLanes<kPairLanes>(xy);                                                \
    sums_3[2] += SumOfLanes<kPairLanes>(yy);                                                \
  }

#define TF_ADASUM_DEFINE_TILE_PRODUCTS(NAME)                                                \
  TF_ADASUM_CLONES                                                                          \
  void NAME(const Tile& x, const Tile& y, int64_t padded_count, double* sums_4) {           \
    double s00[kTileLanes] = {}, s01[kTileLanes] = {};                                      \
    double s10[kTileLanes] = {}, s11[kTileLanes] = {};                                      \
    const double *x0 = x.rows[0], *x1 = x.rows[1], *y0 = y.rows[0], *y1 = y.rows[1];        \
    for (int64_t k = 0; k < padded_count; k += kTileLanes) {                                \
      _Pragma("omp simd") for (int64_t lane = 0; lane < kTileLanes; ++lane) {               \
        s00[lane] += x0[k + lane] * y0[k + lane];                                           \
        s01[lane] += x0[k + lane] * y1[k + lane];                                           \
        s10[lane] += x1[k + lane] * y0[k + lane];                                           \
        s11[lane] += x1[k + lane] * y1[k + lane];                                           \
      }                                                                                     \
    }                                                                                       \
    sums_4[0] += SumOfLanes<kTileLanes>(s00);                                               \
    sums_4[1] += SumOfLanes<kTileLanes>(s01);                                               \
    sums_4[2] += SumOfLanes<kTileLanes>(s10);                                               \
    sums_4[3] += SumOfLanes<kTileLanes>(s11);                                               \
  }

TF_ADASUM_EXACT_PRODUCTS_BEGIN
TF_ADASUM_DEFINE_PAIR_PRODUCTS(float)
TF_ADASUM_DEFINE_TILE_PRODUCTS(AddTileProductsOfFloats)
TF_ADASUM_EXACT_PRODUCTS_END

TF_ADASUM_DEFINE_PAIR_PRODUCTS(double)
TF_ADASUM_DEFINE_TILE_PRODUCTS(AddTileProducts)

TF_ADASUM_CLONES
void ToPaddedDoubles(const float* in, int64_t count, double* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = in[k];
  for (int64_t k = count; k < PaddedToLanes(count); ++k) out[k] = 0.0;
}

TF_ADASUM_CLONES
void ToPaddedDoubles(const double* in, int64_t count, double* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = in[k];
  for (int64_t k = count; k < PaddedToLanes(count); ++k) out[k] = 0.0;
}

}  // namespace tf_adasum
