// All steps of one sample, by the blocks of a cluster. Each block has the rows of V, W_a and U_a of its units, in
// registers and shared memory, its units of every event's key, and all of every event's h, so that s_t needs no
// exchange. Blocks exchange two things per step: h of their units, and their parts of the score of every event, which
// every block adds up in the order of the blocks. Each block does the screening and the softmax itself, with the same
// numbers. There is no cluster barrier in the loop. Why no data is overwritten before it is read:
//   h: a block sends h of step t + 1 after it has received all parts of the scores of step t. Every block sends those
//     after a block barrier, before which its threads have read h of step t.
//   parts of scores: a block sends those of step t + 1 after it has received all of h of that step. Every block sends h
//     after a block barrier, before which its threads have added up the parts of step t.
//
// Memory per block: (G+2) D^2 / R weights of 4 bytes; D + D / R numbers for each event, and R parts of its score.
// Estimated cycles of a step of tanh with 20 events, for D = 256, R = 8 (in parentheses for D = 512, R = 16): V and W_a
// s 180 (400), cell 150, exchange of h 330 (410), U_a h 120 (260), scores 250, exchange of their parts 300 (350),
// softmax 400, weighted sum 150 (300), five barriers 200.
#pragma once

#include "relevancy/cuda/cluster_tile.cuh"
#include "relevancy/cuda/per_sequence_slots.cuh"

namespace rnnkern::relevancy {

template <class Cell, int D, int R, int held>
struct ClusterForwardKernel {
  using Problem = PerSequenceForward;
  static constexpr char header[] = "relevancy/cuda/cluster_forward.cuh";
  using T = ClusterTile<D, R>;
  using Query = ClusterWeights<T, Cell::gates + 1, held>;
  using Keys = ClusterWeights<T, 1, held>;
  static constexpr int threads = T::threads, cluster = R, least_blocks = 1;

  struct SharedLayout {
    PerSequenceSlots memory;
    float *values, *keys;       // (kappa, D), (kappa, units), indexed by place
    float* parts;               // (R, pitch): parts of the scores
    float *s, *h;               // (D,)
    float *query, *v;           // (units,)
    Four *of_query, *of_keys;   // weights
    device::Mbarrier* arrived;  // h, parts
    int pitch;                  // kappa, rounded up to an even number

    static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena, int64_t slots, int64_t relevant_size) {
      SharedLayout shared_layout;
      const int64_t kappa = slots + relevant_size;
      shared_layout.memory = PerSequenceSlots::carve(arena, slots, relevant_size);
      shared_layout.pitch = int((kappa + 1) / 2 * 2);
      shared_layout.values = arena.alloc<float>(kappa * D);
      shared_layout.keys = arena.alloc<float>(kappa * T::units);
      shared_layout.parts = arena.alloc<float>(int64_t(R) * shared_layout.pitch);
      for (float** x : {&shared_layout.s, &shared_layout.h}) *x = arena.alloc<float>(D);
      for (float** x : {&shared_layout.query, &shared_layout.v}) *x = arena.alloc<float>(T::units);
      shared_layout.of_query = Query::carve(arena);
      shared_layout.of_keys = Keys::carve(arena);
      shared_layout.arrived = arena.alloc<device::Mbarrier>(2);
      return shared_layout;
    }
  };

  RNNKERN_DEVICE static void run(const Problem& p) {
    if constexpr (device::has_clusters) {
      device::SharedArena arena{device::shared_memory()};
      Query weights;
      Keys U_a;
      const SharedLayout shared_layout = SharedLayout::carve(arena, p.memory.slots, p.memory.relevant_size);
      ClusterForwardKernel thread(p, shared_layout, weights, U_a);
      thread.run_steps();
    } else {
      device::trap();
    }
  }

  static constexpr int h_bytes = D * 4;

  const Problem& p;
  const Rows& rows = p.rows;
  const SharedLayout& shared_layout;
  const PerSequenceSlots& memory = shared_layout.memory;
  Query& weights;
  Keys& U_a;
  const int64_t b = device::block() / R, n = rows.hidden, length = rows.length(b);
  const int rank = device::cluster_rank(), own = T::unit(), unit = rank * T::units + own;
  const bool real = unit < n, mine = T::part() == 0 && real;
  const int parts_bytes = R * shared_layout.pitch * 4;

  RNNKERN_DEVICE ClusterForwardKernel(const Problem& p, const SharedLayout& shared_layout, Query& weights, Keys& U_a)
      : p(p), shared_layout(shared_layout), weights(weights), U_a(U_a) {
    if (device::thread() == 0) {
      for (int k = 0; k < 2; ++k) device::init(shared_layout.arrived + k, 1);
      device::init_fence();
      device::expect(shared_layout.arrived, h_bytes);
      device::expect(shared_layout.arrived + 1, parts_bytes);
    }
    const auto rows_of = [&](const float* weight) {
      return [=, this](int column) { return real && column < n ? weight[unit * n + column] : 0.0f; };
    };
    weights.rest = shared_layout.of_query;
    RNNKERN_UNROLL
    for (int g = 0; g <= Cell::gates; ++g) weights.load(g, rows_of(g < Cell::gates ? p.V + g * n * n : p.W_a));
    U_a.rest = shared_layout.of_keys;
    U_a.load(0, rows_of(p.U_a));
  }

  RNNKERN_DEVICE void fetch(int64_t t, float (&u)[Cell::gates]) const {
    if (!real || t >= length) return;
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) u[g] = p.u[((rows.offset(t) + b) * Cell::gates + g) * n + unit];
  }

  RNNKERN_DEVICE void run_steps() {
    begin();
    int64_t now = p.memory.time[b];
    float params[Cell::params + 1], c = 0, u[Cell::gates] = {};
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = real ? p.params[k][unit] : 0;
    if (Cell::states > 1 && real) c = p.last_c[b * n + unit];
    fetch(0, u);
    device::cluster_barrier();  // no block sends before all mbarriers are initialised, or writes the initial state
                                // before it is read
    RNNKERN_ROLLED
    for (int64_t t = 0; t < length; ++t, ++now) {
      const int64_t row = rows.offset(t) + b;
      const bool reset = rows.resets(t, b);
      run_cell(t, row, reset, params, u, c);
      if (device::warp() == 0)
        memory.enter(now, p.memory.buffer_size, reset, p.given ? p.given[t * rows.batch + b] : 0.0f);
      device::block_barrier();

      const int place = memory.taken[1];
      enter_event(t, place);
      device::block_barrier();

      add_scores(t);
      device::block_barrier();
      memory.weigh(threads, p.given);
      device::block_barrier();

      attend(row, place);
      if (rank == 0) memory.tell(p, row, threads);
      device::block_barrier();
    }
    end(now);
    if (Cell::states > 1 && mine) p.last_c[b * n + unit] = c;
    device::cluster_barrier();  // no block exits while others may still send to it
  }

  // Multiplies s by V and W_a, applies the equations, and sends h.
  RNNKERN_DEVICE void run_cell(int64_t t, int64_t row, bool reset, const float (&params)[Cell::params + 1],
                               float (&u)[Cell::gates], float& c) const {
    float sums[Cell::gates + 1], old[2] = {}, next[2], save[Cell::saved + 1];
    weights.multiply(shared_layout.s, sums);
    RNNKERN_UNROLL
    for (int g = 0; g <= Cell::gates; ++g) sums[g] = reset ? 0.0f : sums[g];
    old[1] = reset ? 0.0f : c;
    Cell::forward(u, sums, old, params, next, save);
    c = next[1];
    T::give(real ? next[0] : 0.0f, shared_layout.h,
            shared_layout.arrived);  // first, since the other blocks wait for it
    fetch(t + 1, u);
    if (T::part() == 0) shared_layout.query[own] = sums[Cell::gates];
    if (mine) store_step<Cell>(p, row, unit, next, save);
  }

  // Receives h, the new event, and computes its key.
  RNNKERN_DEVICE void enter_event(int64_t t, int place) const {
    float key[1];
    T::receive(shared_layout.arrived, t, h_bytes);
    U_a.multiply(shared_layout.h, key);
    if (T::part() == 0) shared_layout.keys[place * T::units + own] = key[0];
    for (int i = device::thread(); i < D; i += threads) shared_layout.values[place * D + i] = shared_layout.h[i];
  }

  // Exchanges the parts of the scores, and adds them up.
  RNNKERN_DEVICE void add_scores(int64_t t) const {
    T::give_pairs(shared_layout.pitch, shared_layout.parts, shared_layout.arrived + 1,
                  [&](int k) { return score_part(k); });
    T::receive(shared_layout.arrived + 1, t, parts_bytes);
    memory.each(device::thread(), threads, [&](int k) {
      float e = 0;
      RNNKERN_UNROLL
      for (int r = 0; r < R; ++r) e += shared_layout.parts[r * shared_layout.pitch + k];
      memory.e[k] = e;
    });
  }

  // s, from the new event and the weighted sum of all events.
  RNNKERN_DEVICE void attend(int64_t row, int place) const {
    for (int i = device::thread(); i < D; i += threads) {
      float sum = 0;
      memory.each(0, 1, [&](int k) {
        if (memory.ids[k] >= 0) sum += memory.weights[k] * shared_layout.values[memory.where[k] * D + i];
      });
      const float s = p.mix * (shared_layout.values[place * D + i] + sum);
      shared_layout.s[i] = s;
      if (i / T::units == rank && i < n) p.s[row * n + i] = s;
    }
  }

  RNNKERN_DEVICE void begin() const {
    const int n = int(rows.hidden);
    memory.read(p.memory, b, threads);
    for (int i = device::thread(); i < D; i += threads) shared_layout.s[i] = i < n ? p.last_s[b * n + i] : 0;
    if (T::part() == 0) shared_layout.v[T::unit()] = unit < n ? p.v[unit] : 0;
    memory.each_row(b, 0, 1, [&](int slot, int64_t row, bool of_buffer) {
      const float* const from = (of_buffer ? p.memory.buffer : p.memory.relevant) + row * n;
      for (int i = device::thread(); i < D; i += threads) shared_layout.values[slot * D + i] = i < n ? from[i] : 0;
    });
    device::block_barrier();
    for (int slot = 0; slot < memory.members(); ++slot) {
      float key[1];
      U_a.multiply(shared_layout.values + slot * D, key);
      if (T::part() == 0) shared_layout.keys[slot * T::units + T::unit()] = key[0];
    }
  }

  // Each block writes its own units; the first one also writes what is not per unit.
  RNNKERN_DEVICE void end(int64_t now) const {
    const int n = int(rows.hidden);
    if (rank == 0) memory.write(p.memory, b, now, threads);
    if (unit >= n) return;
    if (T::part() == 0) p.last_s[b * n + unit] = shared_layout.s[unit];
    memory.each_row(b, T::part(), T::parts, [&](int slot, int64_t row, bool of_buffer) {
      const float h = memory.ids[slot] >= 0 ? shared_layout.values[memory.where[slot] * D + unit] : 0;
      (of_buffer ? p.memory.buffer : p.memory.relevant)[row * n + unit] = h;
    });
  }

  // The block's part of the score of a slot. All lanes of the warp get it.
  RNNKERN_DEVICE float score_part(int slot) const {
    if (slot >= memory.members() || memory.ids[slot] < 0) return 0;
    return score(shared_layout.query, false, shared_layout.keys + memory.where[slot] * T::units, shared_layout.v,
                 T::units, p.dot);
  }
};

}  // namespace rnnkern::relevancy
