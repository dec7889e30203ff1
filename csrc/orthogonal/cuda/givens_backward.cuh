// The backward of all steps of a sequence, by one warp, from the last step to the first. Each step computes its layers
// again from h_{t-1}, and then undoes them one by one, for the values and their gradient. The warp sums the gradients
// of the parameters; each entry belongs to one lane.
#pragma once

#include "orthogonal/cuda/givens_lanes.cuh"
#include "orthogonal/givens_activation.h"

namespace rnnkern::givens {

template <class T, int parts, int each>
struct BackwardKernel {
  using Problem = BackwardProblem<T>;
  static constexpr char header[] = "orthogonal/cuda/givens_backward.cuh";
  using Rows = SharedLayout<T, parts, each, 3>;
  using State = Rows::State;
  using Value = Number<T, parts>;
  using Both = Number<T, 2 * parts>;
  static constexpr int threads = warp_size, least_blocks = 1;
  enum Kind { before, input, grad };

  // This lane's sums; consecutive ones are warp_size apart.
  struct Sums {
    T *angles, *phases, *diagonal, *bias;

    RNNKERN_DEVICE Sums(const Packing& packing, T* sums)
        : angles(sums + device::lane()),
          phases(angles + packing.phases()),
          diagonal(angles + packing.diagonal()),
          bias(angles + packing.bias()) {}
  };

  RNNKERN_DEVICE static void run(const Problem& p) {
    device::SharedArena arena{device::shared_memory()};
    const Rows shared_layout = Rows::carve(arena);
    const int64_t total = p.packing.total();
    T* const left = p.sums + device::block() * total;
    T* const sums = p.on_chip ? arena.alloc<T>(total) : left;
    for (int64_t entry = device::lane(); entry < total; entry += warp_size) sums[entry] = 0;
    shared_layout.begin(p.bias, p.packing.sizes.size);
    RNNKERN_ROLLED
    for (int64_t b = device::block(); b < p.sequences.batch; b += device::blocks())
      one(p, shared_layout, Sums(p.packing, sums), b);
    if (!p.on_chip) return;
    for (int64_t entry = device::lane(); entry < p.packing.total(); entry += warp_size) left[entry] = sums[entry];
  }

  // Loads the rows of a step; nothing before the first.
  RNNKERN_DEVICE static void fetch(const Problem& p, const Rows& shared_layout, int place, int length, int64_t b) {
    if (place >= 0) {
      const int reals = int(p.sequences.reals);
      const int64_t row = p.sequences.row_at(place, length, b) * reals;
      const T* const from = place > 0 ? p.h + p.sequences.row_at(place - 1, length, b) * reals : p.h0 + b * reals;
      State::fetch(shared_layout.of_step(place, before), from, reals);
      State::fetch(shared_layout.of_step(place, input), p.u + row, reals);
      if (p.grad_h) State::fetch(shared_layout.of_step(place, grad), p.grad_h + row, reals);
    }
    device::commit_copies();
  }

  RNNKERN_DEVICE static void one(const Problem& p, const Rows& shared_layout, const Sums& sums, int64_t b) {
    const GivensSequences& sequences = p.sequences;
    const int reals = int(sequences.reals);
    const int length = int(sequences.length(b));
    Value grads[each] = {};
    device::block_barrier();
    if (p.grad_last) shared_layout.load(grads, p.grad_last + b * reals, reals);
    for (int k = 1; k < Rows::depth; ++k) fetch(p, shared_layout, length - k, length, b);
    RNNKERN_ROLLED
    for (int place = length; place-- > 0;) {
      const bool reset = sequences.resets(place, length, b);
      Value values[each];
      fetch(p, shared_layout, place - (Rows::depth - 1), length, b);
      device::wait_copies<Rows::depth - 1>();
      device::block_barrier();
      read(values, shared_layout.of_step(place, before));
      if (reset) clear(values);
      rotate_state(p, values);
      activate_back(p, shared_layout, place, values, grads, sums);
      shared_layout.give(grads, p.grad_u + sequences.row_at(place, length, b) * reals, reals);
      unrotate_state(p, values, grads, sums);
      if (reset) clear(grads);
    }
    device::block_barrier();
    shared_layout.give(grads, p.grad_h0 + b * reals, reals);
  }

  // The backward of the activation of z = u + y. `grads`: in, the gradient from the next step; out, dL/dz.
  RNNKERN_DEVICE static void activate_back(const Problem& p, const Rows& shared_layout, int place,
                                           const Value (&values)[each], Value (&grads)[each], const Sums& sums) {
    const T* const u = shared_layout.of_step(place, input) + State::own();
    const T* const own = shared_layout.of_step(place, grad) + State::own();
    const T* const bias = shared_layout.bias + Row<T, each>::own();
    RNNKERN_UNROLL
    for (int k = 0; k < each; ++k) {
      T z[parts];
      RNNKERN_UNROLL
      for (int part = 0; part < parts; ++part) {
        z[part] = u[k * parts + part] + values[k].of[part];
        if (p.grad_h) grads[k].of[part] += own[k * parts + part];
      }
      sums.bias[k * warp_size] += rnnkern::activate_back(z, bias[k], grads[k].of);
    }
  }

  // Applies D^-1 F_1^-1 ... F_L^-1 to values and gradients, and adds to the gradients of the angles and phases.
  RNNKERN_DEVICE static void unrotate_state(const Problem& p, const Value (&values)[each], Value (&grads)[each],
                                            const Sums& sums) {
    Both x[each];
    RNNKERN_UNROLL
    for (int i = 0; i < each * parts; ++i) {
      x[i / parts].of[i % parts] = values[i / parts].of[i % parts];
      x[i / parts].of[parts + i % parts] = grads[i / parts].of[i % parts];
    }
    over_layers<2, true, parts, each>(p, [&](int layer, int stage, const auto& sincos) {
      const int64_t first = int64_t(layer) * (each / 2 * warp_size);
      over_pairs(p.packing.sizes.butterfly, stage, x, [&](int k, Both& a, Both& b) {
        if constexpr (parts == 2)
          sums.phases[first + k * warp_size] += rotate_back(sincos.phase(k), a.of[0], a.of[1], a.of[2], a.of[3]);
        const SinCos<T> angle = sincos.angle(k);
        T found = 0;
        RNNKERN_UNROLL
        for (int part = 0; part < parts; ++part)
          found += rotate_back(angle, a.of[part], b.of[part], a.of[parts + part], b.of[parts + part]);
        sums.angles[first + k * warp_size] += found;
      });
    });
    if constexpr (parts == 2) {
      const SinCos<T>* const diagonal = p.sincos + p.packing.diagonal() + device::lane();
      RNNKERN_UNROLL
      for (int k = 0; k < each; ++k) {
        const SinCos<T> turn = diagonal[k * warp_size];
        sums.diagonal[k * warp_size] += rotate_back(turn, x[k].of[0], x[k].of[1], x[k].of[2], x[k].of[3]);
      }
    }
    RNNKERN_UNROLL
    for (int i = 0; i < each * parts; ++i) grads[i / parts].of[i % parts] = x[i / parts].of[parts + i % parts];
  }
};

}  // namespace rnnkern::givens
