#include "block.h"

#include "instruction_sets.h"

namespace tf_adasum {
namespace {

TF_ADASUM_CLONES
void HalvesToFloats(const Half* in, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = static_cast<float>(Widen(in[k]));
}

TF_ADASUM_CLONES
void BFloat16sToFloats(const BFloat16* in, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = static_cast<float>(Widen(in[k]));
}

TF_ADASUM_CLONES
void DoublesToHalves(const double* in, int64_t count, Half* out) {
  for (int64_t k = 0; k < count; ++k) Narrow(in[k], &out[k]);
}

TF_ADASUM_CLONES
void DoublesToOddFloats(const double* in, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = FloatOf(RoundToOddFloat(in[k]));
}

}  // namespace

const float* Widened(const Half* in, int64_t count, float* scratch) {
  if (HasHalfInstructions()) {
    ConvertHalvesToFloats(in, count, scratch);
  } else {
    HalvesToFloats(in, count, scratch);
  }
  return scratch;
}

const float* Widened(const BFloat16* in, int64_t count, float* scratch) {
  BFloat16sToFloats(in, count, scratch);
  return scratch;
}

TF_ADASUM_CLONES
const double* AsDoubles(const float* in, int64_t count, double* scratch) {
  for (int64_t k = 0; k < count; ++k) scratch[k] = in[k];
  return scratch;
}

void FromDoubles(const double* in, int64_t count, double* out) {
  for (int64_t k = 0; k < count; ++k) out[k] = in[k];
}

TF_ADASUM_CLONES
void FromDoubles(const double* in, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) Narrow(in[k], &out[k]);
}

void FromDoubles(const double* in, int64_t count, Half* out) {
  if (!HasHalfInstructions()) return DoublesToHalves(in, count, out);
  float odd[kBlockElements];  // can be rounded again without harm; see RoundToOddFloat
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t here = count - begin < kBlockElements ? count - begin : kBlockElements;
    DoublesToOddFloats(in + begin, here, odd);
    ConvertFloatsToHalves(odd, here, out + begin);
  }
}

TF_ADASUM_CLONES
void FromDoubles(const double* in, int64_t count, BFloat16* out) {
  for (int64_t k = 0; k < count; ++k) Narrow(in[k], &out[k]);
}

void FromFloats(const float* in, int64_t count, Half* out) {
  if (HasHalfInstructions()) return ConvertFloatsToHalves(in, count, out);
  double doubles[kBlockElements];
  DoublesToHalves(AsDoubles(in, count, doubles), count, out);
}

TF_ADASUM_CLONES
void FromFloats(const float* in, int64_t count, BFloat16* out) {
  for (int64_t k = 0; k < count; ++k) Narrow(in[k], &out[k]);
}

}  // namespace tf_adasum
