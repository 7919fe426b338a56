// Chooses the kernel for a type, a number of rows and a device, and returns its name in kernels.cu.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "adasum_cuda.h"
#include "thresholds.h"

namespace tf_adasum {

inline int64_t SizeOf(AdasumType type) {
  switch (type) {
    case ADASUM_FLOAT32:
      return 4;
    case ADASUM_FLOAT64:
      return 8;
    case ADASUM_FLOAT16:
    case ADASUM_BFLOAT16:
      return 2;
  }
  return 0;
}

inline const char* NameOf(AdasumType type) {
  switch (type) {
    case ADASUM_FLOAT32:
      return "float32";
    case ADASUM_FLOAT64:
      return "float64";
    case ADASUM_FLOAT16:
      return "float16";
    case ADASUM_BFLOAT16:
      return "bfloat16";
  }
  return "";
}

inline bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kPacketBytes == 0;
}

// Returns "vector" if every row of every array begins at a multiple of 16 bytes, otherwise
// "scalar".
inline const char* AccessMode(AdasumType type, int64_t row_stride,
                              std::initializer_list<const void*> arrays) {
  bool aligned = row_stride * SizeOf(type) % kPacketBytes == 0;
  for (const void* array : arrays) aligned = aligned && IsAligned(array);
  return aligned ? "vector" : "scalar";
}

// Example: KernelName("pairwise_reduce", ADASUM_FLOAT32, "vector") is
// "pairwise_reduce_float32_vector".
inline std::string KernelName(const std::string& operation, AdasumType type, const char* access) {
  return operation + "_" + NameOf(type) + "_" + access;
}

// The kernels that compute a Gram matrix: one for the tiles on its diagonal and one for the tiles
// below. Tiles below exist if there is more than one group of rows (gram_tiles.cuh).
struct GramKernels {
  const char* diagonal;
  const char* below;
  int64_t tile_rows;
  int partitions_per_multiprocessor;
};

inline GramKernels ChooseGramKernels(AdasumType type, int64_t row_count, int compute_capability) {
  const bool has_mma = SizeOf(type) == 2 && compute_capability >= kMmaCapability;
  if (has_mma && row_count >= kMinRowsMma) {
    const char* below = "segment_gram_mma16_below";
    if (row_count <= 8) return {"segment_gram_mma8", below, 8, kMma8Blocks};
    return {"segment_gram_mma16", below, kTileRowsMma, kMma16Blocks};
  }
  const char* below = "segment_gram_fma8_below";
  if (row_count <= 2) return {"segment_gram_fma2", below, 2, kFma2Blocks};
  if (row_count <= 4) return {"segment_gram_fma4", below, 4, kFma4Blocks};
  if (type == ADASUM_FLOAT32 && row_count > kTileRowsFma && row_count <= kMaxRowsFloat32) {
    return {"segment_gram_fma16", below, kMaxRowsFloat32, kFma16Blocks};
  }
  return {"segment_gram_fma8", below, kTileRowsFma, kFma8Partitions};
}

}  // namespace tf_adasum
