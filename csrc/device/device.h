// The primitive layer: all that a CUDA kernel of this package may use beside C++ and the cells. One implementation is
// PTX (device/cuda.h), the other runs on the host (interpreter/primitives.h), and kernels compile with either. The list
// is closed; what is not here is not used. docs/kernels.md explains how to write and test a kernel.
//
//   thread() block() blocks() lane() warp()            ids of a one-dimensional launch; a warp has 32 lanes
//   has_clusters cluster_rank() cluster_size()         whether there are any; of this block in its cluster
//   shared_memory()                                    the dynamic shared memory; `SharedArena` cuts it
//   block_barrier() cluster_barrier()                  all threads of the block or of the cluster
//   init(Mbarrier*, arrivals) init_fence()             then a block or cluster barrier, before any use
//   expect(Mbarrier*, bytes)                           arrives, and announces bytes of this phase
//   wait(Mbarrier*, parity)                            until the phase of this parity has ended
//   map(pointer, rank) store_async(to, value, on)      another block's shared memory; 8 or 16 bytes, counted on `on`
//   shuffle(x, lane) shuffle_xor(x, mask)              of 4-byte values, the whole warp
//   load_matrices(r, row) load_matrices_transposed     ldmatrix .x4: lane l gives the 16-byte row l % 8 of matrix l / 8
//   mma(c, a, b, S())                                  m16n8k16 for S = bfloat16, float16; m16n8k8 for S = tfloat32
//   nearest_tfloat32(x)                                what mma multiplies of a float: ties go away from zero
//   copy_async<bytes> commit_copies wait_copies<n>     cp.async of 4, 8 or 16 bytes, global to shared
//   load_relaxed store_relaxed                         128 bits at once, by any thread of the device
//   load_acquire store_release                         a 32-bit flag, likewise
//   spin_until(condition)                              bounded by the clock where RNNKERN_SPIN_LIMIT (ns) is set
//   trap()                                             ends the kernel with an error
//
// Warp collectives (shuffles, load_matrices, mma) and barriers are convergence points: every lane must come.
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

// Cuts shared memory into arrays, each on a 16-byte boundary. Launch plans count with the same class: from a null base
// `used` is the size.
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

}  // namespace rnnkern::device
