// The backward of a tile of samples, from the last step to the first. Each memory has accumulators of its gradient and
// of its key's gradient, which are consumed at the step that produced the memory. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/sab_attention.h"

namespace rnnkern {
namespace {

// One sample of a tile, and its current segment: the steps from one reset to the next.
template <class T>
struct SabBackwardSample {
  const SabBackward<T>& call;
  T *dh, *dc, *gates, *h, *query, *d_query, *through, *accumulators, *d_keys, *keys, *d_weights;
  const T** members;
  bool* has_key;
  T *d_w = nullptr, *du = nullptr;  // du: of the current step
  int64_t b = 0, begin = 0;         // the segment's first step
  int64_t before = 0;               // number of steps of the segment in earlier calls
  bool from_reset = false;

  SabBackwardSample(const SabBackward<T>& call, Workspace<T>& workspace)
      : call(call), members(workspace.template alloc_as<const T*>(call.slots)) {
    for (T** const row : {&dh, &dc, &h, &through}) *row = workspace.alloc(call.size);
    for (T** const row : {&query, &d_query}) *row = workspace.alloc(call.key_width());
    gates = workspace.alloc(4 * call.size);
    accumulators = workspace.alloc(call.slots * call.size);
    d_keys = workspace.alloc(call.slots * call.key_width());
    keys = workspace.alloc(call.slots * call.width);
    d_weights = workspace.alloc(call.top_k);
    has_key = workspace.template alloc_as<bool>(call.slots);
  }

  void start(int64_t sample) {
    const int64_t n = call.size;
    const auto begin_with = [n](const T* from, int64_t at, T* to) {
      from ? std::memcpy(to, from + at * n, sizeof(T) * n) : std::memset(to, 0, sizeof(T) * n);
    };
    b = sample;
    d_w = call.d_w + b * (call.width ? call.width : 2 * n);
    enter(call.length(b));
    begin_with(call.grad_h, b, dh);
    begin_with(call.grad_c, b, dc);
    const int64_t held = 1 + time(call.length(b)) / call.every;
    for (int64_t j = 0; j < call.slots; ++j)
      begin_with(j < held ? call.grad_memory : nullptr, b * call.slots + j, accumulators + j * n);
    std::memset(d_keys, 0, sizeof(T) * call.slots * call.key_width());
  }

  // Number of steps of the segment before step t.
  int64_t time(int64_t t) const { return before + t - begin; }

  // Starts the segment that ends before step t.
  void enter(int64_t t) {
    for (begin = t; begin > 0; --begin)
      if (call.resets(begin - 1, b)) break;
    from_reset = begin > 0;
    begin = from_reset ? begin - 1 : 0;
    before = from_reset ? 0 : call.time[b];
    for (int64_t j = 0; j <= time(t) / call.every; ++j) {
      const int64_t step = begin + j * call.every - before - 1;
      if (step >= begin)
        members[j] = call.out + (call.row(step) + b) * 2 * call.size;
      else
        members[j] = from_reset ? call.zeros : call.memory + (b * call.old_slots + j) * call.size;
      has_key[j] = false;
    }
  }

  const T* key(int64_t j) {
    if (!has_key[j]) multiply(members[j], call.key, keys + j * call.width);
    has_key[j] = true;
    return keys + j * call.width;
  }

  // Adds the whole gradient of memory j to `gradient`, and clears its accumulators. With the mlp, d_key keeps the
  // gradient of the key, for Wm.
  void collect(int64_t j, T* gradient, T* d_key) {
    const int64_t n = call.size, kw = call.key_width();
    T *const accumulated = accumulators + j * n, *const own = d_keys + j * kw;
    add(gradient, T(1), accumulated, n);
    if (call.width) {
      multiply(own, call.key_back, through);
      add(gradient, T(1), through, n);
      std::memcpy(d_key, own, sizeof(T) * kw);
    } else {
      through_tanh(*own, call.w + n, members[j], gradient, d_w + n);
    }
    std::memset(accumulated, 0, sizeof(T) * n);
    std::memset(own, 0, sizeof(T) * kw);
  }

  // The backward of d w . tanh(x): adds to the gradients of x and w.
  void through_tanh(T d, const T* w, const T* x, T* dx, T* dw) {
    using V = Vec<T>;
    for_vectors<V>(0, call.size, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V y = tanh(V::load(x + j, lanes));
      (V::load(dx + j, lanes) + V(d) * V::load(w + j, lanes) * (V(1) - y * y)).store(dx + j, lanes);
      (V::load(dw + j, lanes) + V(d) * y).store(dw + j, lanes);
    });
  }

  // c before step t.
  const T* old_c(int64_t t) const {
    if (t > begin) return call.all_c + (call.row(t - 1) + b) * call.size;
    return from_reset ? call.zeros : call.c + b * call.size;
  }

  // Takes up the gradients of step t's output, and recomputes its gates and h~; du holds R h.
  void take_step(int64_t t, int64_t row) {
    const int64_t n = call.size;
    if (call.grad_out) add(dh, T(1), call.grad_out + row * 2 * n, n);
    if (const int64_t after = time(t) + 1; after % call.every == 0)
      collect(after / call.every, dh, call.d_key + row * call.width);
    du = call.du + row * 4 * n;
    lstm_row<T>(call, call.u + row * 4 * n, du, old_c(t), h, nullptr, gates);
  }

  // On entry dh is the gradient of h. On return it is that of h~ without the part through the mlp's query, whose
  // gradient is in d_query.
  void attend_back(int64_t t, int64_t row) {
    const int64_t n = call.size, k = call.top_k, held = 1 + time(t) / call.every, count = smaller(held, k);
    const T* const weights = call.weights + row * k;
    const int32_t* const slots = call.attended + row * k;
    T* const d_context = through;
    T mean = T(0);
    std::memcpy(d_context, dh, sizeof(T) * n);
    if (call.grad_out) add(d_context, T(1), call.grad_out + row * 2 * n + n, n);
    for (int64_t i = 0; i < count; ++i) {
      d_weights[i] = inner_product(d_context, members[slots[i]], 0, n);
      mean += weights[i] * d_weights[i];
      add(accumulators + slots[i] * n, weights[i], d_context, n);
    }
    T sum = T(0);
    for (int64_t i = 0; i < count; ++i) {
      if (held > k) d_weights[i] = weights[i] == T(0) ? T(0) : (d_weights[i] - mean) / call.sums[row];
      sum += d_weights[i];
    }
    if (held > k) d_weights[k - 1] = -sum;  // its score is the threshold
    if (call.width) return score_back(slots, count);
    for (int64_t i = 0; i < count; ++i) d_keys[slots[i]] += d_weights[i];
    if (held <= k) through_tanh(sum, call.w, h, dh, d_w);
  }

  // The gradients of the mlp's query and keys, given those of the scores in d_weights.
  void score_back(const int32_t* slots, int64_t count) {
    using V = Vec<T>;
    const int64_t kw = call.width;
    std::memset(d_query, 0, sizeof(T) * kw);
    for (int64_t i = 0; i < count; ++i) {
      const T *const own = key(slots[i]), *const w = call.w;
      T* const d_key = d_keys + slots[i] * kw;
      const V d(d_weights[i]);
      for_vectors<V>(0, kw, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
        const V y = tanh(V::load(own + j, lanes) + V::load(query + j, lanes));
        const V g = d * V::load(w + j, lanes) * (V(1) - y * y);
        (V::load(d_w + j, lanes) + d * y).store(d_w + j, lanes);
        (V::load(d_query + j, lanes) + g).store(d_query + j, lanes);
        (V::load(d_key + j, lanes) + g).store(d_key + j, lanes);
      });
    }
  }

  // Adds what came through the mlp's query, and keeps what its weight's gradient needs.
  void query_back(int64_t row) {
    const int64_t n = call.size, kw = call.width;
    add(dh, T(1), through, n);
    std::memcpy(call.d_query + row * kw, d_query, sizeof(T) * kw);
    std::memcpy(call.provisional + row * n, h, sizeof(T) * n);
  }

  void lstm_back(int64_t t) {
    using V = Vec<T>;
    const int64_t n = call.size;
    const T* const c = old_c(t);
    for_vectors<V>(0, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA {
      V save[4], old[2], grad[2] = {V::load(dh + j, lanes), V::load(dc + j, lanes)}, d[4], dr[4];
      for (int g = 0; g < 4; ++g) save[g] = V::load(gates + g * n + j, lanes);
      old[1] = V::load(c + j, lanes);
      Lstm::backward<V>(save, old, nullptr, nullptr, grad, d, dr, nullptr);
      for (int g = 0; g < 4; ++g) d[g].store(du + g * n + j, lanes);
      grad[1].store(dc + j, lanes);
    });
  }

  // Stops the gradients that do not pass step t, and enters the segment before if t begins one.
  void leave_step(int64_t t) {
    const int64_t n = call.size;
    const bool fresh = from_reset && t == begin;
    if (fresh || (time(t) + 1) % call.truncation == 0) {
      std::memset(dh, 0, sizeof(T) * n);
      std::memset(dc, 0, sizeof(T) * n);
    }
    if (!fresh) return;
    std::memset(accumulators, 0, sizeof(T) * n);
    std::memset(d_keys, 0, sizeof(T) * call.key_width());
    enter(t);
  }

  void finish() {
    const int64_t n = call.size, all = sizeof(T) * call.old_slots * n;
    std::memcpy(call.d_h + b * n, dh, sizeof(T) * n);
    std::memcpy(call.d_c + b * n, dc, sizeof(T) * n);
    std::memset(call.d_memory + b * call.old_slots * n, 0, all);
    for (int64_t j = 0; j <= call.time[b] / call.every; ++j) {
      const int64_t at = b * call.old_slots + j;
      collect(j, call.d_memory + at * n, call.d_key + (call.first_key + at) * call.width);
    }
  }
};

template <class T>
void process_tile(const SabBackward<T>& call, SabBackwardSample<T>* samples, int64_t first, int count) {
  using Sample = SabBackwardSample<T>;
  for (int s = 0; s < count; ++s) samples[s].start(first + s);
  int alive = 0;
  for (int64_t t = call.length(first) - 1; t >= 0; --t) {
    while (alive < count && t < call.length(first + alive)) ++alive;
    const int64_t row = call.row(t) + first;
    for (int s = 0; s < alive; ++s) samples[s].take_step(t, row + s);
    if (call.width) multiply(alive, samples, &Sample::h, call.query, &Sample::query);
    for (int s = 0; s < alive; ++s) samples[s].attend_back(t, row + s);
    if (call.width) {
      multiply(alive, samples, &Sample::d_query, call.query_back, &Sample::through);
      for (int s = 0; s < alive; ++s) samples[s].query_back(row + s);
    }
    for (int s = 0; s < alive; ++s) samples[s].lstm_back(t);
    multiply(alive, samples, &Sample::du, call.R_back, &Sample::dh);
    for (int s = 0; s < alive; ++s) samples[s].leave_step(t);
  }
  for (int s = 0; s < count; ++s) samples[s].finish();
}

}  // namespace
}  // namespace rnnkern
