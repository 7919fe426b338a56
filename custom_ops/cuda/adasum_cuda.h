// The C interface of the CUDA kernels. It takes device pointers, sizes and a stream, and does not
// depend on TensorFlow.
//
// Any program that has device memory can call it: the TensorFlow op, PyTorch or CuPy through
// ctypes, a test. No function allocates device memory or waits for the device.
//
//     plan  = adasum_plan_create(...)                 once for each shape, on the host
//     map   = a copy of adasum_plan_map(plan) in device memory
//     space = adasum_plan_workspace_size(plan) bytes of device memory (any content)
//     adasum_segment_gram(plan, map, space, rows, ...)    in every step, asynchronous
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
//
// For all types but float64, products are computed in float32. Inner products are summed in double
// (only short partial sums are in float32), weighted sums in float32. The order of the additions
// depends only on the plan, on the row stride and on whether the addresses are multiples of 16:
// two calls in which these are equal give the same bits. Results are rounded to nearest even.
//
// Functions that return an int return 0 or an error code. adasum_error_string explains the code.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum AdasumOperation {
  ADASUM_PAIRWISE_COMBINE = 0,
  ADASUM_SEGMENT_GRAM = 1,
  ADASUM_SEGMENT_WEIGHTED_SUM = 2,
};

enum AdasumType { ADASUM_FLOAT32 = 0, ADASUM_FLOAT64 = 1, ADASUM_FLOAT16 = 2, ADASUM_BFLOAT16 = 3 };

enum AdasumPairwiseAlgorithm {
  ADASUM_CHOOSE_BY_SIZE = 0,
  ADASUM_TWO_PASSES = 1,   // one kernel reduces, a second kernel writes
  ADASUM_SINGLE_PASS = 2,  // one cooperative kernel keeps the operands in shared memory
};

// Options for tests and benchmarks. If a value is zero, the plan chooses it.
struct AdasumPlanOptions {
  int32_t pairwise_algorithm;  // an AdasumPairwiseAlgorithm
  int32_t block_count;         // number of thread blocks that share the elements
  int64_t small_segment;       // one warp processes a segment shorter than this
};

// A plan describes how one operation on one shape is divided among thread blocks. It never changes
// after its creation, so any number of streams may use it at once.
typedef struct AdasumPlan AdasumPlan;

// Creates a plan for the current device. `segments` are S + 1 offsets in host memory. The first is
// 0, the last is N, and they must never decrease (the caller has to check this). `row_count` is R;
// it must be 2 for ADASUM_PAIRWISE_COMBINE. `options` may be null.
int adasum_plan_create(int operation, int type, int64_t row_count, const int64_t* segments,
                       int64_t segment_count, const struct AdasumPlanOptions* options,
                       AdasumPlan** plan);
void adasum_plan_destroy(AdasumPlan* plan);

// Returns the map from blocks to segments, in host memory that the plan owns. The caller copies it
// to device memory, to an address that is a multiple of 16.
const void* adasum_plan_map(const AdasumPlan* plan);
int64_t adasum_plan_map_size(const AdasumPlan* plan);  // bytes
// Copies the map to device memory in stream order. The plan must exist until the copy is done.
int adasum_plan_copy_map(const AdasumPlan* plan, void* map, void* stream);

// Returns the size in bytes of the workspace in device memory that a call needs. Its address must
// be a multiple of 16. Two calls that may run at the same time need two workspaces.
int64_t adasum_plan_workspace_size(const AdasumPlan* plan);

// combined = c_a a + c_b b for each segment, with Adasum's coefficients. `combined` may be the same
// array as `a` or `b`; otherwise it must not overlap them.
//
// A segment of `combined` becomes NaN if `a` or `b` contains a NaN or an Inf there, or a float32 or
// bfloat16 value beyond about 1e19, whose square overflows.
int adasum_pairwise_combine(const AdasumPlan* plan, const void* map, void* workspace,
                            const void* a_N, const void* b_N, void* combined_N, void* stream);

// gram[s][i][j] = <rows[i], rows[j]> over segment s, in double. Row i starts at element
// i * row_stride.
int adasum_segment_gram(const AdasumPlan* plan, const void* map, void* workspace,
                        const void* rows_RN, int64_t row_stride, double* gram_SRR, void* stream);

// combined[k] = sum over i of coefficients[s][i] rows[i][k], for the elements k of segment s.
int adasum_segment_weighted_sum(const AdasumPlan* plan, const void* map, const void* rows_RN,
                                int64_t row_stride, const double* coefficients_SR, void* combined_N,
                                void* stream);

const char* adasum_error_string(int error);

#ifdef __cplusplus
}
#endif
