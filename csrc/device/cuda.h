// The primitives in PTX; device/device.h lists them. Clusters, mbarriers and store_async need sm_90. On older devices
// kernels that use them trap, and no launch plan selects them.
#pragma once

#include "device/types.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RNNKERN_HAS_CLUSTERS 1
#else
#define RNNKERN_HAS_CLUSTERS 0
#endif

// What a wait that takes too long reports: with RNNKERN_SPIN_LIMIT (ns) the driver prints its file and line. It is the
// function behind C's assert, whose message the driver prints although the kernel ends with an error.
#if defined(RNNKERN_SPIN_LIMIT)
extern "C" __device__ __attribute__((noreturn)) void __assertfail(const char* what, const char* file, unsigned line,
                                                                  const char* function, size_t character_size);
#endif

namespace rnnkern::device {

using Mbarrier = uint64_t;

// An address in the shared memory of a block of the cluster.
struct Remote {
  uint32_t address;
};

RNNKERN_DEVICE void trap() { asm volatile("trap;"); }

RNNKERN_DEVICE int thread() { return int(threadIdx.x); }
RNNKERN_DEVICE int block() { return int(blockIdx.x); }
RNNKERN_DEVICE int blocks() { return int(gridDim.x); }

RNNKERN_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

RNNKERN_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

RNNKERN_DEVICE void block_barrier() { __syncthreads(); }
RNNKERN_DEVICE void warp_barrier() { __syncwarp(); }

// Where a wait stands, which costs nothing where nothing reports it.
struct Place {
  const char* file;
  unsigned line;
  RNNKERN_DEVICE static Place current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

template <class F>
RNNKERN_DEVICE void spin_until(F condition, [[maybe_unused]] Place place = Place::current()) {
#if defined(RNNKERN_SPIN_LIMIT)
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  while (!condition()) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - start > uint64_t(RNNKERN_SPIN_LIMIT)) __assertfail("stuck", place.file, place.line, "a wait", 1);
  }
#else
  while (!condition()) {
  }
#endif
}

// ---- clusters

constexpr bool has_clusters = RNNKERN_HAS_CLUSTERS;

#if RNNKERN_HAS_CLUSTERS

RNNKERN_DEVICE int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

RNNKERN_DEVICE int cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return int(size);
}

RNNKERN_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

RNNKERN_DEVICE void init(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes the effect of `init` visible to the other blocks of the cluster and to store_async.
RNNKERN_DEVICE void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

RNNKERN_DEVICE void expect(Mbarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// The acquire has cluster scope, with which each warp also invalidates its L1 lines at every wait. store_async writes
// into the block's own shared memory, so "cta" may suffice.
RNNKERN_DEVICE void wait(Mbarrier* barrier, int parity, Place place = Place::current()) {
  const uint32_t address = shared_address(barrier);
  spin_until(
      [=] {
        uint32_t done;
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
        return done != 0;
      },
      place);
}

RNNKERN_DEVICE Remote map(const void* pointer, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
  return {address};
}

RNNKERN_DEVICE void store_async(Remote to, Word8 value, Remote on) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to.address),
      "r"(value.x), "r"(value.y), "r"(on.address)
      : "memory");
}

RNNKERN_DEVICE void store_async(Remote to, Word16 value, Remote on) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   to.address),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(on.address)
               : "memory");
}

#else

RNNKERN_DEVICE int cluster_rank() { return 0; }
RNNKERN_DEVICE int cluster_size() { return 1; }
RNNKERN_DEVICE void cluster_barrier() { trap(); }
RNNKERN_DEVICE void init(Mbarrier*, int) { trap(); }
RNNKERN_DEVICE void init_fence() { trap(); }
RNNKERN_DEVICE void expect(Mbarrier*, int) { trap(); }
RNNKERN_DEVICE void wait(Mbarrier*, int) { trap(); }
RNNKERN_DEVICE Remote map(const void*, int) {
  trap();
  return {};
}
RNNKERN_DEVICE void store_async(Remote, Word8, Remote) { trap(); }
RNNKERN_DEVICE void store_async(Remote, Word16, Remote) { trap(); }

#endif

// ---- warps

template <class T>
RNNKERN_DEVICE T shuffle(T x, int from) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(0xffffffffu, x, from);
}

template <class T>
RNNKERN_DEVICE T shuffle_xor(T x, int mask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

RNNKERN_DEVICE void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

RNNKERN_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

#define RNNKERN_MMA(Storage, instruction)                                                           \
  RNNKERN_DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Storage) { \
    asm(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                            \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                        \
  }
RNNKERN_MMA(bfloat16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
RNNKERN_MMA(float16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
RNNKERN_MMA(tfloat32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef RNNKERN_MMA

RNNKERN_DEVICE float nearest_tfloat32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// ---- copies

template <int bytes>
RNNKERN_DEVICE void copy_async(void* to, const void* from) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(bytes)
                 : "memory");
  }
}

RNNKERN_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most n of this thread's groups of copies are incomplete.
template <int n>
RNNKERN_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// ---- words and flags in global memory

RNNKERN_DEVICE Word16 load_relaxed(const Word16* from) {
  uint64_t low, high;
  asm volatile("{\n.reg .b128 q;\nld.relaxed.gpu.global.b128 q, [%2];\nmov.b128 {%0, %1}, q;\n}"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
  return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}

RNNKERN_DEVICE void store_relaxed(Word16* to, Word16 x) {
  const uint64_t low = x.x | uint64_t(x.y) << 32, high = x.z | uint64_t(x.w) << 32;
  asm volatile("{\n.reg .b128 q;\nmov.b128 q, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], q;\n}" ::"l"(to), "l"(low),
               "l"(high)
               : "memory");
}

RNNKERN_DEVICE uint32_t load_acquire(const uint32_t* from) {
  uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

RNNKERN_DEVICE void store_release(uint32_t* to, uint32_t x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

}  // namespace rnnkern::device
