// A state in the registers of a warp, and the layers that it goes through. Pairs within a lane are turned where they
// are; where a layer has pairs in two lanes, numbers are exchanged first, so that each lane has whole pairs, and
// exchanged back. No barrier stands between layers.
#pragma once

#include <cstring>

#include "cells/math.h"
#include "orthogonal/cuda/givens_problem.h"

namespace rnnkern::givens {

template <class T>
RNNKERN_DEVICE T from_lane(T x, int lane) {
  if constexpr (sizeof(T) == 4) {
    return device::shuffle(x, lane);
  } else {
    uint32_t words[2];
    std::memcpy(words, &x, 8);
    for (uint32_t& word : words) word = device::shuffle(word, lane);
    std::memcpy(&x, words, 8);
    return x;
  }
}

// Real and imaginary part, or one real, of a value, or of a value and its gradient.
template <class T, int reals>
struct Number {
  T of[reals];
};

template <class T, int reals>
RNNKERN_DEVICE Number<T, reals> from_lane(const Number<T, reals>& x, int lane) {
  Number<T, reals> got;
  RNNKERN_UNROLL
  for (int i = 0; i < reals; ++i) got.of[i] = from_lane(x.of[i], lane);
  return got;
}

// Real by real: a choice between two whole numbers would take their addresses, and so put them into memory.
template <class T, int reals>
RNNKERN_DEVICE Number<T, reals> choose(bool first, const Number<T, reals>& x, const Number<T, reals>& y) {
  Number<T, reals> chosen;
  RNNKERN_UNROLL
  for (int i = 0; i < reals; ++i) chosen.of[i] = first ? x.of[i] : y.of[i];
  return chosen;
}

// (a, b) becomes (c a - s b, s a + c b).
template <class T>
RNNKERN_DEVICE void rotate(SinCos<T> turn, T& a, T& b) {
  const T x = a, y = b;
  a = turn.cosine * x - turn.sine * y;
  b = turn.sine * x + turn.cosine * y;
}

// Rotates a pair back, of values and gradients; returns what its angle's gradient has of it.
template <class T>
RNNKERN_DEVICE T rotate_back(SinCos<T> turn, T& a, T& b, T& grad_a, T& grad_b) {
  const T found = grad_b * a - grad_a * b;
  const SinCos<T> back{turn.cosine, -turn.sine};
  rotate(back, a, b);
  rotate(back, grad_a, grad_b);
  return found;
}

// f(k, a, b) of pairs that are `stride` apart in one lane.
template <class X, int each, class F>
RNNKERN_DEVICE void over_own_pairs(int stride, X (&x)[each], F f) {
  RNNKERN_UNROLL
  for (int s = 1; s < each; s *= 2) {
    if (stride != s) continue;
    RNNKERN_UNROLL
    for (int k = 0; k < each / 2; ++k) f(k, x[2 * k - (k & (s - 1))], x[2 * k - (k & (s - 1)) + s]);
  }
}

// f(k, a, b) of neighbours that begin with a lane's second number: the last of them is the next lane's first. Where
// there is none it is zero, not what another lane has, which may be no number.
template <class X, int each, class F>
RNNKERN_DEVICE void over_shifted_pairs(X (&x)[each], F f) {
  const int lane = device::lane();
  X next = choose(lane < warp_size - 1, from_lane(x[0], lane + 1), X{});
  RNNKERN_UNROLL
  for (int k = 0; k < each / 2 - 1; ++k) f(k, x[2 * k + 1], x[2 * k + 2]);
  f(each / 2 - 1, x[each - 1], next);
  x[0] = choose(lane > 0, from_lane(next, lane - 1), x[0]);
}

// f(k, a, b) of pairs of the same place in two lanes: each of them has the half of the pairs.
template <class X, int each, class F>
RNNKERN_DEVICE void over_far_pairs(int apart, X (&x)[each], F f) {
  const int other = device::lane() ^ apart;
  const bool upper = device::lane() & apart;
  RNNKERN_UNROLL
  for (int k = 0; k < each / 2; ++k) {
    X &low = x[k], &high = x[k + each / 2];
    const X got = from_lane(choose(upper, low, high), other);
    X a = choose(upper, got, low), b = choose(upper, high, got);
    f(k, a, b);
    const X back = from_lane(choose(upper, a, b), other);
    low = choose(upper, back, a);
    high = choose(upper, b, back);
  }
}

template <class X, int each, class F>
RNNKERN_DEVICE void over_pairs(bool butterfly, int stage, X (&x)[each], F f) {
  if (!butterfly) {
    if (stage > 0) {
      over_shifted_pairs(x, f);
    } else {
      RNNKERN_UNROLL
      for (int k = 0; k < each / 2; ++k) f(k, x[2 * k], x[2 * k + 1]);
    }
  } else if (const int stride = 1 << stage; stride < each) {
    over_own_pairs(stride, x, f);
  } else {
    over_far_pairs(stride / each, x, f);
  }
}

// What a lane has of a layer: in registers, or where it is, to be read when it is needed.
template <class T, int parts, int each, bool held>
struct LayerTurns {
  const SinCos<T>* at;
  int64_t to_phases;
  SinCos<T> angles[held ? each / 2 : 1], phases[held && parts == 2 ? each / 2 : 1];

  RNNKERN_DEVICE void load(const Problem<T>& p, int layer) {
    at = p.sincos + int64_t(layer) * (each / 2 * warp_size) + device::lane();
    to_phases = p.packing.phases();
    if constexpr (held) {
      RNNKERN_UNROLL
      for (int k = 0; k < each / 2; ++k) {
        angles[k] = at[k * warp_size];
        if constexpr (parts == 2) phases[k] = at[to_phases + k * warp_size];
      }
    }
  }

  RNNKERN_DEVICE SinCos<T> angle(int k) const { return held ? angles[held ? k : 0] : at[k * warp_size]; }
  RNNKERN_DEVICE SinCos<T> phase(int k) const {
    return held ? phases[held && parts == 2 ? k : 0] : at[to_phases + k * warp_size];
  }
};

// f(layer, stage, its sincos) of all layers, from the last one on or from the first. Where registers are left beside
// `sets` states, the next layer's turns are on their way meanwhile.
template <int sets, bool backwards, int parts, int each, class T, class F>
RNNKERN_DEVICE void over_layers(const Problem<T>& p, F f) {
  constexpr bool ahead = sets * each * parts * int(sizeof(T) / 4) <= most_words / 2;
  using Turns = LayerTurns<T, parts, each, ahead>;
  const int layers = int(p.packing.sizes.layers);
  int layer = backwards ? layers - 1 : 0;
  int stage = backwards ? p.last_stage : 0;
  Turns now, next;
  if (layers > 0) now.load(p, layer);
  RNNKERN_ROLLED
  for (int left = layers; left > 0; --left) {
    const int following = backwards ? layer - 1 : layer + 1;
    if (left > 1) next.load(p, following);
    f(layer, stage, now);
    now = next;
    layer = following;
    if (backwards) {
      stage = (stage > 0 ? stage : p.stages) - 1;
    } else {
      stage = stage + 1 < p.stages ? stage + 1 : 0;
    }
  }
}

// F_L ... F_1 D of a state. A phase turns a number's real part against its imaginary one.
template <class T, int parts, int each>
RNNKERN_DEVICE void rotate_state(const Problem<T>& p, Number<T, parts> (&x)[each]) {
  if constexpr (parts == 2) {
    const SinCos<T>* const diagonal = p.sincos + p.packing.diagonal() + device::lane();
    RNNKERN_UNROLL
    for (int k = 0; k < each; ++k) rotate(diagonal[k * warp_size], x[k].of[0], x[k].of[1]);
  }
  over_layers<1, false, parts, each>(p, [&](int, int stage, const auto& sincos) {
    over_pairs(p.packing.sizes.butterfly, stage, x, [&](int k, Number<T, parts>& a, Number<T, parts>& b) {
      const SinCos<T> angle = sincos.angle(k);
      RNNKERN_UNROLL
      for (int part = 0; part < parts; ++part) rotate(angle, a.of[part], b.of[part]);
      if constexpr (parts == 2) rotate(sincos.phase(k), a.of[0], a.of[1]);
    });
  });
}

// Rows of a sequence on their way through shared memory: outside neighbouring lanes have neighbouring reals, inside a
// lane has its own side by side, with a word between lanes for the sake of the banks.
template <class T, int of_lane>
struct Row {
  static constexpr int size = warp_size * (of_lane + 1);

  // Of real m * warp_size + lane: what depends on m is known when the loop over m is unrolled.
  RNNKERN_DEVICE static int place(int m) {
    const int lane = device::lane();
    return m * warp_size + m * warp_size / of_lane + lane + (of_lane < warp_size ? lane / of_lane : 0);
  }
  RNNKERN_DEVICE static int own() { return device::lane() * (of_lane + 1); }

  // By cp.async; what lies beyond `reals` is left alone.
  RNNKERN_DEVICE static void fetch(T* row, const T* from, int reals) {
    RNNKERN_UNROLL
    for (int m = 0; m < of_lane; ++m) {
      const int real = m * warp_size + device::lane();
      if (real < reals) device::copy_async<int(sizeof(T))>(row + place(m), from + real);
    }
  }

  RNNKERN_DEVICE static void store(const T* row, T* to, int reals) {
    RNNKERN_UNROLL
    for (int m = 0; m < of_lane; ++m) {
      const int real = m * warp_size + device::lane();
      if (real < reals) to[real] = row[place(m)];
    }
  }
};

template <class T, int parts, int each>
RNNKERN_DEVICE void read(Number<T, parts> (&x)[each], const T* row) {
  RNNKERN_UNROLL
  for (int i = 0; i < each * parts; ++i) x[i / parts].of[i % parts] = row[Row<T, each * parts>::own() + i];
}

template <class T, int parts, int each>
RNNKERN_DEVICE void write(const Number<T, parts> (&x)[each], T* row) {
  RNNKERN_UNROLL
  for (int i = 0; i < each * parts; ++i) row[Row<T, each * parts>::own() + i] = x[i / parts].of[i % parts];
}

// The rows of a block in shared memory: of `kinds` tensors those of the next steps, the one that is written, and b.
template <class T, int parts, int each, int kinds>
struct SharedLayout {
  using State = Row<T, parts * each>;
  static constexpr int depth = each * parts * int(sizeof(T) / 4) <= most_words / 2 ? 4 : 2;  // steps

  T *ring, *out, *bias;

  static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena) {
    SharedLayout shared_layout;
    shared_layout.ring = arena.alloc<T>(depth * kinds * State::size);
    shared_layout.out = arena.alloc<T>(State::size);
    shared_layout.bias = arena.alloc<T>(Row<T, each>::size);
    return shared_layout;
  }

  // Zero beyond N from then on.
  RNNKERN_DEVICE void begin(const T* from, int64_t numbers) const {
    for (int i = device::lane(); i < depth * kinds * State::size; i += warp_size) ring[i] = 0;
    for (int i = device::lane(); i < State::size; i += warp_size) out[i] = 0;
    for (int m = 0; m < each; ++m) {
      const int i = m * warp_size + device::lane();
      bias[Row<T, each>::place(m)] = i < numbers ? from[i] : T(0);
    }
    device::block_barrier();
  }

  RNNKERN_DEVICE T* of_step(int place, int kind) const {
    return ring + ((place & (depth - 1)) * kinds + kind) * State::size;
  }

  // A row of (B, C) through `out`, which nobody may be reading.
  RNNKERN_DEVICE void load(Number<T, parts> (&x)[each], const T* from, int reals) const {
    State::fetch(out, from, reals);
    device::commit_copies();
    device::wait_copies<0>();
    device::block_barrier();
    read(x, out);
  }

  // And back.
  RNNKERN_DEVICE void give(const Number<T, parts> (&x)[each], T* to, int reals) const {
    write(x, out);
    device::block_barrier();
    State::store(out, to, reals);
  }
};

}  // namespace rnnkern::givens
