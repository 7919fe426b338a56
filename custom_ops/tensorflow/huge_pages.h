// Large pages for large results.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace tf_adasum {

// Asks for large pages for a large result. Memory fresh from the operating system is cleared and
// mapped page by page when it is first written, and with pages of 4 KiB that takes several times as
// long as the arithmetic. Linux gives pages of 2 MiB to those who ask (transparent huge pages, mode
// "madvise"). Where it does not, nothing happens.
inline void PreferHugePages(void* begin, int64_t size) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + size) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

}  // namespace tf_adasum
