// h_t = modrelu(u_t + F_L ... F_1 D h_{t-1}; b): all steps of a sequence by one warp, with the state in registers.
#pragma once

#include "orthogonal/cuda/givens_lanes.cuh"
#include "orthogonal/givens_activation.h"

namespace rnnkern::givens {

template <class T, int parts, int each>
struct ForwardKernel {
  using Problem = ForwardProblem<T>;
  static constexpr char header[] = "orthogonal/cuda/givens_forward.cuh";
  using Rows = SharedLayout<T, parts, each, 1>;
  static constexpr int threads = warp_size, least_blocks = 1;

  static int64_t bytes() { return device::bytes_of<Rows>(); }

  RNNKERN_DEVICE static void run(const Problem& p) {
    device::SharedArena arena{device::shared_memory()};
    const Rows shared_layout = Rows::carve(arena);
    const GivensSequences& sequences = p.sequences;
    const int reals = int(sequences.reals);
    const T* const bias = shared_layout.bias + Row<T, each>::own();
    shared_layout.begin(p.bias, p.packing.sizes.size);
    RNNKERN_ROLLED
    for (int64_t b = device::block(); b < sequences.batch; b += device::blocks()) {
      const int length = int(sequences.length(b));
      const auto fetch = [&](int place) {
        if (place < length) {
          const T* const from = p.u + sequences.row_at(place, length, b) * reals;
          Rows::State::fetch(shared_layout.of_step(place, 0), from, reals);
        }
        device::commit_copies();
      };
      Number<T, parts> x[each];
      device::block_barrier();
      shared_layout.load(x, p.h0 + b * reals, reals);
      for (int place = 0; place < Rows::depth - 1; ++place) fetch(place);
      RNNKERN_ROLLED
      for (int place = 0; place < length; ++place) {
        fetch(place + Rows::depth - 1);
        if (sequences.resets(place, length, b)) {
          RNNKERN_UNROLL
          for (Number<T, parts>& number : x) number = {};
        }
        rotate_state(p, x);
        device::wait_copies<Rows::depth - 1>();
        device::block_barrier();
        const T* const u = shared_layout.of_step(place, 0) + Rows::State::own();
        RNNKERN_UNROLL
        for (int k = 0; k < each; ++k) {
          RNNKERN_UNROLL
          for (int part = 0; part < parts; ++part) x[k].of[part] += u[k * parts + part];
          activate(x[k].of, bias[k]);
        }
        shared_layout.give(x, p.h + sequences.row_at(place, length, b) * reals, reals);
      }
      Rows::State::store(shared_layout.out, p.last + b * reals, reals);
    }
  }
};

}  // namespace rnnkern::givens
