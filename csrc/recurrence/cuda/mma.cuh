// What all products on tensor cores share: the operand type M and the fragments of the weights. M is bfloat16 or
// float16, as tensors are stored; float, in cluster kernels; or tfloat32, to which float is rounded.
#pragma once

#include <cstring>
#include <type_traits>

#include "recurrence/cuda/problem.h"

namespace rnnkern {

// Elements along the inner dimension: of a fragment, of 16 bytes of it, and of a register.
template <class M>
struct Along {
  static constexpr int size = int(sizeof(Stored<M>)), fragment = 32 / size, word = 16 / size, one = 4 / size;
};

template <class S>
RNNKERN_DEVICE uint32_t bits_of(S x) {
  if constexpr (sizeof(S) == 2) {
    return x.bits;
  } else {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
  }
}

template <class S>
RNNKERN_DEVICE uint32_t pair(S low, S high) {
  return bits_of(low) | bits_of(high) << 16;
}

// A pair of this lane's 16-bit value and that of the lane that differs in bit `mask`.
RNNKERN_DEVICE uint32_t pair_of_lanes(uint32_t bits, int mask) {
  const uint32_t other = device::shuffle_xor(bits, mask);
  return device::lane() & mask ? other | bits << 16 : bits | other << 16;
}

// Rounds x to the operand type.
template <class M>
RNNKERN_DEVICE Stored<M> multiplied(float x) {
  if constexpr (std::is_same_v<M, device::tfloat32>) {
    return device::nearest_tfloat32(x);
  } else {
    return device::narrow<M>(x);
  }
}

// A register of a fragment, with elements at(0) and, in 16-bit types, at(1).
template <class M, class At>
RNNKERN_DEVICE uint32_t fragment_register(At at) {
  if constexpr (Along<M>::one == 2) {
    return pair(at(0), at(1));
  } else {
    return bits_of(multiplied<M>(at(0)));
  }
}

// Products of fragments are added in independent chains, which hides their latency: with `enough` tiles one is enough.
RNNKERN_HOST_DEVICE constexpr int mma_chains(int tiles, int depth, int enough = 4) {
  const int wanted = tiles >= enough ? 1 : tiles >= 2 ? 2 : 4;
  return wanted < depth ? wanted : depth;
}

template <class S>
RNNKERN_DEVICE void mma(float (&c)[4], device::Word16 word, const uint32_t (&b)[2], S) {
  const uint32_t a[4] = {word.x, word.y, word.z, word.w};
  device::mma(c, a, b, S());
}

template <int chains, int tiles>
RNNKERN_DEVICE void add_chains(float (&c)[chains][tiles][4]) {
  RNNKERN_UNROLL
  for (int m = 0; m < tiles; ++m) {
    RNNKERN_UNROLL
    for (int chain = 1; chain < chains; ++chain) {
      RNNKERN_UNROLL
      for (int i = 0; i < 4; ++i) c[0][m][i] += c[chain][m][i];
    }
  }
}

// A thread's part of the fragments of its warp: as many in registers as the rest of the kernel allows, and the others
// in shared memory, where each thread reads its own 16 bytes.
template <int count, int threads, int registers = 24>
struct MmaWeights {
  static constexpr int kept = count < registers ? count : registers;
  static constexpr int batch = count % 4 == 0 ? 4 : count % 2 == 0 ? 2 : count % 3 == 0 ? 3 : 1;
  static constexpr int64_t shared_size = int64_t(count - kept) * threads * 16;

  uint32_t a[kept][4] = {};
  device::Word16* rest;

  // Fragments in registers and in shared memory alternate, so that loads from shared memory overlap with products of
  // registers. before(n) of the first n fragments are in registers; fragment nth(m) is the m-th of these.
  RNNKERN_DEVICE static constexpr int before(int n) { return n * kept / count; }
  RNNKERN_DEVICE static constexpr int nth(int m) { return ((m + 1) * count - 1) / kept; }

  // `weights(n, i)` is register i of fragment n. The loop is not unrolled, and comparisons select the registers: if it
  // were unrolled, the compiler would compute all addresses first and run out of registers.
  template <class Weights>
  RNNKERN_DEVICE void load(char* memory, Weights weights) {
    rest = reinterpret_cast<device::Word16*>(memory) + device::thread();
    RNNKERN_ROLLED
    for (int n = 0; n < count; n += batch) {
      uint32_t loaded[batch][4];
      RNNKERN_UNROLL
      for (int m = 0; m < batch; ++m) {
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) loaded[m][i] = weights(n + m, i);
      }
      RNNKERN_UNROLL
      for (int here = 0; here < kept; ++here) {
        RNNKERN_UNROLL
        for (int i = 0; i < 4; ++i) {
          a[here][i] = nth(here) / batch * batch == n ? loaded[nth(here) % batch][i] : a[here][i];
        }
      }
      RNNKERN_UNROLL
      for (int m = 0; m < batch; ++m) {
        if (before(n + m) == before(n + m + 1)) {
          rest[(n + m - before(n + m)) * threads] = {loaded[m][0], loaded[m][1], loaded[m][2], loaded[m][3]};
        }
      }
    }
  }

  template <class S>
  RNNKERN_DEVICE void multiply(float (&c)[4], int n, const uint32_t (&b)[2], S) const {
    if (before(n) < before(n + 1)) {
      device::mma(c, a[before(n) < kept ? before(n) : 0], b, S());
    } else {
      mma(c, rest[(n - before(n)) * threads], b, S());
    }
  }

  // Sets c[0][m] to the sum over k = from..to-1 of fragment nth(k, m) times fragment k of the operand, of which lane l
  // reads row l % 8. `c` is zero before.
  template <class M, int from, int to, int chains, int tiles, class S, class Nth>
  RNNKERN_DEVICE void multiply_all(float (&c)[chains][tiles][4], const S* x, int pitch, Nth nth) const {
    const S* row = x + (device::lane() % 8) * pitch;
    RNNKERN_UNROLL
    for (int k = from; k < to; k += 2) {
      const bool both = k + 1 < to;
      uint32_t b[4];
      device::load_matrices(b, row + Along<M>::fragment * k + Along<M>::word * (device::lane() / 8 % (both ? 4 : 2)));
      RNNKERN_UNROLL
      for (int half = 0; half < (both ? 2 : 1); ++half) {
        const uint32_t fragment[2] = {b[2 * half], b[2 * half + 1]};
        RNNKERN_UNROLL
        for (int m = 0; m < tiles; ++m) multiply(c[(k + half) % chains][m], nth(k + half, m), fragment, M());
      }
    }
    add_chains(c);
  }
};

}  // namespace rnnkern
