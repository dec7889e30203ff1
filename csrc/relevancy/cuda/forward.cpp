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
struct ForwardDriver : Driver<T> {
  using Base = Driver<T>;
  using Base::cell, Base::copied, Base::hidden, Base::kernels, Base::layout, Base::made, Base::params, Base::plan,
      Base::rows;
  using Base::first_slots, Base::relevant_size, Base::slots, Base::stream, Base::total, Base::U_a;

  Tensor u, h, s, last_s;
  OptionalTensor last_c;
  OptionalTensor alpha, map_ids, taken, gates, cells;  // for all rows; empty if not wanted
  Memory<T> memory{};
  Tensors last;  // buffer, buffer_scores, buffer_ids, relevant, scores, ids, time
  OptionalTensor keys, relevant_keys;
  Tensor now, key, r;

  ForwardDriver(const Arguments& arguments, const Tensor& u_)
      : Base(arguments, "u", u_), u(this->sized("u", u_, total * cell.gates * hidden)) {}

  Tensors run(bool training, bool maps) {
    const int64_t kappa = this->members();
    const bool keeps_alpha = training && !this->keeps_all();
    h = this->rows_of(hidden);
    s = this->rows_of(hidden);
    if (keeps_alpha || maps) alpha = made({total, kappa});
    if (maps) map_ids = this->rows_of(kappa, ScalarType::Long);
    if (training) taken = made({total}, ScalarType::Int);
    if (training && cell.states > 1) {
      gates = made({total, cell.saved * hidden});
      cells = made({total, hidden});
    }
    begin();
    count("relevancy_recurrence/cuda", "forward", cell.name, plan.name());
    if (plan.stepwise()) {
      run_stepwise();
    } else if constexpr (std::is_same_v<T, float>) {
      run_resident();
    }

    Tensors outputs{h, s, last_s};
    if (last_c) outputs.push_back(*last_c);
    outputs.insert(outputs.end(), last.begin(), last.end());
    if (maps) {
      outputs.push_back(this->rows_of(kappa));
      copy(shaped(outputs.back(), {total, kappa}), *alpha);
      outputs.push_back(*map_ids);
    }
    if (keeps_alpha) outputs.push_back(*alpha);
    for (const OptionalTensor& x : {taken, gates, cells})
      if (x) outputs.push_back(*x);
    return outputs;
  }

  AttentionForward<T> attention() const {
    return {memory,          read<T>(this->v),        read<T>(this->given), this->mix, this->dot, write<T>(s),
            write<T>(alpha), write<int64_t>(map_ids), write<int32_t>(taken)};
  }

  // Runs all steps in one kernel that keeps the weights.
  void run_resident() const {
    PerSequenceForward p{attention()};
    p.rows = rows;
    p.u = read<T>(u);
    for (int i = 0; i < cell.params; ++i) p.params[i] = read<T>(params[i]);
    p.last_s = write<T>(last_s);
    p.last_c = write<T>(last_c);
    p.h = write<T>(h);
    p.gates = write<T>(gates);
    p.cells = write<T>(cells);
    this->start_resident(plan.kernels.forward, p, false);
  }

  void run_stepwise() {
    const int64_t kappa = this->members();
    const Tensor workspace = alpha ? *alpha : made({rows.batch, kappa});  // for alpha if it is not saved
    T *const all_gates = write<T>(gates), *const all_cells = write<T>(cells);
    prepare_keys();
    const AttentionForward<T> all = attention();
    StepwiseAttentionForward<T> attend{all};
    CellForward<T> step{};
    step.hidden = attend.hidden = hidden;
    step.r = attend.r = read<T>(r);
    for (int i = 0; i < cell.params; ++i) step.params[i] = read<T>(params[i]);
    step.c = write<T>(last_c);
    step.now = write<T>(now);
    attend.products = (cell.gates + 1) * hidden;
    attend.h = read<T>(now);
    attend.key = read<T>(key);
    attend.state = write<T>(last_s);

    Tensor in, products, made_h, made_key;
    const Tensor to_r = transposed(this->stacked, 0, 1), to_key = transposed(U_a, 0, 1);
    int64_t row = 0, alive = -1;
    for (int64_t t = 0; t < rows.count; ++t, row += alive) {
      if (layout.alive(t) != alive) {
        alive = layout.alive(t);
        if (alive == 0) break;
        in = part(last_s, 0, 0, alive);
        products = part(r, 0, 0, alive);
        made_h = part(now, 0, 0, alive);
        made_key = part(key, 0, 0, alive);
      }
      step.rows = attend.rows = alive;
      step.reset = attend.reset = cuda::from(rows.reset, t * rows.batch);
      step.u = read<T>(u) + row * cell.gates * hidden;
      step.h = write<T>(h) + row * hidden;
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
      cuda::launch<StepwiseAttentionForwardKernel<T>>({alive, Scratch<T>::bytes()}, attend, stream);
    }
  }

  // Copies the initial state to the final one, which the steps update in place.
  void begin() {
    const int64_t batch = rows.batch, n = hidden, rho = relevant_size;
    last_s = copied(this->s0);
    if (this->c0) last_c = copied(*this->c0);
    last = {made({batch, slots, n}), made({batch, slots}), made({batch, slots}, ScalarType::Long),
            made({batch, rho, n}),   made({batch, rho}),   made({batch, rho}, ScalarType::Long),
            copied(this->time)};
    if (plan.stepwise()) {
      keys = made({batch, slots, n});
      relevant_keys = made({batch, rho, n});
    }
    memory = {*this,
              write<T>(last[0]),
              write<T>(keys),
              write<T>(last[1]),
              write<int64_t>(last[2]),
              write<T>(last[3]),
              write<T>(relevant_keys),
              write<T>(last[4]),
              write<int64_t>(last[5]),
              write<int64_t>(last[6])};
    cuda::launch_elements<RememberKernel<T>>(
        batch * this->members() * n,
        {batch, n, first_slots, read<T>(this->buffer), read<T>(this->buffer_scores), read<T>(this->relevant),
         read<T>(this->scores), read<int64_t>(this->buffer_ids), read<int64_t>(this->ids), memory},
        stream);
  }

  void prepare_keys() {
    now = made({rows.batch, hidden});
    key = made({rows.batch, hidden});
    r = made({rows.batch, (cell.gates + 1) * hidden});
    for (int64_t slot = 0; slot < first_slots; ++slot) make_key(last[0], *keys, slot);
    for (int64_t slot = 0; slot < relevant_size; ++slot) make_key(last[3], *relevant_keys, slot);
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
  STD_TORCH_CHECK(!state.empty(), "relevancy_recurrence: `state` is empty");
  const Arguments arguments{cell, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype};
  return by_float_or_double(u, "relevancy_recurrence: no kernel takes this dtype",
                            [&](auto zero) { return ForwardDriver<decltype(zero)>(arguments, u).run(training, maps); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cuda));
}

}  // namespace rnnkern::relevancy
