// All steps of one sample, by one block: V, W_a and U_a are kept as described in per_sequence_tile.cuh, the memory in
// shared memory. Events do not move; only the map from slots to places changes.
#pragma once

#include "relevancy/cuda/per_sequence_slots.cuh"
#include "relevancy/cuda/per_sequence_tile.cuh"

namespace rnnkern::relevancy {

template <class Cell, int P, class W>
struct PerSequenceMemory {
  using Whole = Weights<Cell, P, W, forward_placement<Cell::gates, P, W>>;

  PerSequenceSlots slots;
  float *values, *keys;      // (kappa, P), indexed by place
  float *s, *h, *query, *v;  // (P,)
  Whole::SharedLayout weights;

  static RNNKERN_HOST_DEVICE PerSequenceMemory carve(device::SharedArena& arena, int64_t slots, int64_t relevant_size) {
    PerSequenceMemory m;
    const int64_t kappa = slots + relevant_size;
    m.slots = PerSequenceSlots::carve(arena, slots, relevant_size);
    for (float** x : {&m.values, &m.keys}) *x = arena.alloc<float>(kappa * P);
    for (float** x : {&m.s, &m.h, &m.query, &m.v}) *x = arena.alloc<float>(P);
    m.weights = Whole::SharedLayout::carve(arena);
    return m;
  }
};

template <class Cell, int P, class W>
struct PerSequenceForwardKernel {
  using Problem = PerSequenceForward;
  static constexpr char header[] = "relevancy/cuda/per_sequence_forward.cuh";
  using T = Tile<P, W>;
  using Memory = PerSequenceMemory<Cell, P, W>;
  using Whole = Memory::Whole;
  static constexpr int threads = per_sequence_threads, least_blocks = 1;

  RNNKERN_DEVICE static void begin(const Problem& p, const Memory& memory, int64_t b, const Whole& weights) {
    const int64_t n = p.rows.hidden;
    const int i = T::unit();
    const bool first = T::part() == 0;
    memory.slots.read(p.memory, b, threads);
    if (first) {
      memory.s[i] = i < n ? p.last_s[b * n + i] : 0;
      memory.v[i] = i < n ? p.v[i] : 0;
    }
    memory.slots.each_row(b, 0, 1, [&](int slot, int64_t row, bool of_buffer) {
      const float h = i < n ? (of_buffer ? p.memory.buffer : p.memory.relevant)[row * n + i] : 0;
      if (first) memory.values[slot * P + i] = h;
    });
    device::block_barrier();
    for (int slot = 0; slot < memory.slots.members(); ++slot) {
      const float key = weights.key(memory.values + slot * P);
      if (first) memory.keys[slot * P + i] = key;
    }
  }

  RNNKERN_DEVICE static void end(const Problem& p, const Memory& memory, int64_t b, int64_t now) {
    const int64_t n = p.rows.hidden;
    const int i = T::unit();
    memory.slots.write(p.memory, b, now, threads);
    if (T::part() > 0 || i >= n) return;
    p.last_s[b * n + i] = memory.s[i];
    memory.slots.each_row(b, 0, 1, [&](int slot, int64_t row, bool of_buffer) {
      const float h = memory.slots.ids[slot] >= 0 ? memory.values[memory.slots.where[slot] * P + i] : 0;
      (of_buffer ? p.memory.buffer : p.memory.relevant)[row * n + i] = h;
    });
  }

  // The score of every event, one warp per slot.
  RNNKERN_DEVICE static void score_slots(const Problem& p, const Memory& memory) {
    const PerSequenceSlots& slots = memory.slots;
    slots.each(device::warp(), stepwise_attention_warps, [&](int k) {
      if (slots.ids[k] < 0) return;
      const float e = score(memory.query, false, memory.keys + slots.where[k] * P, memory.v, P, p.dot);
      if (device::lane() == 0) slots.e[k] = e;
    });
  }

  RNNKERN_DEVICE static void run(const Problem& p) {
    device::SharedArena arena{device::shared_memory()};
    const auto memory = Memory::carve(arena, p.memory.slots, p.memory.relevant_size);
    const PerSequenceSlots& slots = memory.slots;
    const Rows& rows = p.rows;
    const int64_t b = device::block(), n = rows.hidden, length = rows.length(b);
    const int i = T::unit();
    const bool mine = T::part() == 0 && i < n;
    Whole weights;
    weights.load(p, n, false, memory.weights);
    begin(p, memory, b, weights);
    int64_t now = p.memory.time[b];
    float params[Cell::params + 1], c = 0, u[Cell::gates] = {};
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = i < n ? p.params[k][i] : 0;
    if (Cell::states > 1 && i < n) c = p.last_c[b * n + i];
    const auto fetch = [&](int64_t t) {
      if (i >= n || t >= length) return;
      const float* const row = p.u + (rows.offset(t) + b) * Cell::gates * n + i;
      RNNKERN_UNROLL
      for (int g = 0; g < Cell::gates; ++g) u[g] = row[g * n];
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
      if (mine) store_step<Cell>(p, row, i, next, save);
      if (device::warp() == 0)
        slots.enter(now, p.memory.buffer_size, reset, p.given ? p.given[t * rows.batch + b] : 0.0f);
      device::block_barrier();

      const float key = weights.key(memory.h);
      if (T::part() == 0) {
        memory.values[slots.taken[1] * P + i] = next[0];
        memory.keys[slots.taken[1] * P + i] = key;
      }
      device::block_barrier();

      score_slots(p, memory);
      device::block_barrier();
      slots.weigh(threads, p.given);
      slots.tell(p, row, threads);
      device::block_barrier();

      float sum = 0;
      slots.each(T::part(), T::parts, [&](int k) {
        if (slots.ids[k] >= 0) sum += slots.weights[k] * memory.values[slots.where[k] * P + i];
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
