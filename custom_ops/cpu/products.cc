#include "products.h"

#include "instruction_sets.h"

namespace tf_adasum {
namespace {

constexpr int64_t kPairLanes = 16;
constexpr int64_t kTileLanes = 4;
constexpr int64_t kFloatLanes = 32;
// Each lane adds this number of products in float, and then adds their sum in double. The products
// of all lanes, 32 · 15, are one block (kBlockElements).
constexpr int64_t kFloatProducts = 15;

template <int64_t kLanes>
inline double SumOf(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace

// Runs BODY(k, lane) for every element k: first for groups of LANES elements at once, then for the
// remaining elements.
#define TF_ADASUM_IN_LANES(LANES, BODY)                                                           \
  int64_t begin = 0;                                                                              \
  for (; begin + LANES <= count; begin += LANES) {                                                \
    _Pragma("omp simd") for (int64_t lane = 0; lane < LANES; ++lane) { BODY(begin + lane, lane) } \
  }                                                                                               \
  for (int64_t lane = 0; begin + lane < count; ++lane) {                                          \
    BODY(begin + lane, lane)                                                                      \
  }

#define TF_ADASUM_PAIR(k, lane)      \
  {                                  \
    const double a = x[k], b = y[k]; \
    xx[lane] += a * a;               \
    xy[lane] += a * b;               \
    yy[lane] += b * b;               \
  }

#define TF_ADASUM_TRIANGLE(k, lane)                          \
  {                                                          \
    const double a = x0[k], b = x1[k], c = x2[k], d = x3[k]; \
    aa[lane] += a * a;                                       \
    ab[lane] += a * b;                                       \
    ac[lane] += a * c;                                       \
    ad[lane] += a * d;                                       \
    bb[lane] += b * b;                                       \
    bc[lane] += b * c;                                       \
    bd[lane] += b * d;                                       \
    cc[lane] += c * c;                                       \
    cd[lane] += c * d;                                       \
    dd[lane] += d * d;                                       \
  }

#define TF_ADASUM_RECTANGLE(k, lane)                         \
  {                                                          \
    const double a = x0[k], b = x1[k];                       \
    const double p = y0[k], q = y1[k], r = y2[k], s = y3[k]; \
    ap[lane] += a * p;                                       \
    aq[lane] += a * q;                                       \
    ar[lane] += a * r;                                       \
    as[lane] += a * s;                                       \
    bp[lane] += b * p;                                       \
    bq[lane] += b * q;                                       \
    br[lane] += b * r;                                       \
    bs[lane] += b * s;                                       \
  }

#define TF_ADASUM_DEFINE_PAIR_PRODUCTS(T)                                     \
  TF_ADASUM_CLONES                                                            \
  void AddPairProducts(const T* x, const T* y, int64_t count, double* sums) { \
    double xx[kPairLanes] = {}, xy[kPairLanes] = {}, yy[kPairLanes] = {};     \
    TF_ADASUM_IN_LANES(kPairLanes, TF_ADASUM_PAIR)                            \
    sums[0] += SumOf<kPairLanes>(xx);                                         \
    sums[1] += SumOf<kPairLanes>(xy);                                         \
    sums[2] += SumOf<kPairLanes>(yy);                                         \
  }

#define TF_ADASUM_DEFINE_TILES(NAME)                                                           \
  TF_ADASUM_CLONES                                                                             \
  void AddTriangleOf##NAME(const double* const* x, int64_t count, double* sums) {              \
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];                               \
    double aa[kTileLanes] = {}, ab[kTileLanes] = {}, ac[kTileLanes] = {}, ad[kTileLanes] = {}; \
    double bb[kTileLanes] = {}, bc[kTileLanes] = {}, bd[kTileLanes] = {};                      \
    double cc[kTileLanes] = {}, cd[kTileLanes] = {}, dd[kTileLanes] = {};                      \
    TF_ADASUM_IN_LANES(kTileLanes, TF_ADASUM_TRIANGLE)                                         \
    double* const lanes[] = {aa, ab, ac, ad, bb, bc, bd, cc, cd, dd};                          \
    for (int64_t p = 0; p < kTriangleProducts; ++p) sums[p] += SumOf<kTileLanes>(lanes[p]);    \
  }                                                                                            \
                                                                                               \
  TF_ADASUM_CLONES                                                                             \
  void AddRectangleOf##NAME(const double* const* x, const double* const* y, int64_t count,     \
                            double* sums) {                                                    \
    const double *x0 = x[0], *x1 = x[1], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];       \
    double ap[kTileLanes] = {}, aq[kTileLanes] = {}, ar[kTileLanes] = {}, as[kTileLanes] = {}; \
    double bp[kTileLanes] = {}, bq[kTileLanes] = {}, br[kTileLanes] = {}, bs[kTileLanes] = {}; \
    TF_ADASUM_IN_LANES(kTileLanes, TF_ADASUM_RECTANGLE)                                        \
    double* const lanes[] = {ap, aq, ar, as, bp, bq, br, bs};                                  \
    for (int64_t p = 0; p < kRectangleProducts; ++p) sums[p] += SumOf<kTileLanes>(lanes[p]);   \
  }

TF_ADASUM_EXACT_PRODUCTS_BEGIN
TF_ADASUM_DEFINE_PAIR_PRODUCTS(float)
TF_ADASUM_DEFINE_TILES(Floats)
TF_ADASUM_EXACT_PRODUCTS_END

TF_ADASUM_DEFINE_PAIR_PRODUCTS(double)
TF_ADASUM_DEFINE_TILES(Doubles)

TF_ADASUM_CLONES
void AddPairProductsInFloat(const float* x, const float* y, int64_t count, double* sums) {
  constexpr int64_t kStep = kFloatLanes * kFloatProducts;
  double xx[kFloatLanes] = {}, xy[kFloatLanes] = {}, yy[kFloatLanes] = {};
  int64_t begin = 0;
  for (; begin + kStep <= count; begin += kStep) {
    float xx_few[kFloatLanes] = {}, xy_few[kFloatLanes] = {}, yy_few[kFloatLanes] = {};
#pragma GCC unroll 1
    for (int64_t k = 0; k < kStep; k += kFloatLanes) {
#pragma omp simd
      for (int64_t lane = 0; lane < kFloatLanes; ++lane) {
        const float a = x[begin + k + lane], b = y[begin + k + lane];
        xx_few[lane] += a * a;
        xy_few[lane] += a * b;
        yy_few[lane] += b * b;
      }
    }
    for (int64_t lane = 0; lane < kFloatLanes; ++lane) {
      xx[lane] += xx_few[lane];
      xy[lane] += xy_few[lane];
      yy[lane] += yy_few[lane];
    }
  }
  sums[0] += SumOf<kFloatLanes>(xx);
  sums[1] += SumOf<kFloatLanes>(xy);
  sums[2] += SumOf<kFloatLanes>(yy);
  if (begin < count) AddPairProducts(x + begin, y + begin, count - begin, sums);
}

const Tiles kTilesOfFloats = {AddTriangleOfFloats, AddRectangleOfFloats};
const Tiles kTilesOfDoubles = {AddTriangleOfDoubles, AddRectangleOfDoubles};

}  // namespace tf_adasum
