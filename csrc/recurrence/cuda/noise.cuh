// Zoneout and dropout, for one unit of one sequence per thread.
#pragma once

#include "recurrence/cuda/problem.h"
#include "recurrence/noise.h"

namespace rnnkern {

// Whether the draw for a unit, in a row of `units` units, is below a threshold.
RNNKERN_DEVICE bool hits(int64_t seed, uint32_t below, uint32_t stream, int64_t t, int64_t b, int64_t unit,
                         int64_t units) {
  const int64_t part = quarter(units);
  const int word = (unit >= part) + (unit >= 2 * part) + (unit >= 3 * part);
  uint32_t x[4] = {uint32_t(unit - word * part), uint32_t(b), uint32_t(t), stream};
  philox(uint64_t(seed), x);
  return (word == 0 ? x[0] : word == 1 ? x[1] : word == 2 ? x[2] : x[3]) < below;
}

// The weight of the old value of state s at step t.
template <class A>
RNNKERN_DEVICE A old_weight(const StepNoise<A>& noise, int s, int64_t t, int64_t b, int64_t unit, int64_t units) {
  if (!noise.seed || noise.zoneout[s] == 0) return noise.zoneout[s];
  return hits(*noise.seed, noise.below[s], zoneout_stream(s), t, b, unit, units) ? A(1) : A(0);
}

// The new value of state s after zoneout, at the step of `noise`.
template <class A>
RNNKERN_DEVICE A mix(const StepNoise<A>& noise, int s, int64_t b, int64_t unit, int64_t units, A old, A next) {
  const A weight = old_weight(noise, s, noise.t, b, unit, units);
  return noise.seed ? weight > 0 ? old : next : weight * old + (A(1) - weight) * next;
}

// Applies the dropout mask to an input of R, or to a gradient that comes from R. `index` is the unit's index in (B, H).
template <class A>
RNNKERN_DEVICE A drop(const StepNoise<A>& noise, int64_t index, A value) {
  return noise.mask ? value * noise.mask[index] : value;
}

}  // namespace rnnkern
