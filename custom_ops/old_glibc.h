// Include this beside <dlfcn.h>: a library that is linked here can then be loaded by glibc 2.28, the one of
// RHEL 8 and of manylinux_2_28. tests/unit/ops/test_symbols.py checks it.
#pragma once

#include <new>

// glibc 2.34 has moved these from libdl into libc, under a new version. Their first version is in both.
#if defined(__x86_64__)
#define TF_ADASUM_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define TF_ADASUM_FIRST_GLIBC "GLIBC_2.17"
#endif
#ifdef TF_ADASUM_FIRST_GLIBC
#define TF_ADASUM_FIRST_VERSION_OF(NAME) \
  __asm__(".symver " #NAME "," #NAME "@" TF_ADASUM_FIRST_GLIBC)
TF_ADASUM_FIRST_VERSION_OF(dladdr);
TF_ADASUM_FIRST_VERSION_OF(dlerror);
TF_ADASUM_FIRST_VERSION_OF(dlopen);
TF_ADASUM_FIRST_VERSION_OF(dlsym);
#undef TF_ADASUM_FIRST_VERSION_OF
#endif

// libstdc++ leaves atomic instructions out where glibc 2.32 says that there is a single thread. This one, of
// the library's own, never says so.
extern "C" {
__attribute__((visibility("hidden"), weak)) char __libc_single_threaded = 0;
}

// Vectors call this of libstdc++ 11 where they cannot tell that a size is small enough.
namespace std {
__attribute__((weak, noreturn)) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std
