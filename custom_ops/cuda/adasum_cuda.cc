// Implements the C interface: checks the arguments, chooses the kernels and launches them. plan.cc
// divides the work among thread blocks.
#include "adasum_cuda.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "kernel_choice.h"
#include "launcher.h"
#include "plan.h"
#include "thresholds.h"

using namespace tf_adasum;  // NOLINT: the functions below are C functions

struct AdasumPlan {
  AdasumOperation operation;
  AdasumType type;
  int64_t row_count;
  int64_t segment_count;
  long long element_count;
  GramKernels gram = {};             // for ADASUM_SEGMENT_GRAM
  bool single_pass = false;          // for ADASUM_PAIRWISE_COMBINE
  bool may_use_two_passes = true;    // if an address is not a multiple of 16
  int packets_in_shared_memory = 0;  // of each operand, in the shared memory of a block
  std::unique_ptr<Partitions> partitions;
  std::vector<char> map;
};

namespace {

// ---- plans -------------------------------------------------------------------------------------

int CheckPlanArguments(int operation, int type, int64_t row_count, const int64_t* segments,
                       int64_t segment_count, const AdasumPlanOptions& options) {
  constexpr int64_t kMostSegments = int64_t{1} << 30;
  if (operation < ADASUM_PAIRWISE_COMBINE || operation > ADASUM_SEGMENT_WEIGHTED_SUM) {
    return kUnknownOperation;
  }
  if (type < ADASUM_FLOAT32 || type > ADASUM_BFLOAT16) return kUnknownType;
  const bool is_pair = operation == ADASUM_PAIRWISE_COMBINE;
  if (row_count < (is_pair ? 2 : 1) || row_count > (is_pair ? 2 : kMaxRows)) return kBadRowCount;
  if (segments == nullptr) return kNullArgument;
  if (segment_count < 0 || segment_count >= kMostSegments || segments[0] != 0 ||
      segments[segment_count] < 0) {
    return kBadSegments;
  }
  if (options.pairwise_algorithm < ADASUM_CHOOSE_BY_SIZE ||
      options.pairwise_algorithm > ADASUM_SINGLE_PASS || options.block_count < 0 ||
      options.small_segment < 0) {
    return kBadOptions;
  }
  return 0;
}

LaunchShape SinglePassShape(int64_t blocks, int64_t packets_in_shared_memory) {
  return {blocks, kSinglePassThreads, 2 * packets_in_shared_memory * kPacketBytes, true};
}

std::string SinglePassKernel(AdasumType type) {
  return KernelName("pairwise_single_pass", type, "vector");
}

// Plans the single pass if the device supports cooperative launches and all partitions fit into
// shared memory. If the caller requests the single pass, the partitions need not fit. The blocks of
// the single pass wait for each other, so there are at most as many blocks as can run at once.
int TrySinglePass(const Device& device, const int64_t* segments, PartitionRequest request,
                  bool is_requested, AdasumPlan* plan) {
  const int64_t most_packets = (device.shared_bytes - kSinglePassStaticBytes) / (2 * kPacketBytes);
  int resident = 0;
  if (device.has_cooperative_launch && most_packets > 0) {
    TF_ADASUM_RETURN_IF_ERROR(GetResidentBlocks(SinglePassKernel(plan->type).c_str(),
                                                SinglePassShape(1, most_packets), &resident));
  }
  const int64_t most_blocks = static_cast<int64_t>(resident) * device.multiprocessors;
  if (most_blocks == 0) return is_requested ? kNoSinglePass : 0;

  request.block_count =
      request.block_count > 0 ? std::min(request.block_count, most_blocks) : most_blocks;
  auto partitions = std::make_unique<Partitions>(segments, plan->segment_count, request);
  const int64_t elements_per_packet = kPacketBytes / SizeOf(plan->type);
  // A partition may begin and end inside a packet.
  const int64_t packets = partitions->longest_partition() / elements_per_packet + 2;
  if (partitions->partition_count() > most_blocks) return is_requested ? kNoSinglePass : 0;
  if (packets > most_packets && !is_requested) return 0;
  plan->single_pass = true;
  plan->packets_in_shared_memory = static_cast<int>(std::min(packets, most_packets));
  plan->partitions = std::move(partitions);
  return 0;
}

int MakePartitions(const int64_t* segments, const AdasumPlanOptions& options, AdasumPlan* plan) {
  Device device;
  TF_ADASUM_RETURN_IF_ERROR(GetDevice(&device));
  PartitionRequest request;
  request.block_count = options.block_count;
  request.small_segment = options.small_segment > 0 ? options.small_segment : kSmallSegment;
  request.keep_empty_segments = plan->operation == ADASUM_SEGMENT_GRAM;

  int partitions_per_multiprocessor = kStreamingBlocks;
  if (plan->operation == ADASUM_PAIRWISE_COMBINE &&
      options.pairwise_algorithm != ADASUM_TWO_PASSES) {
    const bool is_requested = options.pairwise_algorithm == ADASUM_SINGLE_PASS;
    plan->may_use_two_passes = !is_requested;
    TF_ADASUM_RETURN_IF_ERROR(TrySinglePass(device, segments, request, is_requested, plan));
    if (plan->single_pass) return 0;
  } else if (plan->operation == ADASUM_SEGMENT_GRAM) {
    plan->gram = ChooseGramKernels(plan->type, plan->row_count, device.compute_capability);
    partitions_per_multiprocessor = plan->gram.partitions_per_multiprocessor;
  } else if (plan->operation == ADASUM_SEGMENT_WEIGHTED_SUM) {
    partitions_per_multiprocessor = kWeightedSumPartitions;
  }
  if (request.block_count == 0) {
    request.block_count =
        static_cast<int64_t>(device.multiprocessors) * partitions_per_multiprocessor;
  }
  plan->partitions = std::make_unique<Partitions>(segments, plan->segment_count, request);
  return 0;
}

// ---- workspace ---------------------------------------------------------------------------------

// The workspace of ADASUM_PAIRWISE_COMBINE holds, in units of doubles: the coefficients [S][2], the
// sums in the slots [slots][3], and the arrival counter of the grid barrier in the single pass.
int64_t PairSlotSumsAt(const AdasumPlan& plan) { return 2 * plan.segment_count; }
int64_t PairCounterAt(const AdasumPlan& plan) {
  return PairSlotSumsAt(plan) + 3 * plan.partitions->slot_count();
}

int64_t TriangleSize(int64_t row_count) { return row_count * (row_count + 1) / 2; }

// ---- launches ----------------------------------------------------------------------------------

int CheckCall(const AdasumPlan* plan, AdasumOperation operation, const void* map,
              const void* workspace) {
  if (plan == nullptr) return kNullArgument;
  if (plan->operation != operation) return kWrongOperation;
  if (plan->partitions->partition_count() == 0) return 0;
  if (map == nullptr) return kNullArgument;
  if (workspace == nullptr && adasum_plan_workspace_size(plan) > 0) return kNullArgument;
  return IsAligned(map) && IsAligned(workspace) ? 0 : kMisalignedSpace;
}

// `arguments` are the addresses of the kernel's arguments.
template <typename... Arguments>
int LaunchKernel(const std::string& kernel, const LaunchShape& shape, void* stream,
                 Arguments*... arguments) {
  if (shape.blocks > std::numeric_limits<int32_t>::max()) return kTooManyBlocks;
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(arguments))...};
  return Launch(kernel.c_str(), shape, stream, addresses);
}

LaunchShape Blocks(int64_t count) { return {count, kBlockThreads}; }

}  // namespace

int adasum_plan_create(int operation, int type, int64_t row_count, const int64_t* segments,
                       int64_t segment_count, const AdasumPlanOptions* options, AdasumPlan** plan) {
  const AdasumPlanOptions chosen = options == nullptr ? AdasumPlanOptions{} : *options;
  if (plan == nullptr) return kNullArgument;
  *plan = nullptr;
  TF_ADASUM_RETURN_IF_ERROR(
      CheckPlanArguments(operation, type, row_count, segments, segment_count, chosen));
  auto made = std::make_unique<AdasumPlan>();
  made->operation = static_cast<AdasumOperation>(operation);
  made->type = static_cast<AdasumType>(type);
  made->row_count = row_count;
  made->segment_count = segment_count;
  made->element_count = segments[segment_count];
  TF_ADASUM_RETURN_IF_ERROR(MakePartitions(segments, chosen, made.get()));
  made->map = made->partitions->Serialize();
  *plan = made.release();
  return 0;
}

void adasum_plan_destroy(AdasumPlan* plan) { delete plan; }

const void* adasum_plan_map(const AdasumPlan* plan) { return plan->map.data(); }

int64_t adasum_plan_map_size(const AdasumPlan* plan) {
  return static_cast<int64_t>(plan->map.size());
}

int adasum_plan_copy_map(const AdasumPlan* plan, void* map, void* stream) {
  if (plan == nullptr) return kNullArgument;
  if (plan->map.empty()) return 0;
  if (map == nullptr) return kNullArgument;
  return CopyToDevice(map, plan->map.data(), plan->map.size(), stream);
}

int64_t adasum_plan_workspace_size(const AdasumPlan* plan) {
  constexpr int64_t kDouble = sizeof(double);
  switch (plan->operation) {
    case ADASUM_PAIRWISE_COMBINE:
      return (PairCounterAt(*plan) + 1) * kDouble;
    case ADASUM_SEGMENT_GRAM:
      return plan->partitions->slot_count() * TriangleSize(plan->row_count) * kDouble;
    case ADASUM_SEGMENT_WEIGHTED_SUM:
      return 0;
  }
  return 0;
}

int adasum_pairwise_combine(const AdasumPlan* plan, const void* map, void* workspace,
                            const void* a_N, const void* b_N, void* combined_N, void* stream) {
  TF_ADASUM_RETURN_IF_ERROR(CheckCall(plan, ADASUM_PAIRWISE_COMBINE, map, workspace));
  const PartitionMap partitions = plan->partitions->MapAt(map);
  if (partitions.partition_count == 0) return 0;
  if (a_N == nullptr || b_N == nullptr || combined_N == nullptr) return kNullArgument;
  double* space = static_cast<double*>(workspace);
  const PairResults results = {space, space + PairSlotSumsAt(*plan)};
  const bool aligned = IsAligned(a_N) && IsAligned(b_N) && IsAligned(combined_N);
  if (plan->single_pass && !aligned && !plan->may_use_two_passes) return kMisalignedSinglePass;

  if (plan->single_pass && aligned) {
    void* arrived = space + PairCounterAt(*plan);
    TF_ADASUM_RETURN_IF_ERROR(ClearWord(arrived, stream));
    return LaunchKernel(SinglePassKernel(plan->type),
                        SinglePassShape(partitions.partition_count, plan->packets_in_shared_memory),
                        stream, &a_N, &b_N, &combined_N, &plan->element_count,
                        &plan->packets_in_shared_memory, &partitions, &results, &arrived);
  }
  const char* access = aligned ? "vector" : "scalar";
  const LaunchShape shape = Blocks(partitions.partition_count);
  TF_ADASUM_RETURN_IF_ERROR(LaunchKernel(KernelName("pairwise_reduce", plan->type, access), shape,
                                         stream, &a_N, &b_N, &partitions, &results));
  return LaunchKernel(KernelName("pairwise_combine", plan->type, access), shape, stream, &a_N, &b_N,
                      &combined_N, &partitions, &results);
}

int adasum_segment_gram(const AdasumPlan* plan, const void* map, void* workspace,
                        const void* rows_RN, int64_t row_stride, double* gram_SRR, void* stream) {
  TF_ADASUM_RETURN_IF_ERROR(CheckCall(plan, ADASUM_SEGMENT_GRAM, map, workspace));
  const PartitionMap partitions = plan->partitions->MapAt(map);
  if (partitions.partition_count == 0) return 0;
  if (gram_SRR == nullptr || (rows_RN == nullptr && plan->element_count > 0)) return kNullArgument;
  const GramResults results = {gram_SRR, static_cast<double*>(workspace)};
  const long long stride = row_stride;
  const int row_count = static_cast<int>(plan->row_count);
  const char* access = AccessMode(plan->type, row_stride, {rows_RN});
  const int64_t groups = (plan->row_count + plan->gram.tile_rows - 1) / plan->gram.tile_rows;
  const int64_t tiles_below = groups * (groups - 1) / 2;

  TF_ADASUM_RETURN_IF_ERROR(LaunchKernel(KernelName(plan->gram.diagonal, plan->type, access),
                                         Blocks(partitions.partition_count * groups), stream,
                                         &rows_RN, &stride, &row_count, &partitions, &results));
  if (tiles_below > 0) {
    TF_ADASUM_RETURN_IF_ERROR(LaunchKernel(KernelName(plan->gram.below, plan->type, access),
                                           Blocks(partitions.partition_count * tiles_below), stream,
                                           &rows_RN, &stride, &row_count, &partitions, &results));
  }
  if (partitions.split_count == 0) return 0;
  const int64_t sums = partitions.split_count * TriangleSize(plan->row_count);
  return LaunchKernel("segment_gram_finish", Blocks((sums + kBlockWarps - 1) / kBlockWarps), stream,
                      &row_count, &partitions, &results);
}

int adasum_segment_weighted_sum(const AdasumPlan* plan, const void* map, const void* rows_RN,
                                int64_t row_stride, const double* coefficients_SR, void* combined_N,
                                void* stream) {
  TF_ADASUM_RETURN_IF_ERROR(CheckCall(plan, ADASUM_SEGMENT_WEIGHTED_SUM, map, nullptr));
  const PartitionMap partitions = plan->partitions->MapAt(map);
  if (partitions.partition_count == 0) return 0;
  if (rows_RN == nullptr || coefficients_SR == nullptr || combined_N == nullptr) {
    return kNullArgument;
  }
  const long long stride = row_stride;
  const int row_count = static_cast<int>(plan->row_count);
  const char* access = AccessMode(plan->type, row_stride, {rows_RN, combined_N});
  return LaunchKernel(KernelName("segment_weighted_sum", plan->type, access),
                      Blocks(partitions.partition_count), stream, &rows_RN, &stride, &row_count,
                      &coefficients_SR, &combined_N, &partitions);
}

const char* adasum_error_string(int error) {
  const char* text = InterfaceErrorString(error);
  return text != nullptr ? text : LauncherErrorString(error);
}
