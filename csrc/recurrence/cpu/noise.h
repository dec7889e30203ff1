// Zoneout, `keep` and dropout for a thread's sequences and units. kernels.h includes this file once per SIMD level.
#pragma once

#include "cpu/workspace.h"
#include "recurrence/cpu/rows.h"
#include "recurrence/cpu/sequence.h"

namespace rnnkern {
namespace {

// For units begin..end-1 of sequence b at step t: `hit` if the draw is below the threshold, otherwise `miss`.
template <class T>
void draw(uint64_t seed, uint32_t below, uint32_t stream, int64_t t, int64_t b, int64_t units, int64_t begin,
          int64_t end, T hit, T miss, T* row) {
  constexpr int lanes = 16;
  const int64_t part = quarter(units), first = begin / part, last = (end - 1) / part;
  for (int64_t n = 0; n < part; n += lanes) {
    uint32_t words[4][lanes];
    for (int l = 0; l < lanes; ++l) {
      uint32_t x[4] = {uint32_t(n + l), uint32_t(b), uint32_t(t), stream};
      philox(seed, x);
      for (int w = 0; w < 4; ++w) words[w][l] = x[w];
    }
    for (int64_t w = first; w <= last; ++w) {
      const int64_t unit = w * part + n;
      const int64_t from = larger(begin - unit, 0), to = smaller(smaller(end - unit, part - n), lanes);
      for (int64_t l = from; l < to; ++l) row[unit + l] = words[w][l] < below ? hit : miss;
    }
  }
}

// Zoneout of one state tensor, or its mean with the weights of `keep`.
template <class T>
struct Zoneout {
  using V = Vec<T>;

  T rate = 0;
  uint64_t seed = 0;
  uint32_t below = 0, stream = 0;
  int64_t units = 0;
  T* kept = nullptr;        // (B, units) of a step: 1 where the old value is kept; null if the expectation is used
  mutable Keep<T> given{};  // of one step: the weight of sequence b at b*row takes the place of `rate`

  Zoneout() = default;
  Zoneout(const Noise& noise, const Keep<T>& keep, int state, int64_t batch, int64_t units, Workspace<T>& workspace)
      : rate(keep.values ? T(1) : T(noise.zoneout[state])),  // `on` must be true
        below(threshold(noise.zoneout[state])),
        stream(zoneout_stream(state)),
        units(units) {
    if (keep.values) return;
    if (rate == 0 || !noise.seed) return;
    seed = uint64_t(*noise.seed);
    kept = workspace.alloc(batch * units);
  }

  RNNKERN_INLINE bool on() const { return __builtin_expect(rate > 0, 0); }

  // Draws for some units of a step.
  void draw_step(int64_t t, int64_t row0, int64_t row1, int64_t begin, int64_t end) const {
    if (!kept || begin >= end) return;
    for (int64_t b = row0; b < row1; ++b)
      draw(seed, below, stream, t, b, units, begin, end, T(1), T(0), kept + b * units);
  }

  // The weight of the old value.
  RNNKERN_INLINE V weight(int64_t b, int64_t unit, int64_t lanes) const {
    return kept ? V::load(kept + b * units + unit, lanes) : V(mean_weight(b));
  }
  RNNKERN_INLINE V mix(V old, V next, int64_t b, int64_t unit, int64_t lanes) const {
    if (kept) return select(weight(b, unit, lanes) == V(0), next, old);
    const T weight = mean_weight(b);
    if (weight == 0) return next;  // also where the other value is not finite
    if (weight == 1) return old;
    return V(weight) * old + V(T(1) - weight) * next;
  }
  RNNKERN_INLINE T mean_weight(int64_t b) const { return given.values ? given.values[b * given.row] : rate; }
};

// Zoneout of all state tensors of a cell.
template <class T>
struct Zoneouts {
  Zoneout<T> of[most_states];
  int states;
  Keep<T> keep;

  Zoneouts(const Noise& noise, const Keep<T>& keep, const CellNumbers& cell, int64_t batch, const Weights<T>& weights,
           Workspace<T>& workspace)
      : states(cell.states), keep(keep) {
    for (int s = 0; s < states; ++s)
      of[s] = Zoneout<T>(noise, keep, s, batch, s ? weights.hidden : weights.width, workspace);
  }

  bool any() const {
    for (int s = 0; s < states; ++s)
      if (of[s].on()) return true;
    return false;
  }

  RNNKERN_INLINE const Zoneout<T>& operator[](int state) const { return of[state]; }

  // The weights of `keep` at step t, or a thread's draws: for the columns of h and the units that it computes, or for
  // whole rows if they are normalised.
  void draw_step(const CellNumbers& cell, const WorkRange& share, int64_t t, int64_t row1, Units columns,
                 Units units) const {
    for (int s = 0; keep.values && s < states; ++s) of[s].given = {keep.values + t * keep.step, 0, keep.row};
    int64_t row0 = share.row0;
    if (cell.normalised) {
      row0 = share.copy0, row1 = smaller(share.copy1, row1);
      columns = units = {0, of[0].units};
    }
    for (int s = 0; s < states; ++s) {
      const Units mine = s ? units : columns;
      of[s].draw_step(t, row0, row1, mine.begin, mine.end);
    }
  }
};

// Dropout on the input of R (recurrent dropout, one mask per sequence).
template <class T>
struct Dropout {
  using V = Vec<T>;

  T* mask = nullptr;  // (B, P): 0 or 1 / (1 - rate); null where nothing is dropped
  int64_t units;

  Dropout(const Noise& noise, int64_t batch, int64_t units, Workspace<T>& workspace) : units(units) {
    if (noise.dropout > 0) mask = workspace.alloc(batch * units);
  }

  RNNKERN_INLINE bool on() const { return __builtin_expect(mask != nullptr, 0); }

  void draw_all(const Noise& noise, int64_t row0, int64_t row1) const {
    if (!mask) return;
    for (int64_t b = row0; b < row1; ++b)
      draw(uint64_t(*noise.seed), threshold(noise.dropout), dropout_stream, 0, b, units, 0, units, T(0),
           T(1 / (1 - noise.dropout)), mask + b * units);
  }

  RNNKERN_INLINE V apply(V h, int64_t b, int64_t unit, int64_t lanes) const {
    return on() ? h * V::load(mask + b * units + unit, lanes) : h;
  }
};

// The h of sequence b after dropout, as R multiplies it.
template <class F, class T>
void drop(const Dropout<T>& dropout, int64_t b, Rows<T> h, F* to) {
  as_stored(h, [&](const auto* from) {
    for_vectors<Vec<T>>(0, dropout.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      store(dropout.apply(load(from + unit, lanes), b, unit, lanes), to + unit, lanes);
    });
  });
}

}  // namespace
}  // namespace rnnkern
