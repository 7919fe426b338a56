// A packet is the data that one instruction loads or stores. It has 16 bytes in the "vector"
// kernels, which require aligned addresses, and one element in the "scalar" kernels. Both kinds of
// kernels use the same loops.
#pragma once

#include "element_types.cuh"
#include "thresholds.h"

namespace tf_adasum {

enum class Memory {
  kGlobalStreaming,  // global memory that is not needed again
  kGlobalReused,     // global memory that the next pass reads again
  kShared,
};

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Packet {
  T elements[kWidth];
};

template <typename T, int kWidth>
__device__ __forceinline__ Packet<T, kWidth> ZeroPacket() {
  Packet<T, kWidth> packet;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) packet.elements[k] = T{};
  return packet;
}

// `from` points to the first element of the packet. The address is a multiple of the packet's size.
template <Memory kMemory, int kWidth, typename T>
__device__ __forceinline__ Packet<T, kWidth> LoadPacket(const T* from) {
  Packet<T, kWidth> packet;
  if constexpr (sizeof(packet) == sizeof(uint4)) {
    const uint4* address = reinterpret_cast<const uint4*>(from);
    uint4 bits;
    if constexpr (kMemory == Memory::kGlobalStreaming) {
      bits = LoadOnce(address);
    } else if constexpr (kMemory == Memory::kGlobalReused) {
      bits = LoadThroughL2(address);
    } else {
      bits = *address;
    }
    memcpy(&packet, &bits, sizeof(packet));
  } else {
    static_assert(kWidth == 1, "a packet is 16 bytes or one element");
    packet.elements[0] = *from;
  }
  return packet;
}

template <typename T, int kWidth>
__device__ __forceinline__ void StorePacket(T* to, const Packet<T, kWidth>& packet) {
  if constexpr (sizeof(packet) == sizeof(uint4)) {
    uint4 bits;
    memcpy(&bits, &packet, sizeof(packet));
    StoreOnce(reinterpret_cast<uint4*>(to), bits);
  } else {
    *to = packet.elements[0];
  }
}

// Divides [begin, end) into the packets that lie completely inside the range, and the end elements:
// the remaining elements at both ends, fewer than 2 kWidth. If no packet lies completely inside,
// all elements are end elements.
//
// Example: kWidth = 4, [3, 13): the element 3, the packets 4..7 and 8..11, the element 12.
template <int kWidth>
struct PacketRange {
  __device__ __forceinline__ PacketRange(int64 range_begin, int64 range_end) : begin(range_begin) {
    const int64 first = (range_begin + kWidth - 1) / kWidth * kWidth;
    const int64 last = range_end / kWidth * kWidth;
    const bool has_packets = first < last;
    packets_begin = has_packets ? first : range_end;
    packet_count = has_packets ? static_cast<int>((last - first) / kWidth) : 0;
    head_count = static_cast<int>(packets_begin - range_begin);
    end_count = head_count + (has_packets ? static_cast<int>(range_end - last) : 0);
  }

  __device__ __forceinline__ int64 Packet(int k) const {
    return packets_begin + static_cast<int64>(k) * kWidth;
  }

  // Returns the k-th end element, k < end_count. There are fewer end elements than threads in a
  // warp.
  __device__ __forceinline__ int64 EndElement(int k) const {
    return k < head_count ? begin + k : Packet(packet_count) + (k - head_count);
  }

  int64 begin;
  int64 packets_begin;  // first element of the first packet
  int packet_count;
  int head_count;
  int end_count;
};

}  // namespace tf_adasum
