// The backward of the relevancy recurrence on a CUDA device. First it recomputes the keys and queries of all steps,
// with one product each. Then, for every step in reverse, it runs a kernel for the attention, a product for the key of
// the step's event, the cell, and a product for V and W_a. At the end it computes the gradients of the weights with
// products over all steps.
#include "cuda/library.h"
#include "relevancy/cuda/driver.h"
#include "relevancy/cuda/stepwise_attention_backward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"

namespace rnnkern::relevancy {
namespace {

template <class T>
struct BackwardDriver : Driver<T, BackwardCall> {
  using Base = Driver<T, BackwardCall>;
  using Base::cell, Base::cleared, Base::first, Base::grad_state, Base::hidden, Base::kernels, Base::layout, Base::made;
  using Base::first_slots, Base::params, Base::plan, Base::relevant_size, Base::rows, Base::slots, Base::stream,
      Base::total, Base::U_a;

  // A tensor for all events: those of the steps of this call, and those of the initial state.
  struct Parts {
    Tensor steps, buffer, relevant;

    Events<const T> known() const { return {read<T>(steps), read<T>(buffer), read<T>(relevant)}; }
    Events<T> events() const { return {write<T>(steps), write<T>(buffer), write<T>(relevant)}; }
  };

  OptionalTensor dc, dparams;
  Tensor du, ds;
  Parts values, keys, dh, dkeys;
  Tensor previous, queries, dv;
  Tensor occupants, starts;
  History history{};

  using Base::Base;

  // (B, n): a gradient of the final state, or zeros.
  Tensor carried(size_t index) const {
    if (grad_state.empty()) return cleared({rows.batch, hidden});
    const Tensor x = made({rows.batch, hidden});
    copy(x, grad_state[index]);
    return x;
  }

  // x weight^T, for all rows of x.
  Tensor through(const Tensor& x, const Tensor& weight) const {
    const Tensor out = empty_of_sizes(x, x);
    const int64_t count = x.numel() / hidden;
    if (count > 0) product(shaped(out, {count, hidden}), shaped(x, {count, hidden}), weight);
    return out;
  }

  Parts like_events() const {
    return {cleared({total, hidden}), cleared({rows.batch, first_slots, hidden}),
            cleared({rows.batch, relevant_size, hidden})};
  }

  Tensors run() {
    const int64_t n = hidden, batch = rows.batch;
    values = {this->h, first.buffer, first.relevant};
    previous = made({total, n});
    cuda::launch_elements<PreviousKernel<T, T>>(
        total * n, {{rows, 1, false}, 0, total, read<T>(this->s), read<T>(first.s), write<T>(previous)}, stream);
    const Tensor to_key = transposed(U_a, 0, 1);
    keys = {through(values.steps, to_key), through(values.buffer, to_key), through(values.relevant, to_key)};
    queries = through(previous, transposed(this->W_a, 0, 1));
    dh = like_events();
    dkeys = like_events();
    du = empty(this->h, sizes_with(this->h, 1, {cell.gates * n}));
    ds = carried(0);
    if (cell.states > 1) dc = carried(1);
    dv = cleared({batch, n});
    if (params) dparams = cleared({batch, n});
    recall();
    leave();
    count("relevancy_recurrence/cuda", "backward", cell.name, plan.name_of_backward());
    loop();

    const auto gradient = [&](const Tensor& by, const Tensor& x, int64_t columns) {
      const Tensor out = made({columns, n});
      product(out, transposed(shaped(by, {by.numel() / columns, columns}), 0, 1), shaped(x, {x.numel() / n, n}));
      return out;
    };
    const Tensor dV = gradient(du, previous, cell.gates * n), dW_a = gradient(queries, previous, n);
    const Tensor dU_a = gradient(dkeys.steps, values.steps, n);
    if (first_slots > 0) add(gradient(dkeys.buffer, values.buffer, n), dU_a);
    if (relevant_size > 0) add(gradient(dkeys.relevant, values.relevant, n), dU_a);
    Tensors outputs{du, dV, dW_a, dU_a, sum(dv, 0), ds};
    if (dc) outputs.push_back(*dc);
    add(through(dkeys.buffer, U_a), dh.buffer);
    add(through(dkeys.relevant, U_a), dh.relevant);
    outputs.insert(outputs.end(), {dh.buffer, dh.relevant});
    if (dparams) outputs.push_back(sum(*dparams, 0));
    return outputs;
  }

  void add(const Tensor& from, const Tensor& to) const {
    const int64_t all = to.numel();
    cuda::launch_elements<AccumulateKernel<T>>(all, {all, all, all, read<T>(from), write<T>(to)}, stream);
  }

  // Determines which event each slot held in every step.
  void recall() {
    occupants = made({total, relevant_size}, ScalarType::Int);
    starts = made({total}, ScalarType::Int);
    history = {*this,
               rows,
               first_slots,
               read<int64_t>(first.buffer_ids),
               read<int64_t>(first.ids),
               read<int64_t>(first.time),
               read<int32_t>(this->taken),
               write<int32_t>(occupants),
               write<int32_t>(starts)};
    cuda::launch_elements<HistoryKernel>(rows.batch * (relevant_size > 0 ? relevant_size : 1), history, stream);
  }

  void leave() const {
    if (grad_state.empty()) return;
    const T *of_buffer = read<T>(grad_state[cell.states]), *of_relevant = read<T>(grad_state[cell.states + 1]);
    cuda::launch_elements<LeaveKernel<T>>(rows.batch * this->members() * hidden,
                                          {history, of_buffer, of_relevant, dh.events()}, stream);
  }

  void loop() const {
    const int64_t n = hidden, batch = rows.batch;
    const Tensor through_key = made({batch, n}), step_gradients = made({batch, (cell.gates + 1) * n});
    const Tensor dalpha = made({batch, this->members()}), workspace = made({batch, this->members()});
    StepwiseAttentionBackward<T> attend{};
    attend.history = history;
    attend.h = values.known();
    attend.keys = keys.known();
    attend.dh = dh.events();
    attend.dkeys = dkeys.events();
    attend.v = read<T>(this->v);
    attend.grad_h = read<T>(this->grad_h);
    attend.grad_s = read<T>(this->grad_s);
    attend.alpha = read<T>(this->alpha);
    attend.mix = T(this->mix);
    attend.dot = this->sizes.dot;
    attend.workspace = write<T>(workspace);
    attend.dalpha = write<T>(dalpha);
    attend.ds = write<T>(ds);
    attend.query = write<T>(queries);
    attend.dv = write<T>(dv);
    CellBackward<T> step{};
    step.rows = rows;
    step.params[0] = read<T>(params);
    step.dparams[0] = write<T>(dparams);
    step.h = read<T>(values.steps);
    step.dh = read<T>(dh.steps);
    step.dquery = read<T>(queries);
    step.through_key = read<T>(through_key);
    step.gates = read<T>(this->gates);
    step.cells = read<T>(this->cells);
    step.c0 = read<T>(first.c);
    step.dc = write<T>(dc);
    step.du = write<T>(du);
    step.step = write<T>(step_gradients);

    if constexpr (std::is_same_v<T, float>) {
      if (const Resident& resident = plan.kernels.backward; resident.kernel) {
        PerSequenceBackward p{attend, step};
        return this->start_resident(resident, p, true);
      }
    }
    int64_t row = total;
    for (int64_t t = rows.count; t-- > 0;) {
      const int64_t alive = layout.alive(t);
      if (alive == 0) continue;
      row -= alive;
      attend.t = step.t = t;
      attend.alive = step.alive = alive;
      cuda::launch<StepwiseAttentionBackwardKernel<T>>({alive, device::bytes_of<Scratch<T>>()}, attend, stream);
      product(part(through_key, 0, 0, alive), part(dkeys.steps, 0, row, alive), U_a);
      cuda::start_elements(*kernels.backward, alive * n, step, stream);
      product(part(ds, 0, 0, alive), part(step_gradients, 0, 0, alive), this->stacked);
    }
  }
};

// Like relevancy_recurrence_backward_cpu, for tensors of the dtypes that the forward takes.
Tensors relevancy_recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                           OptionalTensors grad_state, Tensors weights, Tensors state,
                                           OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                           OptionalTensor scores, int64_t buffer_size, double mix, bool dot,
                                           std::string dtype, Tensor h, Tensor s, Tensors saved) {
  const Arguments arguments{cell, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype};
  return by_float_or_double(h, "relevancy_recurrence_backward: no kernel takes this dtype", [&](auto zero) {
    return BackwardDriver<decltype(zero)>(h, arguments, s, grad_h, grad_s, grad_state, saved).run();
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) {
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cuda));
}

}  // namespace rnnkern::relevancy
