// The forward of a tile of samples through time. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/sab_attention.h"

namespace rnnkern {
namespace {

template <class T>
struct SabForwardWorkspace {
  T *h, *c, *r, *query, *keys, *scores;
  const T** members;

  SabForwardWorkspace(const SabCall<T>& call, Workspace<T>& workspace, ThreadContext)
      : h(workspace.alloc(sab_tile * call.size)),
        c(workspace.alloc(sab_tile * call.size)),
        r(workspace.alloc(sab_tile * 4 * call.size)),
        query(workspace.alloc(sab_tile * call.key_width())),
        keys(workspace.alloc(sab_tile * call.slots * call.key_width())),
        scores(workspace.alloc(call.slots)),
        members(workspace.template alloc_as<const T*>(sab_tile * call.slots)) {}
};

template <class T>
void forward_tile(const SabForward<T>& call, const SabForwardWorkspace<T>& workspace, int64_t first, int count) {
  const int64_t n = call.size, kw = call.key_width();
  int64_t time[sab_tile];
  const auto members = [&](int s) { return workspace.members + s * call.slots; };
  const auto key = [&](int s, int64_t slot) { return workspace.keys + (s * call.slots + slot) * kw; };
  const auto held = [&](int s) { return 1 + time[s] / call.every; };
  const auto remember = [&](int s, int64_t slot, const T* h) {
    members(s)[slot] = h;
    make_key<T>(call, h, key(s, slot));
  };
  for (int s = 0; s < count; ++s) {
    const int64_t b = first + s;
    std::memcpy(workspace.h + s * n, call.h + b * n, sizeof(T) * n);
    std::memcpy(workspace.c + s * n, call.c + b * n, sizeof(T) * n);
    time[s] = call.time[b];
    for (int64_t slot = 0; slot < held(s); ++slot) remember(s, slot, call.memory + (b * call.old_slots + slot) * n);
  }
  int alive = count;
  for (int64_t t = 0;; ++t) {
    while (alive && t >= call.length(first + alive - 1)) --alive;
    if (!alive) break;
    for (int s = 0; s < alive; ++s) {
      if (call.reset && call.reset[t * call.batch + first + s]) {
        std::memset(workspace.h + s * n, 0, sizeof(T) * n);
        std::memset(workspace.c + s * n, 0, sizeof(T) * n);
        time[s] = 0;
        remember(s, 0, call.zeros);
      }
    }
    multiply(alive, workspace.h, n, call.R, workspace.r, 4 * n);
    const int64_t row = call.row(t) + first;
    for (int s = 0; s < alive; ++s) {
      T* const c = workspace.c + s * n;
      lstm_row<T>(call, call.u + (row + s) * 4 * n, workspace.r + s * 4 * n, c, workspace.h + s * n, c, nullptr);
      if (call.all_c) std::memcpy(call.all_c + (row + s) * n, c, sizeof(T) * n);
    }
    if (call.width) multiply(alive, workspace.h, n, call.query, workspace.query, kw);
    for (int s = 0; s < alive; ++s) {
      T *const h = workspace.h + s * n, *const out = call.out + (row + s) * 2 * n, *const context = out + n;
      T* const weights = call.weights + (row + s) * call.top_k;
      int32_t* const slots = call.attended + (row + s) * call.top_k;
      const int64_t memories = held(s);
      const T own = call.width ? T(0) : weighted_tanh(call.w, h, static_cast<const T*>(nullptr), n);
      for (int64_t j = 0; j < memories; ++j)
        workspace.scores[j] =
            call.width ? weighted_tanh(call.w, key(s, j), workspace.query + s * kw, kw) : own + *key(s, j);
      const T sum = attend(workspace.scores, memories, call.top_k, weights, slots);
      if (call.sums) call.sums[row + s] = sum;
      std::memset(context, 0, sizeof(T) * n);
      for (int64_t i = 0; i < smaller(memories, call.top_k); ++i) add(context, weights[i], members(s)[slots[i]], n);
      add(h, T(1), context, n);
      std::memcpy(out, h, sizeof(T) * n);
      if (++time[s] % call.every == 0) remember(s, time[s] / call.every, out);
    }
  }
  for (int s = 0; s < count; ++s) {
    const int64_t b = first + s;
    std::memcpy(call.last_h + b * n, workspace.h + s * n, sizeof(T) * n);
    std::memcpy(call.last_c + b * n, workspace.c + s * n, sizeof(T) * n);
    call.last_time[b] = time[s];
    for (int64_t slot = 0; slot < call.slots; ++slot)
      std::memcpy(call.last_memory + (b * call.slots + slot) * n, slot < held(s) ? members(s)[slot] : call.zeros,
                  sizeof(T) * n);
  }
}

template <class T>
void forward(const SabForward<T>& call, Range samples, ThreadContext me) {
  const auto workspace = lay_out<SabForwardWorkspace<T>>(call, me);
  const int64_t last = samples.end;
  for (int64_t b = samples.begin; b < last; b += sab_tile)
    forward_tile(call, workspace, b, int(smaller(sab_tile, last - b)));
}

}  // namespace
}  // namespace rnnkern
