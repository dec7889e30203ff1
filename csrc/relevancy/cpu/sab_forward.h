// The forward of a tile of samples through time. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/sab_attention.h"

namespace rnnkern {
namespace {

// One sample of a tile, and its state.
template <class T>
struct SabForwardSample {
  const SabForward<T>& call;
  T *h, *c, *r, *query, *keys, *scores;
  const T** members;
  int64_t b = 0, time = 0;

  SabForwardSample(const SabForward<T>& call, Workspace<T>& workspace)
      : call(call), members(workspace.template alloc_as<const T*>(call.slots)) {
    for (T** const row : {&h, &c}) *row = workspace.alloc(call.size);
    r = workspace.alloc(4 * call.size);
    query = workspace.alloc(call.key_width());
    keys = workspace.alloc(call.slots * call.key_width());
    scores = workspace.alloc(call.slots);
  }

  int64_t held() const { return 1 + time / call.every; }
  T* key(int64_t slot) const { return keys + slot * call.key_width(); }
  void remember(int64_t slot, const T* memory) {
    members[slot] = memory;
    make_key<T>(call, memory, key(slot));
  }

  void begin(int64_t sample) {
    const int64_t n = call.size;
    b = sample;
    std::memcpy(h, call.h + b * n, sizeof(T) * n);
    std::memcpy(c, call.c + b * n, sizeof(T) * n);
    time = call.time[b];
    for (int64_t slot = 0; slot < held(); ++slot) remember(slot, call.memory + (b * call.old_slots + slot) * n);
  }

  void reset() {
    std::memset(h, 0, sizeof(T) * call.size);
    std::memset(c, 0, sizeof(T) * call.size);
    time = 0;
    remember(0, call.zeros);
  }

  // From r = R h and the old c: h~ and the new c.
  void lstm(int64_t row) {
    const int64_t n = call.size;
    lstm_row<T>(call, call.u + row * 4 * n, r, c, h, c, nullptr);
    if (call.all_c) std::memcpy(call.all_c + row * n, c, sizeof(T) * n);
  }

  // Adds the context to h~, and remembers the sum if it is time to.
  void attend(int64_t row) {
    const int64_t n = call.size, memories = held();
    T *const out = call.out + row * 2 * n, *const context = out + n, *const weights = call.weights + row * call.top_k;
    int32_t* const slots = call.attended + row * call.top_k;
    const T own = call.width ? T(0) : weighted_tanh(call.w, h, static_cast<const T*>(nullptr), n);
    for (int64_t j = 0; j < memories; ++j)
      scores[j] = call.width ? weighted_tanh(call.w, key(j), query, call.width) : own + *key(j);
    const T sum = rnnkern::attend(scores, memories, call.top_k, weights, slots);
    if (call.sums) call.sums[row] = sum;
    std::memset(context, 0, sizeof(T) * n);
    for (int64_t i = 0; i < smaller(memories, call.top_k); ++i) add(context, weights[i], members[slots[i]], n);
    add(h, T(1), context, n);
    std::memcpy(out, h, sizeof(T) * n);
    if (++time % call.every == 0) remember(time / call.every, out);
  }

  void finish() const {
    const int64_t n = call.size;
    std::memcpy(call.last_h + b * n, h, sizeof(T) * n);
    std::memcpy(call.last_c + b * n, c, sizeof(T) * n);
    call.last_time[b] = time;
    for (int64_t slot = 0; slot < call.slots; ++slot)
      std::memcpy(call.last_memory + (b * call.slots + slot) * n, slot < held() ? members[slot] : call.zeros,
                  sizeof(T) * n);
  }
};

template <class T>
void process_tile(const SabForward<T>& call, SabForwardSample<T>* samples, int64_t first, int count) {
  using Sample = SabForwardSample<T>;
  for (int s = 0; s < count; ++s) samples[s].begin(first + s);
  int alive = count;
  for (int64_t t = 0;; ++t) {
    while (alive && t >= call.length(first + alive - 1)) --alive;
    if (!alive) break;
    const int64_t row = call.row(t) + first;
    for (int s = 0; s < alive; ++s)
      if (call.resets(t, first + s)) samples[s].reset();
    multiply(alive, samples, &Sample::h, call.R, &Sample::r);
    for (int s = 0; s < alive; ++s) samples[s].lstm(row + s);
    if (call.width) multiply(alive, samples, &Sample::h, call.query, &Sample::query);
    for (int s = 0; s < alive; ++s) samples[s].attend(row + s);
  }
  for (int s = 0; s < count; ++s) samples[s].finish();
}

}  // namespace
}  // namespace rnnkern
