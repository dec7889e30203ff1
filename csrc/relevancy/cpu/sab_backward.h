// The backward of a tile of samples, from the last step to the first. Each memory has accumulators of its gradient and
// of its key's gradient, which are consumed at the step that produced the memory. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/sab_attention.h"

namespace rnnkern {
namespace {

template <class T>
struct SabBackwardWorkspace {
  T *dh, *dc, *gates, *h, *query, *d_query, *through, *d_weights, *accumulators, *d_keys, *keys;
  const T** members;
  bool* has_key;

  SabBackwardWorkspace(const SabCall<T>& call, Workspace<T>& workspace, ThreadContext)
      : dh(workspace.alloc(sab_tile * call.size)),
        dc(workspace.alloc(sab_tile * call.size)),
        gates(workspace.alloc(sab_tile * 4 * call.size)),
        h(workspace.alloc(sab_tile * call.size)),
        query(workspace.alloc(sab_tile * call.key_width())),
        d_query(workspace.alloc(sab_tile * call.key_width())),
        through(workspace.alloc(sab_tile * call.size)),
        d_weights(workspace.alloc(call.top_k)),
        accumulators(workspace.alloc(sab_tile * call.slots * call.size)),
        d_keys(workspace.alloc(sab_tile * call.slots * call.key_width())),
        keys(workspace.alloc(call.width ? sab_tile * call.slots * call.width : 0)),
        members(workspace.template alloc_as<const T*>(sab_tile * call.slots)),
        has_key(workspace.template alloc_as<bool>(sab_tile * call.slots)) {}
};

// One sample of the tile, and its current segment: the steps from one reset to the next.
template <class T>
struct SabSample {
  const SabBackward<T>& call;
  int64_t b;
  T *dh, *dc, *gates, *h, *query, *d_query, *accumulators, *d_keys, *keys, *d_weights, *d_w;
  const T** members;
  bool* has_key;
  int64_t begin, before;  // the segment's first step, and how many of its steps were in earlier calls
  bool from_reset;

  SabSample(const SabBackward<T>& call, const SabBackwardWorkspace<T>& workspace, int64_t b, int s)
      : call(call),
        b(b),
        dh(workspace.dh + s * call.size),
        dc(workspace.dc + s * call.size),
        gates(workspace.gates + s * 4 * call.size),
        h(workspace.h + s * call.size),
        query(workspace.query + s * call.key_width()),
        d_query(workspace.d_query + s * call.key_width()),
        accumulators(workspace.accumulators + s * call.slots * call.size),
        d_keys(workspace.d_keys + s * call.slots * call.key_width()),
        keys(workspace.keys + s * call.slots * call.width),
        d_weights(workspace.d_weights),
        d_w(call.d_w + b * (call.width ? call.width : 2 * call.size)),
        members(workspace.members + s * call.slots),
        has_key(workspace.has_key + s * call.slots) {
    const int64_t n = call.size;
    const auto begin_with = [n](const T* from, T* to) {
      from ? std::memcpy(to, from, sizeof(T) * n) : std::memset(to, 0, sizeof(T) * n);
    };
    enter(call.length(b));
    begin_with(call.grad_h ? call.grad_h + b * n : nullptr, dh);
    begin_with(call.grad_c ? call.grad_c + b * n : nullptr, dc);
    const int64_t held = 1 + time(call.length(b)) / call.every;
    for (int64_t j = 0; j < call.slots; ++j)
      begin_with(call.grad_memory && j < held ? call.grad_memory + (b * call.slots + j) * n : nullptr,
                 accumulators + j * n);
    std::memset(d_keys, 0, sizeof(T) * call.slots * call.key_width());
  }

  // Number of steps of the segment before step t.
  int64_t time(int64_t t) const { return before + t - begin; }

  // Starts the segment that ends before step t.
  void enter(int64_t t) {
    for (begin = t; begin > 0; --begin)
      if (call.reset && call.reset[(begin - 1) * call.batch + b]) break;
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
    if (!has_key[j]) multiply(1, members[j], call.size, call.key, keys + j * call.width, call.width);
    has_key[j] = true;
    return keys + j * call.width;
  }

  // Adds the whole gradient of memory j to `gradient`, and clears its accumulators. With the mlp, d_key keeps the
  // gradient of the key, for Wm.
  void use_up(int64_t j, T* gradient, T* d_key, T* through) {
    const int64_t n = call.size, kw = call.key_width();
    T *const accumulated = accumulators + j * n, *const own = d_keys + j * kw;
    add(gradient, T(1), accumulated, n);
    if (call.width) {
      multiply(1, own, kw, call.key_back, through, n);
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

  // Recomputes the gates and h~ of step t; du holds R h.
  void recompute_gates(int64_t t, int64_t row) {
    const int64_t at = row * 4 * call.size;
    lstm_row<T>(call, call.u + at, call.du + at, old_c(t), h, nullptr, gates);
  }

  const T* old_c(int64_t t) const {
    if (t > begin) return call.all_c + (call.row(t - 1) + b) * call.size;
    return from_reset ? call.zeros : call.c + b * call.size;
  }

  // On entry dh is the gradient of h, and d_context that of the context. On return dh is the gradient of h~ without the
  // part through the mlp's query, whose gradient is in d_query.
  void attention(int64_t t, int64_t row, const T* d_context) {
    using V = Vec<T>;
    const int64_t n = call.size, k = call.top_k, held = 1 + time(t) / call.every, count = smaller(held, k);
    const T* const weights = call.weights + row * k;
    const int32_t* const slots = call.attended + row * k;
    T mean = T(0);
    for (int64_t i = 0; i < count; ++i) {
      d_weights[i] = dot(d_context, members[slots[i]], n);
      mean += weights[i] * d_weights[i];
      add(accumulators + slots[i] * n, weights[i], d_context, n);
    }
    T sum = T(0);
    for (int64_t i = 0; i < count; ++i) {
      if (held > k) d_weights[i] = weights[i] == T(0) ? T(0) : (d_weights[i] - mean) / call.sums[row];
      sum += d_weights[i];
    }
    if (held > k) d_weights[k - 1] = -sum;  // its score is the threshold
    if (!call.width) {
      for (int64_t i = 0; i < count; ++i) d_keys[slots[i]] += d_weights[i];
      if (held <= k) through_tanh(sum, call.w, h, dh, d_w);
      return;
    }
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

  void lstm(int64_t t, int64_t row) {
    using V = Vec<T>;
    const int64_t n = call.size;
    T* const du = call.du + row * 4 * n;
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
};

template <class T>
void backward_tile(const SabBackward<T>& call, const SabBackwardWorkspace<T>& workspace, int64_t first, int count) {
  const int64_t n = call.size, kw = call.key_width();
  alignas(SabSample<T>) unsigned char held[sizeof(SabSample<T>) * sab_tile];
  SabSample<T>* const samples = reinterpret_cast<SabSample<T>*>(held);
  for (int s = 0; s < count; ++s) new (samples + s) SabSample<T>(call, workspace, first + s, s);
  int alive = 0;
  for (int64_t t = call.length(first) - 1; t >= 0; --t) {
    while (alive < count && t < call.length(first + alive)) ++alive;
    const int64_t row = call.row(t) + first;
    for (int s = 0; s < alive; ++s) {
      SabSample<T>& me = samples[s];
      if (call.grad_out) add(me.dh, T(1), call.grad_out + (row + s) * 2 * n, n);
      if (const int64_t after = me.time(t) + 1; after % call.every == 0)
        me.use_up(after / call.every, me.dh, call.d_key + (row + s) * call.width, workspace.through);
      me.recompute_gates(t, row + s);
    }
    if (call.width) multiply(alive, workspace.h, n, call.query, workspace.query, kw);
    for (int s = 0; s < alive; ++s) {
      SabSample<T>& me = samples[s];
      T* const d_context = workspace.through + s * n;
      std::memcpy(d_context, me.dh, sizeof(T) * n);
      if (call.grad_out) add(d_context, T(1), call.grad_out + (row + s) * 2 * n + n, n);
      me.attention(t, row + s, d_context);
    }
    if (call.width) {
      multiply(alive, workspace.d_query, kw, call.query_back, workspace.through, n);
      for (int s = 0; s < alive; ++s) {
        add(samples[s].dh, T(1), workspace.through + s * n, n);
        std::memcpy(call.d_query + (row + s) * kw, samples[s].d_query, sizeof(T) * kw);
        std::memcpy(call.provisional + (row + s) * n, samples[s].h, sizeof(T) * n);
      }
    }
    for (int s = 0; s < alive; ++s) samples[s].lstm(t, row + s);
    multiply(alive, call.du + row * 4 * n, 4 * n, call.R_back, workspace.dh, n);
    for (int s = 0; s < alive; ++s) {
      SabSample<T>& me = samples[s];
      const bool fresh = me.from_reset && t == me.begin;
      if (fresh || (me.time(t) + 1) % call.truncation == 0) {
        std::memset(me.dh, 0, sizeof(T) * n);
        std::memset(me.dc, 0, sizeof(T) * n);
      }
      if (fresh) {
        std::memset(me.accumulators, 0, sizeof(T) * n);
        std::memset(me.d_keys, 0, sizeof(T) * kw);
        me.enter(t);
      }
    }
  }
  for (int s = 0; s < count; ++s) {
    SabSample<T>& me = samples[s];
    std::memcpy(call.d_h + me.b * n, me.dh, sizeof(T) * n);
    std::memcpy(call.d_c + me.b * n, me.dc, sizeof(T) * n);
    std::memset(call.d_memory + me.b * call.old_slots * n, 0, sizeof(T) * call.old_slots * n);
    for (int64_t j = 0; j <= call.time[me.b] / call.every; ++j) {
      const int64_t at = me.b * call.old_slots + j;
      me.use_up(j, call.d_memory + at * n, call.d_key + (call.first_key + at) * call.width, workspace.through);
    }
  }
}

template <class T>
void backward(const SabBackward<T>& call, Range samples, ThreadContext me) {
  const auto workspace = lay_out<SabBackwardWorkspace<T>>(call, me);
  const int64_t last = samples.end;
  for (int64_t b = samples.begin; b < last; b += sab_tile)
    backward_tile(call, workspace, b, int(smaller(sab_tile, last - b)));
}

}  // namespace
}  // namespace rnnkern
