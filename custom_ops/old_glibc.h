// Include this file together with <dlfcn.h>. A library that is linked on a newer system can then be
// loaded with glibc 2.28, the version of RHEL 8 and manylinux_2_28. tests/wheels/test_wheel.py
// checks this.
#pragma once

#include <new>

// glibc 2.34 moved these functions from libdl to libc, with a new symbol version. The first
// symbol version exists in both libraries.
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

// glibc 2.32 added this variable. libstdc++ omits atomic instructions while it is true, because the
// process then has a single thread. The definition here is private to the library and always false.
extern "C" {
__attribute__((visibility("hidden"), weak)) char __libc_single_threaded = 0;
}

// libstdc++ 11 added this function. std::vector calls it if the compiler cannot prove that a size
// is small enough.
namespace std {
__attribute__((weak, noreturn)) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std
