// Error codes. 0 means no error. The codes of the CUDA driver are positive, all other codes are
// negative. The launchers (launcher.h) use -100 and below.
#pragma once

#define TF_ADASUM_RETURN_IF_ERROR(CALL)           \
  do {                                            \
    const int error_of_call = (CALL);             \
    if (error_of_call != 0) return error_of_call; \
  } while (false)

namespace tf_adasum {

// Errors that the C interface detects.
enum InterfaceError {
  kUnknownOperation = -1,
  kUnknownType = -2,
  kBadRowCount = -3,
  kBadSegments = -4,
  kBadOptions = -5,
  kWrongOperation = -6,
  kNullArgument = -7,
  kMisalignedSpace = -8,
  kMisalignedSinglePass = -9,
  kNoSinglePass = -10,
  kTooManyBlocks = -11,
};

// Returns null for all other errors.
inline const char* InterfaceErrorString(int error) {
  switch (error) {
    case 0:
      return "no error";
    case kUnknownOperation:
      return "operation: expected a value of AdasumOperation";
    case kUnknownType:
      return "type: expected a value of AdasumType";
    case kBadRowCount:
      return "row_count: expected 2 for ADASUM_PAIRWISE_COMBINE, 1 to 32767 for the others";
    case kBadSegments:
      return "segments: expected fewer than 2^30 segments, the first offset 0, the last one not "
             "negative";
    case kBadOptions:
      return "options: expected a value of AdasumPairwiseAlgorithm, and a block_count and a "
             "small_segment that are not negative";
    case kWrongOperation:
      return "plan: it is the plan of another operation";
    case kNullArgument:
      return "a pointer argument is null";
    case kMisalignedSpace:
      return "map, workspace: expected addresses that are multiples of 16";
    case kMisalignedSinglePass:
      return "a, b, combined: ADASUM_SINGLE_PASS expects addresses that are multiples of 16";
    case kNoSinglePass:
      return "ADASUM_SINGLE_PASS: this device has no cooperative launch or too little "
             "shared memory, or the tensor is too large for one launch";
    case kTooManyBlocks:
      return "the operation needs 2^31 thread blocks or more";
  }
  return nullptr;
}

}  // namespace tf_adasum
