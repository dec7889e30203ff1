// The primitives: everything that a CUDA kernel of this package may use besides C++ and the cells. One implementation
// is in PTX (device/cuda.h), the other runs on the host (interpreter/primitives.h); kernels compile with both.
// docs/developers/kernels.md explains how to write and test a kernel.
//
//   thread() block() blocks() lane() warp()            ids of a one-dimensional launch; a warp has 32 lanes
//   has_clusters cluster_rank() cluster_size()         whether clusters exist; of this block in its cluster
//   shared_memory()                                    dynamic shared memory; `SharedArena` divides it
//   block_barrier() cluster_barrier()                  barrier of all threads of the block, of the cluster
//   warp_barrier()                                     barrier of a warp: orders its lanes' accesses; shuffles do not
//   init(Mbarrier*, arrivals) init_fence()             a block or cluster barrier must follow before any use
//   expect(Mbarrier*, bytes)                           arrives, and adds to the expected bytes of this phase
//   wait(Mbarrier*, parity)                            waits until the phase of this parity has ended
//   map(pointer, rank) store_async(to, value, on)      another block's shared memory; 8 or 16 bytes, counted on `on`
//   shuffle(x, lane) shuffle_xor(x, mask)              exchange 4-byte values within the warp
//   load_matrices(r, row) load_matrices_transposed     ldmatrix .x4: lane l gives the 16-byte row l % 8 of matrix l / 8
//   mma(c, a, b, S())                                  m16n8k16 for S = bfloat16, float16; m16n8k8 for S = tfloat32
//   nearest_tfloat32(x)                                rounds as mma needs it: to nearest, ties away from zero
//   copy_async<bytes> commit_copies wait_copies<n>     cp.async of 4, 8 or 16 bytes, global to shared
//   load_relaxed store_relaxed                         128 bits at once, by any thread of the device
//   load_acquire store_release                         the same for a 32-bit flag
//   spin_until(condition)                              ends with file and line after RNNKERN_SPIN_LIMIT ns, if set
//   trap()                                             ends the kernel with an error
//
// Warp collectives (shuffles, load_matrices, mma) and barriers are convergence points: all threads must reach them.
#pragma once

#include "device/types.h"

#if defined(__CUDACC__)
#include "device/cuda.h"
#else
#include "interpreter/primitives.h"
#endif

namespace rnnkern::device {

RNNKERN_DEVICE int lane() { return thread() % warp_size; }
RNNKERN_DEVICE int warp() { return thread() / warp_size; }

// Divides shared memory into 16-byte aligned arrays.
struct SharedArena {
  char* base;
  int64_t used = 0;

  template <class T>
  RNNKERN_HOST_DEVICE T* alloc(int64_t count) {
    T* array = reinterpret_cast<T*>(base + used);
    used += (count * int64_t(sizeof(T)) + 15) / 16 * 16;
    return array;
  }
};

// The size of the shared memory that Layout::carve divides, for launch plans.
template <class Layout, class... Sizes>
int64_t bytes_of(Sizes... sizes) {
  SharedArena arena{nullptr};
  Layout::carve(arena, sizes...);
  return arena.used;
}

}  // namespace rnnkern::device
