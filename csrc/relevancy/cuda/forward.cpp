// The forward of the relevancy recurrence on a CUDA device: one kernel for all steps, with a block or a cluster per
// sample; or per step a product for V and W_a, the cell, a product for the new event's key, and one kernel that screens
// and attends.
#include "cuda/library.h"
#include "relevancy/cuda/driver.h"
#include "relevancy/cuda/stepwise_attention_forward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"

namespace rnnkern::relevancy {
namespace {

template <class T>
struct ForwardDriver : Driver<T, Call> {
  using Base = Driver<T, Call>;
  using Base::cell, Base::first, Base::hidden, Base::kernels, Base::layout, Base::made, Base::params, Base::plan;
  using Base::first_slots, Base::relevant_size, Base::rows, Base::slots, Base::stream, Base::total, Base::U_a;

  Tensor u;
  ForwardResults results;
  OptionalTensor alpha;  // for all rows; empty if not wanted
  const State& last = results.last;
  Memory<T> memory{};
  OptionalTensor keys, relevant_keys;
  Tensor now, key, r;

  ForwardDriver(const Arguments& arguments, const Tensor& u_, bool training, bool maps)
      : Base(u_, arguments, "u"), u(dense(u_)), results(*this, u, training, maps), alpha(results.alpha) {
    require(u.size(-1) == cell.gates * hidden, "the columns of `u`");
    if (results.cells) results.gates = made({total, cell.saved * hidden});
    if (maps && !alpha) alpha = made({total, this->members()});
  }

  Tensors run() {
    begin();
    count("relevancy_recurrence/cuda", "forward", cell.name, plan.name());
    if (plan.stepwise()) {
      run_stepwise();
    } else if constexpr (std::is_same_v<T, float>) {
      run_resident();
    }
    if (results.map) copy(shaped(*results.map, {total, this->members()}), *alpha);
    return results.list();
  }

  AttentionForward<T> attention() const {
    return {memory,
            read<T>(this->v),
            read<T>(this->given),
            T(this->mix),
            this->sizes.dot,
            write<T>(results.s),
            write<T>(alpha),
            write<int64_t>(results.ids),
            write<int32_t>(results.taken)};
  }

  // Runs all steps in one kernel that keeps the weights.
  void run_resident() const {
    PerSequenceForward p{attention()};
    p.rows = rows;
    p.u = read<T>(u);
    p.params[0] = read<T>(params);
    p.last_s = write<T>(last.s);
    p.last_c = write<T>(last.c);
    p.h = write<T>(results.h);
    p.gates = write<T>(results.gates);
    p.cells = write<T>(results.cells);
    this->start_resident(plan.kernels.forward, p, false);
  }

  void run_stepwise() {
    const int64_t kappa = this->members();
    const Tensor workspace = alpha ? *alpha : made({rows.batch, kappa});  // for alpha if it is not saved
    T *const all_gates = write<T>(results.gates), *const all_cells = write<T>(results.cells);
    prepare_keys();
    const AttentionForward<T> all = attention();
    StepwiseAttentionForward<T> attend{all};
    CellForward<T> step{};
    step.hidden = attend.hidden = hidden;
    step.r = attend.r = read<T>(r);
    step.params[0] = read<T>(params);
    step.c = write<T>(last.c);
    step.now = write<T>(now);
    attend.products = (cell.gates + 1) * hidden;
    attend.h = read<T>(now);
    attend.key = read<T>(key);
    attend.state = write<T>(last.s);

    Tensor in, products, made_h, made_key;
    const Tensor to_r = transposed(this->stacked, 0, 1), to_key = transposed(U_a, 0, 1);
    int64_t row = 0, alive = -1;
    for (int64_t t = 0; t < rows.count; ++t, row += alive) {
      if (layout.alive(t) != alive) {
        alive = layout.alive(t);
        if (alive == 0) break;
        in = part(last.s, 0, 0, alive);
        products = part(r, 0, 0, alive);
        made_h = part(now, 0, 0, alive);
        made_key = part(key, 0, 0, alive);
      }
      step.rows = attend.rows = alive;
      step.reset = attend.reset = cuda::from(rows.reset, t * rows.batch);
      step.u = read<T>(u) + row * cell.gates * hidden;
      step.h = write<T>(results.h) + row * hidden;
      step.gates = cuda::from(all_gates, row * cell.saved * hidden);
      step.cells = cuda::from(all_cells, row * hidden);
      attend.given = cuda::from(all.given, t * rows.batch);
      attend.s = all.s + row * hidden;
      attend.alpha = alpha ? all.alpha + row * kappa : write<T>(workspace);
      attend.ids = cuda::from(all.ids, row * kappa);
      attend.taken = cuda::from(all.taken, row);
      product(products, in, to_r);
      cuda::start_elements(*kernels.forward, alive * hidden, step, stream);
      product(made_key, made_h, to_key);
      cuda::launch<StepwiseAttentionForwardKernel<T>>({alive, device::bytes_of<Scratch<T>>()}, attend, stream);
    }
  }

  // Copies the initial state to the final one, which the steps update in place.
  void begin() {
    const int64_t batch = rows.batch, n = hidden, rho = relevant_size;
    copy(last.s, first.s);
    if (last.c) copy(*last.c, *first.c);
    copy(last.time, first.time);
    if (plan.stepwise()) {
      keys = made({batch, slots, n});
      relevant_keys = made({batch, rho, n});
    }
    memory = {*this,
              write<T>(last.buffer),
              write<T>(keys),
              write<T>(last.buffer_scores),
              write<int64_t>(last.buffer_ids),
              write<T>(last.relevant),
              write<T>(relevant_keys),
              write<T>(last.scores),
              write<int64_t>(last.ids),
              write<int64_t>(last.time)};
    cuda::launch_elements<RememberKernel<T>>(
        batch * this->members() * n,
        {batch, n, first_slots, read<T>(first.buffer), read<T>(first.buffer_scores), read<T>(first.relevant),
         read<T>(first.scores), read<int64_t>(first.buffer_ids), read<int64_t>(first.ids), memory},
        stream);
  }

  void prepare_keys() {
    now = made({rows.batch, hidden});
    key = made({rows.batch, hidden});
    r = made({rows.batch, (cell.gates + 1) * hidden});
    for (int64_t slot = 0; slot < first_slots; ++slot) make_key(last.buffer, *keys, slot);
    for (int64_t slot = 0; slot < relevant_size; ++slot) make_key(last.relevant, *relevant_keys, slot);
  }

  // Uses the same product as a step, so that keys have the same bits as in the call that produced the event.
  void make_key(const Tensor& events, const Tensor& to, int64_t slot) const {
    copy(now, at_index(events, 1, slot));
    product(key, now, transposed(U_a, 0, 1));
    copy(at_index(to, 1, slot), key);
  }
};

// Like relevancy_recurrence_cpu (relevancy/cpu/operators.cpp). `dtype` is the caller's dtype: tensors are float64 if it
// is float64, else float32; if it is a 16-bit type, the values of V, W_a and U_a have 16 bits.
Tensors relevancy_recurrence_cuda(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                  OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                  int64_t buffer_size, double mix, bool dot, std::string dtype, bool training,
                                  bool maps) {
  const Arguments arguments{cell, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype};
  return by_float_or_double(u, "relevancy_recurrence: no kernel takes this dtype", [&](auto zero) {
    return ForwardDriver<decltype(zero)>(arguments, u, training, maps).run();
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
}

}  // namespace rnnkern::relevancy
