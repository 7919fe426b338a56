// Huge pages for large results.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace tf_adasum {

// Requests huge pages for a large result. The operating system clears and maps new memory page by
// page at the first write. With pages of 4 KiB, this takes several times as long as the arithmetic.
// Linux provides pages of 2 MiB if a program requests them (transparent huge pages, mode
// "madvise"). If huge pages are not available, this function has no effect.
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
