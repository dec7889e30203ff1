// A state in the registers of a warp, and its layers. Pairs within a lane are rotated in place. In layers with pairs
// across two lanes, lanes first exchange numbers, so that each has whole pairs, and exchange them back. Barriers are
// not needed.
#pragma once

#include "cells/math.h"
#include "device/sums.h"
#include "orthogonal/cuda/givens_problem.h"

namespace rnnkern::givens {

// A value, real or complex, or a value and its gradient.
template <class T, int reals>
struct Number {
  T of[reals];
};

template <class X>
RNNKERN_DEVICE X from_lane(const X& x, int lane) {
  return device::by_words(x, [=](uint32_t word) { return device::shuffle(word, lane); });
}

template <class X, int each>
RNNKERN_DEVICE void clear(X (&x)[each]) {
  RNNKERN_UNROLL
  for (X& number : x) number = {};
}

// Selects element by element: a choice between two structs would take their addresses and put them into local memory.
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

// Rotates a pair of values and gradients back; returns its contribution to the angle's gradient.
template <class T>
RNNKERN_DEVICE T rotate_back(SinCos<T> turn, T& a, T& b, T& grad_a, T& grad_b) {
  const T found = grad_b * a - grad_a * b;
  const SinCos<T> back{turn.cosine, -turn.sine};
  rotate(back, a, b);
  rotate(back, grad_a, grad_b);
  return found;
}

// Calls f(k, a, b) for pairs at distance `stride` within a lane.
template <class X, int each, class F>
RNNKERN_DEVICE void over_own_pairs(int stride, X (&x)[each], F f) {
  RNNKERN_UNROLL
  for (int s = 1; s < each; s *= 2) {
    if (stride != s) continue;
    RNNKERN_UNROLL
    for (int k = 0; k < each / 2; ++k) f(k, x[2 * k - (k & (s - 1))], x[2 * k - (k & (s - 1)) + s]);
  }
}

// Calls f(k, a, b) for neighbouring pairs that begin at a lane's second number. The last pair includes the next lane's
// first number or, in the last lane, zero: another lane's number could be NaN.
template <class X, int each, class F>
RNNKERN_DEVICE void over_shifted_pairs(X (&x)[each], F f) {
  const int lane = device::lane();
  X next = choose(lane < warp_size - 1, from_lane(x[0], lane + 1), X{});
  RNNKERN_UNROLL
  for (int k = 0; k < each / 2 - 1; ++k) f(k, x[2 * k + 1], x[2 * k + 2]);
  f(each / 2 - 1, x[each - 1], next);
  x[0] = choose(lane > 0, from_lane(next, lane - 1), x[0]);
}

// Calls f(k, a, b) for pairs at the same position of two lanes, each of which processes half of the pairs.
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

// A lane's cosines and sines of a layer: in registers, or read from memory when needed.
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

// Calls f(layer, stage, its sincos) for all layers, in order or backwards. If `sets` states leave enough registers, the
// next layer's sincos are loaded ahead.
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

// Applies F_L ... F_1 D to a state. A phase rotates the real against the imaginary part of a number.
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

// Rows of a sequence in shared memory. They are copied with neighbouring lanes on neighbouring elements; in shared
// memory the elements of a lane are contiguous, with a word between lanes to avoid bank conflicts.
template <class T, int of_lane>
struct Row {
  static constexpr int size = warp_size * (of_lane + 1);

  // The position of element m * warp_size + lane. Its dependence on m is constant in unrolled loops.
  RNNKERN_DEVICE static int place(int m) {
    const int lane = device::lane();
    return m * warp_size + m * warp_size / of_lane + lane + (of_lane < warp_size ? lane / of_lane : 0);
  }
  RNNKERN_DEVICE static int own() { return device::lane() * (of_lane + 1); }

  // Starts copies with cp.async; elements from `reals` on are not changed.
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

// The shared memory of a block: the rows of `kinds` tensors for the next steps, the row that is written, and b.
template <class T, int parts, int each, int kinds>
struct SharedLayout {
  using State = Row<T, parts * each>;
  static constexpr int depth = each * parts * int(sizeof(T) / 4) <= most_words / 2 ? 4 : 2;  // steps

  T *ring, *out, *bias;

  // Bytes of shared memory, with this number of sums.
  static int64_t bytes(int64_t sums = 0) {
    device::SharedArena arena{nullptr};
    carve(arena);
    arena.alloc<T>(sums);
    return arena.used;
  }

  static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena) {
    SharedLayout shared_layout;
    shared_layout.ring = arena.alloc<T>(depth * kinds * State::size);
    shared_layout.out = arena.alloc<T>(State::size);
    shared_layout.bias = arena.alloc<T>(Row<T, each>::size);
    return shared_layout;
  }

  // Clears the buffers, so that elements from N on are zero, and loads b.
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

  // Loads a row of (B, C) through `out`, which no thread may be reading.
  RNNKERN_DEVICE void load(Number<T, parts> (&x)[each], const T* from, int reals) const {
    State::fetch(out, from, reals);
    device::commit_copies();
    device::wait_copies<0>();
    device::block_barrier();
    read(x, out);
  }

  // Stores a row of (B, C) through `out`.
  RNNKERN_DEVICE void give(const Number<T, parts> (&x)[each], T* to, int reals) const {
    write(x, out);
    device::block_barrier();
    State::store(out, to, reals);
  }
};

}  // namespace rnnkern::givens
