// All sizes that decide how work is divided: block sizes, thresholds between algorithms, and limits
// for partitions. Host and device code include this file.
#pragma once

namespace tf_adasum {

// ---- blocks ------------------------------------------------------------------------------------

constexpr int kWarpThreads = 32;
constexpr int kBlockThreads = 256;
constexpr int kBlockWarps = kBlockThreads / kWarpThreads;

// Blocks of a streaming kernel per multiprocessor: together 1024 threads with 64 registers each.
constexpr int kStreamingBlocks = 4;

// Partitions of a weighted sum per multiprocessor. No partition waits for another partition, and
// many small partitions that start in order read memory almost sequentially.
constexpr int kWeightedSumPartitions = 32;

// The single-pass kernel has one block per multiprocessor, which uses all shared memory there.
constexpr int kSinglePassThreads = 512;

// Shared memory that the single-pass kernel cannot use as dynamic shared memory: its static arrays
// take 384 bytes, and the driver reserves 1 KiB.
constexpr int kSinglePassStaticBytes = 2048;

// Bytes that one instruction loads if the addresses are multiples of this number.
constexpr int kPacketBytes = 16;

// ---- partition ---------------------------------------------------------------------------------

// The fixed cost of a segment (its reduction and its coefficients), in units of elements.
constexpr long long kSegmentCost = 256;

// One warp processes a shorter segment, a block processes a longer segment.
constexpr long long kSmallSegment = 4096;

// Cuts inside a segment lie at multiples of this, so that they never split a 16-byte packet.
constexpr long long kCutAlignment = 64;

// No cut leaves a piece shorter than this on either side.
constexpr long long kMinPieceLength = 1024;

// The number of partitions is at most the total cost divided by this (rounded up), so small inputs
// use fewer blocks.
constexpr long long kMinPartitionCost = 2048;

// Indices inside a piece are 32 bits wide. So longer partitions are divided, even if this needs
// more blocks than requested.
constexpr long long kMaxPartitionLength = 1LL << 30;

// ---- accuracy ----------------------------------------------------------------------------------

// At most this many products are added in a float before the sum is added to a double. The relative
// error of the float sum is at most 32·2^-24 = 2e-6, typically a tenth of this bound. The sign of
// the error differs from one sum to the next.
constexpr int kMaxFloatProducts = 32;

// ---- Gram matrix -------------------------------------------------------------------------------

// The kernels hold 2, 4, 8 or 16 rows in registers. If there are more rows, the Gram matrix is
// divided into square tiles of kTileRowsFma or kTileRowsMma rows.
constexpr int kMaxRowsFloat32 = 16;
constexpr int kTileRowsFma = 8;
constexpr int kTileRowsMma = 16;

// Blocks of each kernel per multiprocessor. The registers limit this number.
constexpr int kFma2Blocks = 4;
constexpr int kFma4Blocks = 2;
constexpr int kFma8Blocks = 1;
constexpr int kFma8Partitions = 2;  // on sm_90, 127 registers are enough, so two blocks fit
constexpr int kFma16Blocks = 1;
constexpr int kMma8Blocks = 3;
constexpr int kMma16Blocks = 2;
constexpr int kMma16BelowBlocks = 1;

// With fewer rows, most of a tensor core tile would be empty, and too few packets would be in
// flight.
constexpr int kMinRowsMma = 5;

// Tensor cores multiply both 16-bit types from this compute capability on.
constexpr int kMmaCapability = 80;

// Row indices and the product of two row indices must fit into 32 bits.
constexpr int kMaxRows = 32767;

}  // namespace tf_adasum
