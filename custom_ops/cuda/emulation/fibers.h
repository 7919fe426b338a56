// Runs each CUDA thread as a fiber. The threads run one at a time, each up to its next barrier. All
// blocks of a cooperative launch run together; blocks of other launches run one after the other.
//
// Shared memory that a kernel has not written holds NaN bytes, so the results show if a kernel
// reads such memory.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#error "The emulation switches fibers in x86-64 assembly."
#endif

// Saves the callee-saved registers on the current stack, stores the stack pointer in *save_to, and
// continues with the registers that were saved on the stack at `load_from`.
extern "C" void tf_adasum_switch_fiber(void** save_to, void* load_from);
__asm__(R"(
.text
.weak tf_adasum_switch_fiber
.type tf_adasum_switch_fiber, @function
tf_adasum_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace tf_adasum::emulation {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 256 << 10;  // reserved; only used pages take memory
constexpr unsigned char kUnwritten = 0xff;

struct Barrier {
  int expected = 0;
  int arrived = 0;
  unsigned generation = 0;
};

struct WarpState {
  Barrier barrier;
  uint64_t exchanged[kLanes];     // values of a shuffle
  unsigned fragments[kLanes][6];  // registers of A (4) and B (2)
};

struct BlockState {
  unsigned index = 0;
  Barrier barrier;
  std::vector<WarpState> warps;
  std::map<const void*, std::vector<unsigned char>> shared_arrays;  // keyed by declaration
  std::unique_ptr<unsigned char[]> dynamic_shared;
};

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct ThreadState {
  unsigned index = 0;
  BlockState* block = nullptr;
  void* stack_pointer = nullptr;
  bool done = false;
  std::vector<Copy> copies;  // started by this thread, not yet done

  WarpState& warp() const { return block->warps[index / kLanes]; }
  unsigned lane() const { return index % kLanes; }
};

struct Index {
  unsigned x;
};

// The values of CUDA's built-in variables for the running thread.
inline Index thread_index, block_index, grid_size;

class Scheduler {
 public:
  ThreadState* running = nullptr;

  void Run(unsigned first_block, unsigned block_count, int threads, int64_t shared_bytes,
           const std::function<void()>& kernel) {
    kernel_ = &kernel;
    std::vector<BlockState> blocks(block_count);
    std::vector<ThreadState> thread_states(static_cast<size_t>(block_count) * threads);
    const size_t stack_bytes = thread_states.size() * kStackBytes;
    char* stacks = static_cast<char*>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) Fail("no memory for stacks");
    for (unsigned b = 0; b < block_count; ++b) {
      BlockState& block = blocks[b];
      block.index = first_block + b;
      block.barrier.expected = threads;
      block.warps.resize(threads / kLanes);
      for (WarpState& warp : block.warps) warp.barrier.expected = kLanes;
      block.dynamic_shared.reset(new unsigned char[shared_bytes]);  // new aligns to 16 bytes
      memset(block.dynamic_shared.get(), kUnwritten, shared_bytes);
      for (int t = 0; t < threads; ++t) {
        ThreadState& thread = thread_states[static_cast<size_t>(b) * threads + t];
        thread.index = t;
        thread.block = &block;
        const size_t number = &thread - thread_states.data();
        thread.stack_pointer = NewStack(stacks + (number + 1) * kStackBytes);
      }
    }
    RunAll(&thread_states);
    munmap(stacks, stack_bytes);
  }

  void WaitAt(Barrier* barrier) {
    const unsigned generation = barrier->generation;
    if (++barrier->arrived == barrier->expected) {
      barrier->arrived = 0;
      ++barrier->generation;
      progress_ = true;
      return;
    }
    while (barrier->generation == generation) Yield();
  }

  // Lets the other threads run.
  void Yield() { tf_adasum_switch_fiber(&running->stack_pointer, scheduler_stack_); }

  void NoteProgress() { progress_ = true; }

  [[noreturn]] static void Fail(const char* reason) {
    fprintf(stderr, "emulation: %s\n", reason);
    abort();
  }

 private:
  // Creates a stack that looks as if the fiber had stopped right before Enter(). It holds six
  // registers, the address of Enter(), and the return address of Enter(), which is never used.
  static void* NewStack(char* top) {
    void** stack = reinterpret_cast<void**>(top) - 2;
    *--stack = nullptr;
    *--stack = reinterpret_cast<void*>(&Enter);
    for (int k = 0; k < 6; ++k) *--stack = nullptr;
    return stack;
  }

  static void Enter();

  // Each warp runs as far as it can before the next warp runs. If a barrier is missing, the warp
  // overtakes the other warps, which exposes the error. The order of the warps is ascending if the
  // index of the first block is even, descending if it is odd.
  void RunAll(std::vector<ThreadState>* threads) {
    const int warp_count = static_cast<int>(threads->size()) / kLanes;
    const bool downwards = threads->front().block->index % 2 == 1;
    for (bool all_done = false; !all_done;) {
      all_done = true;
      bool any_progress = false;
      for (int number = 0; number < warp_count; ++number) {
        const int warp = downwards ? warp_count - 1 - number : number;
        ThreadState* lanes = threads->data() + static_cast<size_t>(warp) * kLanes;
        do {
          progress_ = false;
          for (int lane = 0; lane < kLanes; ++lane) {
            if (!lanes[lane].done) Resume(&lanes[lane]);
          }
          any_progress = any_progress || progress_;
        } while (progress_);
        for (int lane = 0; lane < kLanes; ++lane) all_done = all_done && lanes[lane].done;
      }
      if (!any_progress && !all_done)
        Fail("deadlock: all threads wait at barriers that some threads never reach");
    }
  }

  void Resume(ThreadState* thread) {
    running = thread;
    thread_index.x = thread->index;
    block_index.x = thread->block->index;
    tf_adasum_switch_fiber(&scheduler_stack_, thread->stack_pointer);
  }

  const std::function<void()>* kernel_ = nullptr;
  void* scheduler_stack_ = nullptr;
  bool progress_ = false;
};

inline Scheduler scheduler;

inline void Scheduler::Enter() {
  (*scheduler.kernel_)();
  scheduler.running->done = true;
  scheduler.progress_ = true;
  for (;;) scheduler.Yield();
}

inline void* SharedArray(const void* declaration, size_t bytes) {
  auto& array = scheduler.running->block->shared_arrays[declaration];
  if (array.empty()) array.assign(bytes, kUnwritten);
  return array.data();
}

}  // namespace tf_adasum::emulation
