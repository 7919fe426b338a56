// The four element types, the compute type of each, and the conversions between them.
#pragma once

namespace tf_adasum {

using int64 = long long;

struct Half {  // IEEE binary16
  unsigned short bits;
};

struct BFloat16 {  // the upper half of a float
  unsigned short bits;
};

template <typename T>
struct ElementTraits {
  using Compute = float;
};
template <>
struct ElementTraits<double> {
  using Compute = double;
};

// Products and weighted sums are computed in this type.
template <typename T>
using ComputeType = typename ElementTraits<T>::Compute;

// Number of elements in 16 bytes.
template <typename T>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ double Widen(double value) { return value; }
__device__ __forceinline__ float Widen(float value) { return value; }
__device__ __forceinline__ float Widen(Half value) { return HalfBitsToFloat(value.bits); }
__device__ __forceinline__ float Widen(BFloat16 value) { return BFloat16BitsToFloat(value.bits); }

// Rounds to nearest, ties to even.
__device__ __forceinline__ void Round(double value, double* out) { *out = value; }
__device__ __forceinline__ void Round(float value, float* out) { *out = value; }
__device__ __forceinline__ void Round(float value, Half* out) {
  out->bits = FloatToHalfBits(value);
}
__device__ __forceinline__ void Round(float value, BFloat16* out) {
  out->bits = FloatToBFloat16Bits(value);
}

__device__ __forceinline__ void Mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                    Half) {
  MmaHalf(d, a, b);
}
__device__ __forceinline__ void Mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                    BFloat16) {
  MmaBFloat16(d, a, b);
}

}  // namespace tf_adasum
