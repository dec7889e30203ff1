// The backward of the recurrence on a CUDA device. It processes chunks of steps in reverse processing order. Per chunk:
// recompute the gates with products over the known h; run the serial loop, which only computes the gradients of the
// gates and of the state; then dR and the gradient of the bias, with products and sums over the chunk. Sums over chunks
// are added in a fixed order.
#include "cuda/library.h"
#include "recurrence/cuda/driver.h"

namespace rnnkern {
namespace {

struct Gradients {
  OptionalTensor h, scale;
  Tensors state;
  bool needs_R, needs_bias, needs_params;
};

template <class S>
struct BackwardDriver : CudaDriver<S> {
  using Base = CudaDriver<S>;
  using Base::buffer, Base::by_head, Base::call, Base::columns_of, Base::columns_of_state, Base::drop;
  using Base::gate_columns, Base::head_size, Base::head_width, Base::multiplication, Base::narrowed, Base::noise;
  using Base::plan, Base::projection, Base::rows_of_R, Base::run_resident, Base::sequence, Base::sequence_of_h;
  using Base::start_forward, Base::start_step, Base::step_forward, Base::stream, Base::widened;
  using typename Base::A;

  const CellInfo& cell;
  Gradients grad;
  Tensor h;
  OptionalTensor saved, candidates;
  Tensors cells;                                       // the states except the first, of every step
  bool recompute;                                      // recompute the gates
  Tensor du, dR_sum, dbias_sum, dW_hr_sum;             // sums in arithmetic precision: (K, Q*D, D), (K, Q*D), (P, H)
  Tensors carry, dparams;                              // in arithmetic precision, shaped as in StepBackward
  Tensor previous, r, gates, dr, operand, dR_partial;  // of one chunk
  Tensors old_states;        // of one chunk: the states except the first before each row, if gates need them
  Tensor dh, dW_hr_partial;  // if h is projected
  Tensor dropped;            // `previous` times the dropout mask, the input of R; `previous` itself without dropout
  // Of the stepwise loop. `finished` is the step processed before this one, whose product is in from_R.
  Tensor step_dr, from_R, step_dh, from_W_hr;
  OptionalTensor workspace;  // for norms
  int64_t finished = -1, finished_alive = 0;
  Multiplication first, second;
  int64_t alive = -1;

  BackwardDriver(const Call& call, const Gradients& grad_, const Tensor& h_, const Tensors& saved_)
      : Base(call, "backward"), cell(call.cell), grad(grad_), h(call.sized("h", h_, call.rows * call.width)) {
    const size_t known = size_t(cell.states - 1), has_candidates = call.keeps_candidates();
    recompute = cell.saved > 0 && saved_.size() == known;
    const size_t has_gates = cell.saved > 0 && !recompute;
    STD_TORCH_CHECK(saved_.size() == known + has_gates + has_candidates, "recurrence_backward: wrong `saved`");
    STD_TORCH_CHECK(grad.state.empty() || grad.state.size() == call.state.size(),
                    "recurrence_backward: wrong `grad_state`");
    for (size_t s = 0; s < known; ++s)
      cells.push_back(call.sized("saved", saved_[s], call.rows * call.hidden, arithmetic<S>));
    if (has_gates) saved = call.sized("saved", saved_[known], call.rows * cell.saved * call.hidden, arithmetic<S>);
    if (has_candidates) candidates = call.sized("saved", saved_.back(), call.rows * call.hidden, arithmetic<S>);
    if (grad.h) grad.h = call.sized("grad_h", *grad.h, call.rows * call.width);
    const bool per_sequence = grad.scale && grad.scale->dim() == 2;
    if (grad.scale)
      grad.scale = call.sized("grad_scale", *grad.scale, call.steps.count * (per_sequence ? call.steps.batch : 1));
    for (size_t s = 0; s < grad.state.size(); ++s)
      call.sized("grad_state", grad.state[s], call.steps.batch * columns_of_state(int(s)));
  }

  bool has_operand() const { return cell.two_products() || cell.projected; }
  // Whether du is used as dr: they have the same values and the same layout.
  bool one_gradient() const { return cell.joint && call.heads == 1; }

  Tensors run() {
    const int64_t hidden = call.hidden, batch = call.steps.batch, count = call.steps.count;
    du = call.rows_like_u(cell.gates * hidden);
    Tensors outputs{du};
    for (int s = 0; s < cell.states; ++s) {
      carry.push_back(widened(grad.state.empty() ? OptionalTensor() : grad.state[s], columns_of_state(s)));
    }
    for (int i = 0; i < cell.params; ++i) dparams.push_back(widened({}, cell.param_rows[i] * hidden));
    if (cell.projected) dW_hr_sum = zeros(call.u, {call.width, hidden}, arithmetic<S>);
    if (grad.needs_R) dR_sum = zeros(call.u, {call.heads, gate_columns(), head_width}, arithmetic<S>);
    if (grad.needs_bias) dbias_sum = zeros(call.u, {call.heads, gate_columns()}, arithmetic<S>);

    const int64_t chunk = std::min(plan.chunk_steps, count);
    allocate(chunk * batch);
    for (int64_t done = 0; done < count; done += chunk) {
      const int64_t steps = std::min(chunk, count - done);
      const int64_t from = call.steps.reverse ? done : count - done - steps;
      const int64_t rows = call.steps.offset(from + steps) - call.steps.offset(from);
      if (rows) run_chunk(from, steps, rows);
    }
    if (plan.stepwise() && finished >= 0) step(-1, 0, arguments(0, nullptr));

    outputs.push_back(grad.needs_R ? like_R(narrowed(dR_sum)) : empty(call.u, {0}));
    outputs.push_back(grad.needs_bias ? bias_gradient() : empty(call.u, {0}));
    for (const Tensor& s : carry) outputs.push_back(narrowed(s));
    for (const Tensor& x : dparams) outputs.push_back(grad.needs_params ? narrowed(sum(x, 0)) : empty(call.u, {0}));
    if (cell.projected) outputs.push_back(grad.needs_params ? narrowed(dW_hr_sum) : empty(call.u, {0}));
    return outputs;
  }

  Tensor like_R(const Tensor& x) const {
    return call.R.dim() == 2 ? shaped(x, {cell.recurrent * call.hidden, call.width})
                             : shaped(x, {call.heads, gate_columns(), head_size});
  }

  // From (K, Q, D) to (Q, K, D).
  Tensor bias_gradient() const {
    const Tensor by_head = shaped(dbias_sum, {call.heads, cell.recurrent, head_size});
    const Tensor columns = empty(call.u, {cell.recurrent, call.heads, head_size});
    copy(columns, transposed(by_head, 0, 1));
    return shaped(columns, {cell.recurrent * call.hidden});
  }

  void allocate(int64_t rows) {
    previous = buffer(rows, head_width);
    dropped = noise.mask ? buffer(rows, head_width) : previous;
    if (recompute) {
      r = buffer(rows, gate_columns());
      gates = buffer(rows, cell.saved * head_size, arithmetic<S>);
      for (int s = 1; call.known.kernels && s < cell.states; ++s)
        old_states.push_back(buffer(rows, head_size, arithmetic<S>));
    }
    if (!one_gradient()) dr = buffer(rows, gate_columns());
    if (has_operand()) operand = buffer(rows, head_size);
    if (cell.projected) {
      dh = buffer(rows, head_width);
      step_dh = buffer(call.steps.batch, head_width);
      from_W_hr = buffer(call.steps.batch, head_size);
      dW_hr_partial = empty_of_sizes(call.u, call.params[0]);
    }
    if (cell.normalised)
      workspace = buffer(std::max(call.steps.batch, recompute ? rows : 0), cell.norm_rows * call.hidden, arithmetic<S>);
    if (grad.needs_R) dR_partial = empty(call.u, {call.R.numel()});
    if (plan.stepwise()) {
      step_dr = buffer(call.steps.batch, gate_columns());
      from_R = buffer(call.steps.batch, head_width);
    }
  }

  void run_chunk(int64_t from, int64_t steps, int64_t rows) {
    const int64_t row = call.steps.offset(from);
    cuda::launch_elements<PreviousKernel<S, S>>(
        rows * call.width, {sequence_of_h, from, rows, read<S>(h), read<S>(call.state[0]), write<S>(previous)}, stream);
    if (noise.mask) drop(sequence_of_h, from, rows, previous, dropped);
    Sequence dense = sequence;
    dense.heads = 1;
    for (size_t s = 0; s < old_states.size(); ++s)
      cuda::launch_elements<PreviousKernel<S, A>>(
          rows * call.hidden,
          {dense, from, rows, read<A>(cells[s]), read<S>(call.state[s + 1]), write<A>(old_states[s])}, stream);
    if (recompute) compute_gates(from, row, rows);
    const A* chunk_gates = recompute ? read<A>(gates) : read<A>(saved) + row * cell.saved * call.hidden;
    const RangeBackward<S> range = arguments(rows, chunk_gates);
    if (plan.stepwise())
      run_stepwise(from, steps, range);
    else
      run_resident(plan.kernels.backward, BlockBackward<S>{range, from, steps, read<S>(call.R)});
    add_weight_gradients(row, rows);
  }

  void compute_gates(int64_t from, int64_t row, int64_t rows) {
    StepForward<S> p = step_forward(rows, row, r);
    p.previous = read<S>(previous);
    p.saved = write<A>(gates);
    p.workspace = write<A>(workspace);
    // Gates of built-in cells do not depend on the other states.
    for (int s = 1; call.known.kernels && s < cell.states; ++s) p.state[s] = read<A>(old_states[s - 1]);
    multiply_rows(dropped, rows, 0, cell.first_gates);
    if (cell.two_products()) {
      StepForward<S> q = p;
      q.operand = write<S>(operand);
      q.operand_by_head = true;
      start_forward(q);
      if (noise.mask) drop(sequence_of_h, from, rows, operand, operand);
      multiply_rows(operand, rows, cell.first_gates, cell.recurrent);
    }
    start_forward(p);
  }

  void multiply_rows(const Tensor& x, int64_t rows, int first, int last) const {
    multiplication(columns_of(by_head(r, rows, gate_columns()), first, last), by_head(x, rows, head_width),
                   transposed(rows_of_R(first, last), 1, 2))
        .run();
  }

  // What all kernels of a chunk read and write.
  RangeBackward<S> arguments(int64_t rows, const A* chunk_gates) const {
    RangeBackward<S> p{};
    p.sequence = sequence;
    p.rows = rows;
    for (size_t i = 0; i < dparams.size(); ++i) {
      p.params[i] = read<S>(call.params[i]);
      p.dparams[i] = write<A>(dparams[i]);
    }
    for (int s = 0; s < cell.states; ++s) p.carry[s] = write<A>(carry[s]);
    for (int s = 1; s < cell.states; ++s) {
      p.cell_state[s] = read<S>(call.state[s]);
      p.cells[s] = read<A>(cells[s - 1]);
    }
    p.h = read<S>(h);
    p.saved = chunk_gates;
    p.previous = read<S>(previous);
    p.grad_h = read<S>(grad.h);
    p.grad_scale = read<S>(grad.scale);
    const bool per_sequence = grad.scale && grad.scale->dim() == 2;
    p.scale_step = per_sequence ? call.steps.batch : 1;
    p.scale_row = per_sequence ? 1 : 0;
    p.du = write<S>(du);
    p.dr = one_gradient() ? nullptr : write<S>(dr);
    p.operand = has_operand() ? write<S>(operand) : nullptr;
    return p;
  }

  void run_stepwise(int64_t from, int64_t steps, const RangeBackward<S>& range) {
    for (int64_t k = 0; k < steps; ++k) {
      const int64_t t = call.steps.reverse ? from + k : from + steps - 1 - k;
      if (call.steps.rows(t)) step(t, call.steps.offset(t) - call.steps.offset(from), range);
    }
  }

  // Finishes the step processed before; then processes step t, unless t is -1.
  void step(int64_t t, int64_t here, const RangeBackward<S>& range) {
    const StepKernels& kernels = this->steps[noise.any()];
    StepBackward<S> p{range};
    p.candidates = read<A>(candidates);
    p.workspace = write<A>(workspace);
    p.noise = noise;
    p.t = t;
    p.alive = t < 0 ? 0 : call.steps.rows(t);
    p.row = t < 0 ? 0 : call.steps.offset(t);
    p.here = here;
    p.finished = finished;
    p.finished_alive = finished_alive;
    p.threads = std::max(p.alive, finished_alive);
    p.from_R = read<S>(from_R);
    p.step_dr = write<S>(step_dr);
    if (cell.projected) {
      StepBackward<S> q = p;
      q.sequence = sequence_of_h;
      q.dh = write<S>(dh);
      q.step_dh = write<S>(step_dh);
      start_step(kernels.projected_backward, q.threads, call.width, q);
    } else {
      start_step(kernels.backward, p.threads, call.hidden, p);
    }
    if (t < 0) return;
    if (p.alive != alive) {
      alive = p.alive;
      first = prepare(0, cell.first_gates);
      if (cell.two_products()) second = prepare(cell.first_gates, cell.recurrent);
      if (cell.projected)
        second =
            multiplication(by_head(from_W_hr, alive, head_size), by_head(step_dh, alive, head_width), projection());
    }
    if (has_operand()) {
      second.run();
      if (cell.projected) p.from_R = read<S>(from_W_hr);
      p.second = cell.two_products();
      p.threads = p.alive;
      start_step(kernels.backward, p.threads, call.hidden, p);
    }
    first.run();
    finished = t;
    finished_alive = alive;
  }

  // from_R = dr R for the gates first..last-1 of one step.
  Multiplication prepare(int first, int last) const {
    return multiplication(by_head(from_R, alive, head_width),
                          columns_of(by_head(step_dr, alive, gate_columns()), first, last), rows_of_R(first, last));
  }

  void add_weight_gradients(int64_t row, int64_t rows) {
    const Tensor own = one_gradient() ? shaped(part(shaped(du, {call.rows, cell.gates * call.hidden}), 0, row, rows),
                                               {1, rows, gate_columns()})
                                      : by_head(dr, rows, gate_columns());
    if (grad.needs_R) {
      add_product(own, dropped, rows, 0, cell.first_gates);
      if (cell.two_products()) add_product(own, operand, rows, cell.first_gates, cell.recurrent);
    }
    if (cell.projected) {
      multiplication(shaped(dW_hr_partial, {1, call.width, call.hidden}),
                     transposed(by_head(dh, rows, call.width), 1, 2), by_head(operand, rows, call.hidden))
          .run();
      accumulate<S>(dW_hr_partial, write<A>(dW_hr_sum));
    }
    if (grad.needs_bias) accumulate<A>(sum(own, 1, arithmetic<S>), write<A>(dbias_sum));
  }

  // dR of the gates first..last-1 += dr^T x.
  void add_product(const Tensor& own, const Tensor& x, int64_t rows, int first, int last) const {
    const int64_t inner = (last - first) * head_size * head_width;
    const Tensor partial =
        shaped(part(dR_partial, 0, 0, call.heads * inner), {call.heads, (last - first) * head_size, head_width});
    multiplication(partial, transposed(columns_of(own, first, last), 1, 2), by_head(x, rows, head_width)).run();
    accumulate<S>(partial, write<A>(dR_sum) + first * head_size * head_width, inner, gate_columns() * head_width);
  }

  // Adds to a sum whose rows of `inner` elements are `stride` apart.
  template <class From>
  void accumulate(const Tensor& from, A* to, int64_t inner = 1, int64_t stride = 1) const {
    const int64_t all = from.numel();
    cuda::launch_elements<AccumulateKernel<From>>(all, {all, inner, stride, read<From>(from), to}, stream);
  }
};

// Like recurrence_backward_cpu, but without `weight_ih` and `needs_h`. If `saved` has no gates, it recomputes them.
Tensors recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                 Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                 OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                 bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih, bool,
                                 bool, bool, Rates zoneout, double dropout, OptionalTensor seed, OptionalTensor keep,
                                 bool needs_h, bool needs_params, int64_t) {
  STD_TORCH_CHECK(!needs_h, "recurrence_backward: `needs_h` has no CUDA kernel");
  STD_TORCH_CHECK(!weight_ih && !bias_ih, "recurrence_backward: on a CUDA device the caller projects the input");
  STD_TORCH_CHECK(!keep, "recurrence_backward: `keep` has no CUDA kernel");
  Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse);
  call.set_noise(zoneout, dropout, seed);
  if (call.backward_reads_u(saved)) call.u = dense(call.u);
  const Gradients grad{grad_h, grad_scale, grad_state, needs_R, needs_bias, needs_params};
  return by_storage(u.scalar_type(),
                    [&](auto zero) { return BackwardDriver<decltype(zero)>(call, grad, h, saved).run(); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) {
  m.impl("recurrence_backward", TORCH_BOX(&recurrence_backward_cuda));
}

}  // namespace rnnkern
