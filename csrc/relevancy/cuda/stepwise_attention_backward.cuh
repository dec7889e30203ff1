// The backward of one step through the attention, one sample per block. The gradients of an event are added up in its
// own row, from the step that forgets it back to the one that produced it, so that nothing moves when its slot changes.
#pragma once

#include "cuda/elements.cuh"
#include "relevancy/cuda/stepwise_attention_block.cuh"

namespace rnnkern::relevancy {

template <class T>
struct StepwiseAttentionBackwardKernel {
  using Problem = StepwiseAttentionBackward<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_attention_backward.cuh";
  static constexpr int threads = stepwise_attention_threads, least_blocks = 1;

  // Calls f(place, event) for each slot after step t, in the order of the forward.
  template <class F>
  RNNKERN_DEVICE static void each(const Problem& p, int64_t t, int64_t b, int first, int stride, F f) {
    const History& history = p.history;
    const int64_t row = history.rows.offset(t) + b;
    const int64_t start = history.starts[row];
    for (int64_t k = first; k < history.slots; k += stride) f(k, history.buffered(b, t, start, k));
    for (int64_t k = first; k < history.relevant_size; k += stride) {
      f(history.slots + k, history.occupants[row * history.relevant_size + k]);
    }
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    device::SharedArena arena{device::shared_memory()};
    attend(p, Scratch<T>::carve(arena), p.t, device::block());
  }

  RNNKERN_DEVICE static void attend(const Problem& p, const Scratch<T>& scratch, int64_t t, int64_t b) {
    using device::lane, device::thread, device::warp, device::warp_size;
    constexpr int values = Scratch<T>::values, columns = Scratch<T>::columns;
    const History& history = p.history;
    const int64_t n = history.rows.hidden, kappa = history.members();
    const int64_t row = history.rows.offset(t) + b;
    T *const dsum = p.ds + b * n, *const query = p.query + row * n, *const dalpha = p.dalpha + b * kappa;
    const T* alpha = p.alpha ? p.alpha + row * kappa : p.workspace + b * kappa;

    for (int64_t i = thread(); i < n; i += threads) {
      dsum[i] = p.mix * (dsum[i] + (p.grad_s ? p.grad_s[row * n + i] : T(0)));
    }
    device::block_barrier();
    each(p, t, b, warp(), stepwise_attention_warps, [&](int64_t place, int32_t event) {
      if (event == no_event) return;
      const T* const h = history.at(p.h, b, event);
      T sum = 0;
      for (int64_t i = lane(); i < n; i += warp_size) sum += dsum[i] * h[i];
      sum = warp_sum(sum);
      if (lane() == 0) dalpha[place] = sum;
      if (p.alpha) return;
      const T e = score(query, false, history.at(p.keys, b, event), p.v, n, p.dot);
      if (lane() == 0) p.workspace[b * kappa + place] = e;
    });
    device::block_barrier();
    if (!p.alpha) {
      // A separate softmax: large scores are rounded differently here than in the forward, so that with the forward's
      // sum the exponentials could be far from weights, or infinite.
      T most = -INFINITY, sum = 0;
      each(p, t, b, thread(), threads, [&](int64_t place, int32_t event) {
        if (event != no_event) most = greater(most, alpha[place]);
      });
      most = scratch.max(most);
      each(p, t, b, thread(), threads, [&](int64_t place, int32_t event) {
        if (event != no_event) sum += p.workspace[b * kappa + place] = exponential(alpha[place] - most);
      });
      sum = scratch.sum(sum);
      each(p, t, b, thread(), threads, [&](int64_t place, int32_t event) {
        if (event != no_event) p.workspace[b * kappa + place] /= sum;
      });
    }
    T mean = 0;
    each(p, t, b, thread(), threads, [&](int64_t place, int32_t event) {
      if (event != no_event) mean += alpha[place] * dalpha[place];
    });
    mean = scratch.sum(mean);
    each(p, t, b, thread(), threads, [&](int64_t place, int32_t event) {
      if (event != no_event) dalpha[place] = alpha[place] * (dalpha[place] - mean);
    });
    device::block_barrier();

    for (int64_t first = 0; first < n; first += columns) {
      T sums[2][values] = {};  // dquery, dv
      each(p, t, b, warp(), stepwise_attention_warps, [&](int64_t place, int32_t event) {
        if (event == no_event) return;
        const T a = alpha[place], de = dalpha[place];
        const T* const key = history.at(p.keys, b, event);
        T *const dh = history.at(p.dh, b, event), *const dkey = history.at(p.dkeys, b, event);
        RNNKERN_UNROLL
        for (int c = 0; c < values; ++c) {
          const int64_t i = first + c * warp_size + lane();
          if (i >= n) continue;
          const T q = query[i], k = key[i], v = p.v[i], th = p.dot ? q * k : tanh(q + k);
          const T through = p.dot ? de * v : de * v * (T(1) - th * th);
          dh[i] += a * dsum[i];
          dkey[i] += p.dot ? through * q : through;
          sums[0][c] += p.dot ? through * k : through;
          sums[1][c] += de * th;
        }
      });
      scratch.over_warps(sums, first, n, [&](int64_t i, const T(&totals)[2]) {
        query[i] = totals[0];
        p.dv[b * n + i] += totals[1];
      });
    }
    T* const dh = p.dh.steps + row * n;
    for (int64_t i = thread(); i < n; i += threads) dh[i] += dsum[i] + (p.grad_h ? p.grad_h[row * n + i] : T(0));
  }
};

// One slot of the relevant set of one sample per thread, for all steps.
struct HistoryKernel {
  using Problem = History;
  static constexpr char header[] = "relevancy/cuda/stepwise_attention_backward.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const int64_t index = global_thread();
    const int64_t each = p.relevant_size > 0 ? p.relevant_size : 1, b = index / each, slot = index % each;
    if (b >= p.rows.batch) return;
    int32_t occupant = p.relevant_size > 0 ? p.first_relevant(b, slot) : no_event, start = -1;
    for (int64_t t = 0; t < p.rows.length(b); ++t) {
      const int64_t row = p.rows.offset(t) + b;
      if (p.rows.resets(t, b)) {
        occupant = no_event;
        start = int32_t(t);
      }
      if (slot == 0) p.starts[row] = start;
      if (p.relevant_size == 0) continue;
      // The event that was, after the previous step, in the slot that the event of this step takes.
      if (p.taken[row] == slot) occupant = p.buffered(b, t - 1, start, slot_of(p.time[b] + t, p.buffer_size));
      p.occupants[row * p.relevant_size + slot] = occupant;
    }
  }
};

// One unit of one slot of one sample per thread.
template <class T>
struct LeaveKernel {
  using Problem = Leave<T>;
  static constexpr char header[] = "relevancy/cuda/stepwise_attention_backward.cuh";
  static constexpr int threads = step_threads;

  RNNKERN_DEVICE static void run(const Problem& p) {
    const History& history = p.history;
    const int64_t index = global_thread();
    const int64_t n = history.rows.hidden, kappa = history.members(), L = history.slots;
    const int64_t b = index / (kappa * n), place = index / n % kappa, i = index % n;
    if (b >= history.rows.batch) return;
    const T* const grad = place < L ? p.grad_buffer : p.grad_relevant;
    const int32_t event = history.event(b, history.rows.length(b) - 1, place);
    if (!grad || event == no_event) return;
    history.at(p.dh, b, event)[i] = grad[(place < L ? b * L + place : b * (kappa - L) + place - L) * n + i];
  }
};

}  // namespace rnnkern::relevancy
