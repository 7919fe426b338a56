// The CUDA kernels behind a C interface: device pointers, sizes and a stream, nothing of
// TensorFlow.
//
// Any program that holds device memory can call it: the TensorFlow op, PyTorch or CuPy through
// ctypes, a test. No function allocates device memory or waits for the device.
//
//     plan  = adasum_plan_create(...)                 once for each shape, on the host
//     map   = a copy of adasum_plan_map(plan) in device memory
//     space = adasum_plan_workspace_size(plan) bytes of device memory, with any content
//     adasum_segment_gram(plan, map, space, rows, ...)    in every step, asynchronous
//
// Shape letters: S segments, R rows (replicas), N elements in a row.
//
// All types but float64 are multiplied in float32 and summed in double, in an order that depends on
// the plan alone: two calls give the same bits. Results are rounded to nearest even.
//
// Functions that return an int return 0 or an error that adasum_error_string explains.
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
  ADASUM_TWO_PASSES = 1,   // one kernel reduces, a second one writes
  ADASUM_SINGLE_PASS = 2,  // one cooperative kernel keeps the operands on chip in between
};

// What tests and benchmarks may fix; zeros mean: choose by size.
struct AdasumPlanOptions {
  int32_t pairwise_algorithm;  // an AdasumPairwiseAlgorithm
  int32_t block_count;         // thread blocks that share the elements
  int64_t small_segment;       // a shorter segment is the work of one warp
};

// How one operation on one shape is divided among thread blocks. Immutable once made; any number
// of streams may use it at once.
typedef struct AdasumPlan AdasumPlan;

// Makes a plan for the current device. `segments` are S + 1 offsets in host memory: the first 0,
// the last N, never decreasing (the caller has checked that). `row_count` is R, and 2 for
// ADASUM_PAIRWISE_COMBINE. `options` may be null.
int adasum_plan_create(int operation, int type, int64_t row_count, const int64_t* segments,
                       int64_t segment_count, const struct AdasumPlanOptions* options,
                       AdasumPlan** plan);
void adasum_plan_destroy(AdasumPlan* plan);

// The map from blocks to segments, in host memory that the plan owns. The caller copies it to
// device memory at an address that is a multiple of 16.
const void* adasum_plan_map(const AdasumPlan* plan);
int64_t adasum_plan_map_size(const AdasumPlan* plan);  // bytes
// Does that copying, in stream order. The plan has to outlive it.
int adasum_plan_copy_map(const AdasumPlan* plan, void* map, void* stream);

// Bytes of device memory that a call needs, at an address that is a multiple of 16. Two calls that
// may run at once need one each.
int64_t adasum_plan_workspace_size(const AdasumPlan* plan);

// combined = c_a a + c_b b for each segment, with Adasum's coefficients. `combined` may be `a` or
// `b`; else it overlaps neither.
//
// A segment in which either tensor has a NaN or an Inf, or a float32 or bfloat16 beyond 1e19 whose
// square overflows, is NaN in `combined`.
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
