// One step of one sample per block: its event enters the memory, another may leave it, and the state attends to the
// rest.
#pragma once

#include "relevancy/cuda/stepwise_attention_screen.cuh"

namespace rnnkern::relevancy {

// The memory of one sample.
template <class T>
struct Remembered : Memory<T> {
  int64_t hidden;

  RNNKERN_DEVICE Remembered(const Memory<T>& all, int64_t b, int64_t hidden) : Memory<T>(all), hidden(hidden) {
    const int64_t L = all.slots, rho = all.relevant_size;
    for (T** x : {&this->buffer, &this->keys}) *x += b * L * hidden;
    for (T** x : {&this->relevant, &this->relevant_keys}) *x += b * rho * hidden;
    this->buffer_scores += b * L;
    this->buffer_ids += b * L;
    this->scores += b * rho;
    this->ids += b * rho;
    this->time += b;
  }

  // Calls f(place, id, h, key) for each slot: k = first, first + stride, ... of the buffer, and then of the relevant
  // set, so that the sums of a thread do not depend on L.
  template <class F>
  RNNKERN_DEVICE void each(int first, int stride, F f) const {
    for (int64_t k = first; k < this->slots; k += stride) {
      f(k, this->buffer_ids[k], this->buffer + k * hidden, this->keys + k * hidden);
    }
    for (int64_t k = first; k < this->relevant_size; k += stride) {
      f(this->slots + k, this->ids[k], this->relevant + k * hidden, this->relevant_keys + k * hidden);
    }
  }

  RNNKERN_DEVICE void forget() const {
    const auto clear = [&](auto* x, int64_t count, auto value) {
      for (int64_t k = device::thread(); k < count; k += stepwise_attention_threads) x[k] = value;
    };
    clear(this->buffer, this->slots * hidden, T(0));
    clear(this->relevant, this->relevant_size * hidden, T(0));
    clear(this->buffer_scores, this->slots, T(0));
    clear(this->scores, this->relevant_size, T(0));
    clear(this->buffer_ids, this->slots, int64_t(-1));
    clear(this->ids, this->relevant_size, int64_t(-1));
  }
};

template <class T>
struct StepwiseAttentionForwardKernel {
  using Problem = StepwiseAttentionForward<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_attention_forward.cuh";
  static constexpr int threads = stepwise_attention_threads, least_blocks = 1;

  // Returns the slot of the relevant set that was overwritten, or -1.
  RNNKERN_DEVICE static int64_t enter(const Problem& p, const Remembered<T>& memory, const Scratch<T>& scratch,
                                      int64_t b) {
    using device::thread;
    const int64_t n = p.hidden, now = *memory.time, wanted = slot_of(now, memory.buffer_size);
    const int64_t slot = wanted < memory.slots ? wanted : memory.slots - 1;  // below L for a valid state
    if (device::warp() == 0) {
      const bool leaves = memory.buffer_ids[slot] >= 0;
      const int64_t found =
          leaves ? screen(memory.ids, memory.scores, memory.relevant_size, memory.buffer_scores[slot]) : -1;
      if (device::lane() == 0) *scratch.taken = found;
    }
    device::block_barrier();
    const int64_t taken = *scratch.taken;
    T *const h = memory.buffer + slot * n, *const key = memory.keys + slot * n;
    for (int64_t i = thread(); i < n; i += threads) {
      if (taken >= 0) {
        memory.relevant[taken * n + i] = h[i];
        memory.relevant_keys[taken * n + i] = key[i];
      }
      h[i] = p.h[b * n + i];
      key[i] = p.key[b * n + i];
    }
    if (thread() == 0) {
      if (taken >= 0) {
        memory.scores[taken] = memory.buffer_scores[slot];
        memory.ids[taken] = memory.buffer_ids[slot];
      }
      memory.buffer_scores[slot] = p.given ? p.given[b] : T(0);
      memory.buffer_ids[slot] = now;
      *memory.time = now + 1;
    }
    device::block_barrier();
    return taken;
  }

  // Computes alpha.
  RNNKERN_DEVICE static void attend(const Problem& p, const Remembered<T>& memory, const Scratch<T>& scratch, int64_t b,
                                    bool reset, T* alpha) {
    using device::thread;
    const T *const query = p.r + b * p.products + p.products - p.hidden, none = -INFINITY;
    memory.each(device::warp(), stepwise_attention_warps, [&](int64_t place, int64_t id, const T*, const T* key) {
      if (id < 0) return;
      const T e = score(query, reset, key, p.v, p.hidden, p.dot);
      if (device::lane() == 0) alpha[place] = e;
    });
    device::block_barrier();
    T most = none, sum = 0;
    memory.each(thread(), threads, [&](int64_t place, int64_t id, const T*, const T*) {
      if (id >= 0) most = greater(most, alpha[place]);
    });
    most = scratch.max(most);
    memory.each(thread(), threads, [&](int64_t place, int64_t id, const T*, const T*) {
      sum += alpha[place] = id >= 0 ? exponential(alpha[place] - most) : T(0);
    });
    sum = scratch.sum(sum);
    memory.each(thread(), threads, [&](int64_t place, int64_t id, const T*, const T*) {
      if (id < 0) return;
      alpha[place] /= sum;
      if (!p.given && place < memory.slots) memory.buffer_scores[place] += alpha[place];
    });
    device::block_barrier();
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    using device::lane, device::thread;
    device::SharedArena arena{device::shared_memory()};
    constexpr int values = Scratch<T>::values, columns = Scratch<T>::columns;
    const auto scratch = Scratch<T>::carve(arena);
    const int64_t b = device::block(), n = p.hidden;
    const Remembered<T> memory(p.memory, b, n);
    const bool reset = p.reset && p.reset[b];
    if (reset) {
      memory.forget();
      device::block_barrier();
    }
    const int64_t taken = enter(p, memory, scratch, b);
    T* const alpha = p.alpha + b * memory.members();
    attend(p, memory, scratch, b, reset, alpha);
    for (int64_t first = 0; first < n; first += columns) {
      T sum[1][values] = {};
      memory.each(device::warp(), stepwise_attention_warps, [&](int64_t place, int64_t id, const T* h, const T*) {
        if (id < 0) return;
        RNNKERN_UNROLL
        for (int c = 0; c < values; ++c) {
          const int64_t i = first + c * device::warp_size + lane();
          if (i < n) sum[0][c] += alpha[place] * h[i];
        }
      });
      scratch.over_warps(sum, first, n, [&](int64_t i, const T(&totals)[1]) {
        p.state[b * n + i] = p.s[b * n + i] = p.mix * (p.h[b * n + i] + totals[0]);
      });
    }
    if (p.ids) {
      memory.each(thread(), threads,
                  [&](int64_t place, int64_t id, const T*, const T*) { p.ids[b * memory.members() + place] = id; });
    }
    if (thread() == 0 && p.taken) p.taken[b] = int32_t(taken);
  }
};

}  // namespace rnnkern::relevancy
