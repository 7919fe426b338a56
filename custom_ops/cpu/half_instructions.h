// The processor's own conversions between half precision and float (F16C), where it has them.
//
// They give the bits of element_types.h, for NaNs too as far as a NaN goes, several times faster;
// compilers do not find them by themselves.
#ifndef TF_ADASUM_KERNELS_HALF_INSTRUCTIONS_H_
#define TF_ADASUM_KERNELS_HALF_INSTRUCTIONS_H_

#include <cstdint>

#include "element_types.h"

namespace tf_adasum {

bool HasHalfInstructions();

// To be called only if HasHalfInstructions().
void ConvertHalvesToFloats(const Half* in, int64_t count, float* out);
void ConvertFloatsToHalves(const float* in, int64_t count, Half* out);  // to nearest, ties to even

}  // namespace tf_adasum

#endif  // TF_ADASUM_KERNELS_HALF_INSTRUCTIONS_H_
