// Random draws of zoneout and recurrent dropout. No draw is stored: it is a function of the seed and of its position,
// Philox4x32-10 (Salmon et al. 2011), so that the backward pass and every device repeat the same draws. One call of the
// generator gives the draws of four units of a row: unit n of each quarter, n < quarter(B).
#pragma once

#include <cstdint>

#include "cells/math.h"
#include "cells/strip.h"

namespace rnnkern {

struct Noise {
  double zoneout[most_states];  // for each state tensor, the probability that a unit keeps its old value
  double dropout;               // the probability that a unit of h is zero in the input of R
  const int64_t* seed;          // on the device; null: no draws, zoneout uses its expectation and dropout is off

  bool any() const {
    for (const double rate : zoneout)
      if (rate > 0) return true;
    return dropout > 0;
  }
};

// The streams of a seed: dropout draws once, at step 0; zoneout of each state tensor draws at every step.
constexpr uint32_t dropout_stream = 2;
RNNKERN_CELL uint32_t zoneout_stream(int state) { return uint32_t(state) + (uint32_t(state) >= dropout_stream); }

RNNKERN_CELL void philox(uint64_t seed, uint32_t (&x)[4]) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#if !defined(__CUDACC__)  // which unrolls unasked, and knows no such pragma
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * x[0], b = uint64_t(0xCD9E8D57u) * x[2];
    const uint32_t x0 = uint32_t(b >> 32) ^ x[1] ^ k0, x2 = uint32_t(a >> 32) ^ x[3] ^ k1;
    x[1] = uint32_t(b), x[3] = uint32_t(a), x[0] = x0, x[2] = x2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

RNNKERN_CELL int64_t quarter(int64_t units) { return (units + 3) / 4; }

// A draw below this threshold is a hit. The rate is in [0, 1).
RNNKERN_CELL uint32_t threshold(double rate) { return uint32_t(rate * 4294967296.0); }

}  // namespace rnnkern
