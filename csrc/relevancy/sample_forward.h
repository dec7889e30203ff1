// All steps of one sample by one block: V, W_a and U_a on chip as sample_tile.h has it, the memory in shared memory. An
// event never moves: slots are renamed.
#pragma once

#include "relevancy/attend_screen.h"
#include "relevancy/sample_tile.h"

namespace rnnkern::relevancy {

template <class Cell, int P>
struct SampleMemory {
  using Whole = Weights<Cell, P, forward_spread<Cell::gates, P>>;

  int slots, relevant_size;
  float *values, *keys;         // (kappa, P), by where an event lies
  float *scores, *weights, *e;  // (kappa,) each, by slot: beta, alpha, and the scores that it is made of
  int64_t* ids;                 // (kappa,)
  int32_t* where;               // (kappa,)
  float *s, *h, *query, *v;     // (P,)
  Quad* weights_kept;
  int32_t* taken;  // the slot of the relevant set that was overwritten, and where the new event goes

  static RNNKERN_HOST_DEVICE SampleMemory carve(device::Carver& carver, int64_t slots, int64_t relevant_size) {
    SampleMemory m;
    const int64_t kappa = slots + relevant_size;
    m.slots = int(slots);
    m.relevant_size = int(relevant_size);
    for (float** x : {&m.values, &m.keys}) *x = carver.take<float>(kappa * P);
    for (float** x : {&m.scores, &m.weights, &m.e}) *x = carver.take<float>(kappa);
    m.ids = carver.take<int64_t>(kappa);
    m.where = carver.take<int32_t>(kappa);
    for (float** x : {&m.s, &m.h, &m.query, &m.v}) *x = carver.take<float>(P);
    m.weights_kept = Whole::carve(carver);
    m.taken = carver.take<int32_t>(2);
    return m;
  }
  static int64_t bytes(int64_t slots, int64_t relevant_size) {
    device::Carver carver{nullptr};
    carve(carver, slots, relevant_size);
    return carver.used;
  }

  // f(slot) of the buffer's and then of the relevant set's, as in attend_forward.h.
  template <class F>
  RNNKERN_DEVICE void each(int first, int stride, F f) const {
    for (int k = first; k < slots; k += stride) f(k);
    for (int k = first; k < relevant_size; k += stride) f(slots + k);
  }
};

template <class Cell, int P>
struct SampleForwardKernel {
  using Problem = SampleForward;
  using T = Tile<P>;
  using Memory = SampleMemory<Cell, P>;
  using Whole = Memory::Whole;
  static constexpr int threads = sample_threads, least_blocks = 1;

  // What the call begins with, or what it leaves, slot by slot: f(slot, row of the tensors, whether of the buffer).
  template <class F>
  RNNKERN_DEVICE static void each_slot(const Problem& p, int64_t b, int first, int stride, F f) {
    for (int64_t k = first; k < p.memory.slots; k += stride) f(int(k), b * p.memory.slots + k, true);
    for (int64_t k = first; k < p.memory.relevant_size; k += stride) {
      f(int(p.memory.slots + k), b * p.memory.relevant_size + k, false);
    }
  }

  // By one warp: the event `now` enters, another may leave. Lanes see what others wrote before the last barrier alone,
  // so that each slot is written by one of them.
  RNNKERN_DEVICE static void enter(const Problem& p, const Memory& memory, int64_t now, bool reset, float given) {
    const int64_t wanted = slot_of(now, p.memory.buffer_size);
    const int slot = int(wanted < memory.slots ? wanted : memory.slots - 1), none = -1;
    const bool leaves = !reset && memory.ids[slot] >= 0;
    if (reset) {
      memory.each(device::lane(), device::warp_size, [&](int k) {
        if (k == slot) return;
        memory.ids[k] = none;
        memory.scores[k] = 0;
      });
    }
    // Asked for in any case: its shuffles stand between what all lanes have read and what the first then writes.
    const auto found =
        screen(memory.ids + memory.slots, memory.scores + memory.slots, memory.relevant_size, memory.scores[slot]);
    const int taken = leaves ? int(found) : none;
    if (device::lane() > 0) return;
    if (taken >= 0) {
      const int other = memory.slots + taken, place = memory.where[other];
      memory.where[other] = memory.where[slot];
      memory.where[slot] = place;
      memory.ids[other] = memory.ids[slot];
      memory.scores[other] = memory.scores[slot];
    }
    memory.ids[slot] = now;
    memory.scores[slot] = given;
    memory.taken[0] = taken;
    memory.taken[1] = memory.where[slot];
  }

  RNNKERN_DEVICE static void begin(const Problem& p, const Memory& memory, int64_t b, const Whole& weights) {
    const int64_t n = p.rows.hidden;
    const int i = T::unit();
    const bool first = T::part() == 0;
    each_slot(p, b, device::thread(), threads, [&](int slot, int64_t row, bool of_buffer) {
      memory.ids[slot] = (of_buffer ? p.memory.buffer_ids : p.memory.ids)[row];
      memory.scores[slot] = (of_buffer ? p.memory.buffer_scores : p.memory.scores)[row];
      memory.where[slot] = slot;
    });
    if (first) {
      memory.s[i] = i < n ? p.last_s[b * n + i] : 0;
      memory.v[i] = i < n ? p.v[i] : 0;
    }
    each_slot(p, b, 0, 1, [&](int slot, int64_t row, bool of_buffer) {
      const float h = i < n ? (of_buffer ? p.memory.buffer : p.memory.relevant)[row * n + i] : 0;
      if (first) memory.values[slot * P + i] = h;
    });
    device::block_barrier();
    for (int slot = 0; slot < memory.slots + memory.relevant_size; ++slot) {
      const float key = weights.key(memory.values + slot * P);
      if (first) memory.keys[slot * P + i] = key;
    }
  }

  RNNKERN_DEVICE static void end(const Problem& p, const Memory& memory, int64_t b, int64_t now) {
    const int64_t n = p.rows.hidden;
    const int i = T::unit();
    each_slot(p, b, device::thread(), threads, [&](int slot, int64_t row, bool of_buffer) {
      (of_buffer ? p.memory.buffer_ids : p.memory.ids)[row] = memory.ids[slot];
      (of_buffer ? p.memory.buffer_scores : p.memory.scores)[row] = memory.scores[slot];
    });
    if (device::thread() == 0) p.memory.time[b] = now;
    if (T::part() > 0 || i >= n) return;
    p.last_s[b * n + i] = memory.s[i];
    each_slot(p, b, 0, 1, [&](int slot, int64_t row, bool of_buffer) {
      const float h = memory.ids[slot] >= 0 ? memory.values[memory.where[slot] * P + i] : 0;
      (of_buffer ? p.memory.buffer : p.memory.relevant)[row * n + i] = h;
    });
  }

  // alpha from e, by every warp for itself but for what is written; the logarithm of the softmax's sum.
  RNNKERN_DEVICE static float weigh(const Problem& p, const Memory& memory, int64_t row) {
    const int lane = device::lane(), warp_size = device::warp_size;
    float most = -INFINITY, sum = 0;
    memory.each(lane, warp_size, [&](int k) {
      if (memory.ids[k] >= 0) most = greater(most, memory.e[k]);
    });
    RNNKERN_UNROLL
    for (int mask = warp_size / 2; mask > 0; mask /= 2) most = greater(most, far(most, mask));
    memory.each(lane, warp_size, [&](int k) {
      if (memory.ids[k] >= 0) sum += exponential(memory.e[k] - most);
    });
    sum = warp_sum(sum);
    const int64_t kappa = memory.slots + memory.relevant_size;
    memory.each(device::thread(), threads, [&](int k) {
      const bool there = memory.ids[k] >= 0;
      const float alpha = there ? exponential(memory.e[k] - most) / sum : 0.0f;
      memory.weights[k] = alpha;
      if (there && !p.given && k < memory.slots) memory.scores[k] += alpha;
      if (p.alpha) p.alpha[row * kappa + k] = alpha;
      if (p.ids) p.ids[row * kappa + k] = int32_t(memory.ids[k]);
    });
    return most + logarithm(sum);
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    using device::lane, device::thread, device::warp;
    device::Carver carver{device::shared_memory()};
    const auto memory = Memory::carve(carver, p.memory.slots, p.memory.relevant_size);
    const Rows& rows = p.rows;
    const int64_t b = device::block(), n = rows.hidden, length = rows.length(b);
    const int i = T::unit();
    const bool mine = T::part() == 0 && i < n;
    Whole weights;
    weights.load(p.V, p.W_a, p.U_a, n, false, memory.weights_kept, p.packed);
    begin(p, memory, b, weights);
    int64_t now = p.memory.time[b];
    float params[Cell::params + 1], c = 0, u[Cell::gates] = {};
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = i < n ? p.params[k][i] : 0;
    if (Cell::states > 1 && i < n) c = p.last_c[b * n + i];
    const auto fetch = [&](int64_t t) {
      if (i >= n || t >= length) return;
      RNNKERN_UNROLL
      for (int g = 0; g < Cell::gates; ++g) u[g] = p.u[((rows.offset(t) + b) * Cell::gates + g) * n + i];
    };
    fetch(0);
    device::block_barrier();

    RNNKERN_ROLLED
    for (int64_t t = 0; t < length; ++t, ++now) {
      const int64_t row = rows.offset(t) + b;
      const bool reset = rows.resets(t, b);
      float sums[Cell::gates + 1], old[2] = {}, next[2], save[Cell::saved + 1];
      weights.multiply(sums, memory.s, 0);
      RNNKERN_UNROLL
      for (float& x : sums) {
        const float sum = T::total(x);
        x = reset ? 0.0f : sum;
      }
      old[1] = reset ? 0.0f : c;
      Cell::forward(u, sums, old, params, next, save);
      c = next[1];
      fetch(t + 1);
      if (T::part() == 0) {
        memory.h[i] = next[0];
        memory.query[i] = sums[Cell::gates];
      }
      if (mine) {
        p.h[row * n + i] = next[0];
        if (Cell::states > 1 && p.cells) p.cells[row * n + i] = c;
        RNNKERN_UNROLL
        for (int k = 0; k < Cell::saved; ++k) {
          if (p.gates) p.gates[(row * Cell::saved + k) * n + i] = save[k];
        }
      }
      if (warp() == 0) enter(p, memory, now, reset, p.given ? p.given[t * rows.batch + b] : 0.0f);
      device::block_barrier();

      const float key = weights.key(memory.h);
      if (T::part() == 0) {
        memory.values[memory.taken[1] * P + i] = next[0];
        memory.keys[memory.taken[1] * P + i] = key;
      }
      if (thread() == 0 && p.taken) p.taken[row] = memory.taken[0];
      device::block_barrier();

      memory.each(warp(), attend_warps, [&](int k) {
        if (memory.ids[k] < 0) return;
        const float e = score(memory.query, false, memory.keys + memory.where[k] * P, memory.v, P, p.dot);
        if (lane() == 0) memory.e[k] = e;
      });
      device::block_barrier();
      const float log_sum = weigh(p, memory, row);
      if (thread() == 0 && p.log_sums) p.log_sums[row] = log_sum;
      device::block_barrier();

      float sum = 0;
      memory.each(T::part(), T::parts, [&](int k) {
        if (memory.ids[k] >= 0) sum += memory.weights[k] * memory.values[memory.where[k] * P + i];
      });
      const float s = p.mix * (next[0] + T::total(sum));
      if (T::part() == 0) memory.s[i] = s;
      if (mine) p.s[row * n + i] = s;
      device::block_barrier();
    }
    end(p, memory, b, now);
    if (Cell::states > 1 && mine) p.last_c[b * n + i] = c;
  }
};

}  // namespace rnnkern::relevancy
