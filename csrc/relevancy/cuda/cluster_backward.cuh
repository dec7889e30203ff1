// The backward of all steps of one sample, by the blocks of a cluster. Each block has the rows of V, W_a and U_a of its
// units, in registers and shared memory, and, for its units, h, the key and their gradients for every event in the
// memory. Blocks exchange three things per step: their parts of dalpha of every event (and of its score if alpha was
// not saved), which every block adds up in the order of the blocks; and the results of two products with their rows, of
// which each block gets the part of its own units. There is no cluster barrier in the loop. Steps run backwards. Why no
// block overwrites what another one still reads:
//   parts of dalpha: a block sends those of step t - 1 after it has received all parts of ds of step t. Each
//     block sends its part of ds after a block barrier, before which its threads have added up the parts of dalpha.
//   parts of U_a^T dkey: a block sends those of step t - 1 after it has received all parts of dalpha of that step. Each
//     block sends those after a block barrier, before which its threads have added up U_a^T dkey of step t.
//   parts of ds: likewise.
//
// As in the forward, events do not move in shared memory; only the map from slots to places changes. An event that was
// forgotten at step t is loaded again into the place of the event of step t.
//
// Memory per block: (G+2) D^2 / R weights of 4 bytes; 4 D / R numbers for each event, and R parts of its dalpha.
// Estimated cycles of a step of tanh with 20 events, for D = 256, R = 8 (in parentheses for D = 512, R = 16): dalpha
// 200, exchange of its parts 300 (350), their sums 100 (140), gradients of the events 400, U_a^T dkey 70 (520),
// exchange of its parts 330 (410), cell 100, V^T and W_a^T 130 (260), exchange of their parts 330 (410), barriers 160.
#pragma once

#include "relevancy/cuda/cluster_tile.cuh"
#include "relevancy/cuda/per_sequence_slots.cuh"

namespace rnnkern::relevancy {

// `held` of V and W_a, `held_keys` of U_a: see ClusterRows.
template <class Cell, int D, int R, int held, int held_keys>
struct ClusterBackwardKernel {
  using Problem = PerSequenceBackward;
  static constexpr char header[] = "relevancy/cuda/cluster_backward.cuh";
  using T = ClusterTile<D, R>;
  using Gates = ClusterRows<T, Cell::gates + 1, held>;
  using Keys = ClusterRows<T, 1, held_keys>;
  static constexpr int threads = T::threads, cluster = R, least_blocks = 1;
  static constexpr int pitch = T::units + 4;  // padded to avoid bank conflicts between the parts of a unit

  struct SharedLayout {
    PerSequenceSlots memory;         // `ids`: 0 for an event, -1 for an empty slot; `scores`: dalpha
    float *h, *keys, *dh, *dkeys;    // (kappa, pitch), for the block's units, indexed by place
    float* parts;                    // (R, count): of dalpha, and of scores if alpha was not saved
    float *through_key, *ds;         // (R, pitch): parts of U_a^T dkey and of ds of the block's units
    float *dsum, *query, *v, *dkey;  // (units,)
    float* gates;                    // (G+1, units): dr and dquery
    Four *of_gates, *of_keys;        // weights
    device::Mbarrier* arrived;       // parts, through_key, ds
    int whole;                       // kappa, rounded up to an even number

    static RNNKERN_HOST_DEVICE SharedLayout carve(device::SharedArena& arena, int64_t slots, int64_t relevant_size) {
      SharedLayout shared_layout;
      const int64_t kappa = slots + relevant_size;
      shared_layout.memory = PerSequenceSlots::carve(arena, slots, relevant_size);
      shared_layout.whole = int((kappa + 1) / 2 * 2);
      for (float** x : {&shared_layout.h, &shared_layout.keys, &shared_layout.dh, &shared_layout.dkeys})
        *x = arena.alloc<float>(kappa * pitch);
      shared_layout.parts = arena.alloc<float>(int64_t(R) * 2 * shared_layout.whole);
      for (float** x : {&shared_layout.through_key, &shared_layout.ds}) *x = arena.alloc<float>(R * pitch);
      for (float** x : {&shared_layout.dsum, &shared_layout.query, &shared_layout.v, &shared_layout.dkey})
        *x = arena.alloc<float>(T::units);
      shared_layout.gates = arena.alloc<float>((Cell::gates + 1) * T::units);
      shared_layout.of_gates = Gates::carve(arena);
      shared_layout.of_keys = Keys::carve(arena);
      shared_layout.arrived = arena.alloc<device::Mbarrier>(3);
      return shared_layout;
    }
  };

  RNNKERN_DEVICE static void run(const Problem& p) {
    if constexpr (device::has_clusters) {
      const History& history = p.attend.history;
      device::SharedArena arena{device::shared_memory()};
      Gates of_gates;
      Keys U_a;
      const SharedLayout shared_layout = SharedLayout::carve(arena, history.slots, history.relevant_size);
      ClusterBackwardKernel thread(p, shared_layout, of_gates, U_a);
      thread.run_steps();
    } else {
      device::trap();
    }
  }

  // The inputs and gradients of this thread's unit that are needed first in a step, and are loaded a step ahead.
  struct Ahead {
    float grad_s = 0, query = 0, kept = 0;  // kept: alpha of slot `thread`
  };

  // The inputs that are needed later in a step, loaded while parts are exchanged.
  struct Inputs {
    float grad_h = 0, recalled = 0, old[2] = {}, save[Cell::saved + 1] = {};
  };

  // The gradients of this thread's unit: what its part of the events adds, and the event of this step.
  struct Gradients {
    float dquery = 0, dh = 0, dkey = 0;
  };

  static constexpr int sums_bytes = D * 4;

  const Problem& problem;
  const StepwiseAttentionBackward<float>& p = problem.attend;
  const CellBackward<float>& cell = problem.cell;
  const History& history = p.history;
  const Rows& rows = cell.rows;
  const SharedLayout& shared_layout;
  const PerSequenceSlots& memory = shared_layout.memory;
  Gates& of_gates;
  Keys& U_a;
  const int64_t b = device::block() / R, n = rows.hidden, length = rows.length(b), kappa = memory.members();
  const int own = T::unit(), part = T::part(), unit = device::cluster_rank() * T::units + own;
  const bool real = unit < n, mine = part == 0 && real;
  const int count = p.alpha ? shared_layout.whole : 2 * shared_layout.whole, parts_bytes = R * count * 4;
  const float v = real ? p.v[unit] : 0;
  float dv = 0;

  RNNKERN_DEVICE ClusterBackwardKernel(const Problem& problem, const SharedLayout& shared_layout, Gates& of_gates,
                                       Keys& U_a)
      : problem(problem), shared_layout(shared_layout), of_gates(of_gates), U_a(U_a) {
    if (device::thread() == 0) {
      for (int k = 0; k < 3; ++k) device::init(shared_layout.arrived + k, 1);
      device::init_fence();
      device::expect(shared_layout.arrived, parts_bytes);
      for (int k = 1; k < 3; ++k) device::expect(shared_layout.arrived + k, sums_bytes);
    }
    const auto value_of = [n = n](const float* weight, int row, int column) {
      return row < n && column < n ? weight[row * n + column] : 0.0f;
    };
    of_gates.rest = shared_layout.of_gates;
    of_gates.load([&](int g, int row, int column) {
      return value_of(g < Cell::gates ? problem.V + g * n * n : problem.W_a, row, column);
    });
    U_a.rest = shared_layout.of_keys;
    U_a.load([&](int, int row, int column) { return value_of(problem.U_a, row, column); });
    for (int k = device::thread(); k < kappa; k += threads) memory.where[k] = k;
    if (part == 0) shared_layout.v[own] = v;
    device::block_barrier();
    recall(length - 1);
  }

  RNNKERN_DEVICE void fetch(int64_t t, Ahead& ahead) const {
    if (t < 0) return;
    const int64_t row = rows.offset(t) + b;
    if (real) ahead.query = p.query[row * n + unit];
    if (real && p.grad_s) ahead.grad_s = p.grad_s[row * n + unit];
    if (p.alpha && device::thread() < kappa) ahead.kept = p.alpha[row * kappa + device::thread()];
  }

  RNNKERN_DEVICE void run_steps() {
    float params[Cell::params + 1], dparams[Cell::params + 1] = {};
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::params; ++k) params[k] = real ? cell.params[k][unit] : 0;
    float ds = real ? p.ds[b * n + unit] : 0, dc = Cell::states > 1 && real ? cell.dc[b * n + unit] : 0;
    Ahead ahead;
    fetch(length - 1, ahead);
    device::cluster_barrier();  // no block sends before all mbarriers are initialised

    RNNKERN_ROLLED
    for (int64_t t = length; t-- > 0;) {
      const int64_t row = rows.offset(t) + b, k = length - 1 - t;  // k: the step in processing order
      const bool reset = rows.resets(t, b);
      const float dsum = p.mix * (ds + ahead.grad_s), q = ahead.query;
      if (part == 0) {
        shared_layout.dsum[own] = dsum;
        shared_layout.query[own] = q;
      }
      device::block_barrier();

      const int slot = int(history.taken_by(b, t)), taken = history.taken[row];
      const int32_t back = history.event(b, t - 1, taken < 0 ? slot : memory.slots + taken);
      Inputs inputs;
      if (real) read(t, row, reset, back, inputs);
      add_dalpha(k, row, ahead.kept);
      device::block_barrier();
      if (!p.alpha) {  // with its own softmax, as in stepwise_attention_backward.cuh
        memory.weigh(threads, true);
        device::block_barrier();
      }

      const int place = memory.where[slot] * pitch + own;
      const float h = shared_layout.h[place];
      const Gradients of_event = add_to_events(slot, dsum, q);
      if (part == 0) shared_layout.dkey[own] = of_event.dkey;
      if (mine) {
        p.dkeys.steps[row * n + unit] = of_event.dkey;
        p.query[row * n + unit] = of_event.dquery;
      }
      device::block_barrier();

      U_a.send(shared_layout.dkey, shared_layout.through_key, pitch, shared_layout.arrived + 1);
      fetch(t - 1, ahead);
      if (reset) {
        recall(t - 1);
      } else {
        return_event(place, inputs.recalled);
        if (device::thread() == 0) memory.withdraw(slot, taken, back != no_event);
      }
      T::receive(shared_layout.arrived + 1, k, sums_bytes);
      float next[2] = {h},
            grad[2] = {of_event.dh + dsum + inputs.grad_h + T::sum(shared_layout.through_key, pitch), dc};
      float du[Cell::gates], dr[Cell::gates];
      Cell::backward(inputs.save, inputs.old, next, params, grad, du, dr, dparams);
      dc = reset ? 0.0f : grad[1];
      if (part == 0) store(row, du, dr, of_event.dquery);
      device::block_barrier();

      of_gates.send(shared_layout.gates, shared_layout.ds, pitch, shared_layout.arrived + 2);
      T::receive(shared_layout.arrived + 2, k, sums_bytes);
      const float sum = T::sum(shared_layout.ds, pitch);
      ds = reset ? 0.0f : sum;
    }
    device::block_barrier();
    end();
    dv = T::total(dv);
    if (mine) {
      p.ds[b * n + unit] = ds;
      p.dv[b * n + unit] = dv;
      if (Cell::states > 1) cell.dc[b * n + unit] = dc;
      RNNKERN_UNROLL
      for (int k = 0; k < Cell::params; ++k) cell.dparams[k][b * n + unit] = dparams[k];
    }
    device::cluster_barrier();  // no block exits while others may still send to it
  }

  RNNKERN_DEVICE void read(int64_t t, int64_t row, bool reset, int32_t back, Inputs& inputs) const {
    if (p.grad_h) inputs.grad_h = p.grad_h[row * n + unit];
    if (part < 2 && back != no_event) inputs.recalled = history.at(part == 0 ? p.h : p.keys, b, back)[unit];
    if (Cell::states > 1 && !reset) {
      inputs.old[1] = t > 0 ? cell.cells[(rows.offset(t - 1) + b) * n + unit] : cell.c0[b * n + unit];
    }
    RNNKERN_UNROLL
    for (int k = 0; k < Cell::saved; ++k) inputs.save[k] = cell.gates[(row * Cell::saved + k) * n + unit];
  }

  // Exchanges the parts of dalpha, and of the scores if alpha was not saved, and adds them up.
  RNNKERN_DEVICE void add_dalpha(int64_t step, int64_t row, float kept) const {
    T::give_pairs(count, shared_layout.parts, shared_layout.arrived, [&](int k) { return part_of(k); });
    T::receive(shared_layout.arrived, step, parts_bytes);
    for (int k = device::thread(); k < kappa; k += threads) {
      float sum = 0, e = 0;
      RNNKERN_UNROLL
      for (int r = 0; r < R; ++r) {
        sum += shared_layout.parts[r * count + k];
        if (!p.alpha) e += shared_layout.parts[r * count + shared_layout.whole + k];
      }
      memory.scores[k] = sum;
      memory.e[k] = e;
      if (p.alpha) memory.weights[k] = k == device::thread() ? kept : p.alpha[row * kappa + k];
    }
  }

  // Adds to the gradients of all events and of v.
  RNNKERN_DEVICE Gradients add_to_events(int slot, float dsum, float q) {
    float mean = 0;
    memory.each(device::lane(), device::warp_size, [&](int k) {
      if (memory.ids[k] >= 0) mean += memory.weights[k] * memory.scores[k];
    });
    mean = warp_sum(mean);
    Gradients of;
    memory.each(part, T::parts, [&](int k) {
      if (memory.ids[k] < 0) return;
      const int i = memory.where[k] * pitch + own;
      const float a = memory.weights[k], de = a * (memory.scores[k] - mean), key = shared_layout.keys[i];
      const float th = p.dot ? q * key : tanh(q + key), through = p.dot ? de * v : de * v * (1 - th * th);
      const float of_event = shared_layout.dh[i] + a * dsum,
                  of_key = shared_layout.dkeys[i] + (p.dot ? through * q : through);
      shared_layout.dh[i] = of_event;
      shared_layout.dkeys[i] = of_key;
      of.dquery += p.dot ? through * key : through;
      dv += de * th;
      if (k == slot) {
        of.dh = of_event;
        of.dkey = of_key;
      }
    });
    return {T::total(of.dquery), T::total(of.dh), T::total(of.dkey)};
  }

  // Puts the event that was forgotten at this step in the place of the new one.
  RNNKERN_DEVICE void return_event(int place, float recalled) const {
    if (part == 0) shared_layout.h[place] = recalled;
    if (part == 1) shared_layout.keys[place] = recalled;
    if (part == 2) shared_layout.dh[place] = 0;
    if (part == 3) shared_layout.dkeys[place] = 0;
  }

  // Stores the gradients of the gates, in memory and as the operand of the product.
  RNNKERN_DEVICE void store(int64_t row, const float (&du)[Cell::gates], const float (&dr)[Cell::gates],
                            float dquery) const {
    RNNKERN_UNROLL
    for (int g = 0; g < Cell::gates; ++g) {
      if (real) cell.du[(row * Cell::gates + g) * n + unit] = du[g];
      shared_layout.gates[g * T::units + own] = real ? dr[g] : 0;
    }
    shared_layout.gates[Cell::gates * T::units + own] = dquery;
  }

  // Restores the slots as they were after step t, at which nothing but the gradients of the final memory has been added
  // to the gradients of their events.
  RNNKERN_DEVICE void recall(int64_t t) const {
    for (int slot = 0; slot < memory.members(); ++slot) {
      const int32_t event = history.event(b, t, slot);
      const bool there = event != no_event && real;
      const int i = memory.where[slot] * pitch + own;
      if (part == 0) shared_layout.h[i] = there ? history.at(p.h, b, event)[unit] : 0;
      if (part == 1) shared_layout.keys[i] = there ? history.at(p.keys, b, event)[unit] : 0;
      if (part == 2) shared_layout.dh[i] = there ? history.at(p.dh, b, event)[unit] : 0;
      if (part == 3) shared_layout.dkeys[i] = 0;
      if (device::thread() == 0) memory.ids[slot] = event != no_event ? 0 : -1;
    }
  }

  // Stores the gradients of the events of the initial state.
  RNNKERN_DEVICE void end() const {
    if (!real) return;
    memory.each(part, T::parts, [&](int slot) {
      const int32_t event = history.event(b, -1, slot);
      if (event == no_event) return;
      const int i = memory.where[slot] * pitch + own;
      history.at(p.dh, b, event)[unit] = shared_layout.dh[i];
      history.at(p.dkeys, b, event)[unit] = shared_layout.dkeys[i];
    });
  }

  // The block's part of dalpha of a slot, or, for k from `whole` on, of its score. All lanes of the warp get it.
  RNNKERN_DEVICE float part_of(int k) const {
    const int slot = k < shared_layout.whole ? k : k - shared_layout.whole;
    if (slot >= memory.members() || memory.ids[slot] < 0) return 0;
    const int place = memory.where[slot] * pitch;
    if (k >= shared_layout.whole)
      return score(shared_layout.query, false, shared_layout.keys + place, shared_layout.v, T::units, p.dot);
    float sum = 0;
    for (int i = device::lane(); i < T::units; i += device::warp_size)
      sum += shared_layout.dsum[i] * shared_layout.h[place + i];
    return warp_sum(sum);
  }
};

}  // namespace rnnkern::relevancy
