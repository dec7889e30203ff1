// The forward of the recurrence on a CUDA device: one kernel that keeps R, or per step a product and a
// pointwise kernel.
#include "cuda/library.h"
#include "recurrence/cuda/driver.h"

namespace rnnkern {
namespace {

template <class S>
struct ForwardDriver : CudaDriver<S> {
  using Base = CudaDriver<S>;
  using Base::buffer, Base::by_head, Base::call, Base::columns_of, Base::columns_of_state, Base::drop, Base::head_width;
  using Base::gate_columns, Base::multiplication, Base::noise, Base::plan, Base::projection, Base::rows_of_R;
  using Base::set_weights, Base::start_forward, Base::start_step, Base::step_forward, Base::widened;
  using typename Base::A;

  const CellInfo& cell;
  Tensor h;
  OptionalTensor saved, candidates;
  Tensors final_state, cells;  // cells: the states except the first, of every step

  explicit ForwardDriver(const Call& call) : Base(call, "forward"), cell(call.cell) {}

  Tensors run(bool training, bool save_gates) {
    h = call.rows_like_u(call.width);
    for (int s = 1; training && s < cell.states; ++s) cells.push_back(call.rows_like_u(call.hidden, arithmetic<S>));
    if (training && save_gates && cell.saved) saved = call.rows_like_u(cell.saved * call.hidden, arithmetic<S>);
    if (training && call.keeps_candidates()) candidates = call.rows_like_u(call.hidden, arithmetic<S>);
    for (const Tensor& s : call.state) final_state.push_back(empty_of_sizes(call.u, s));
    if (plan.stepwise())
      run_stepwise();
    else
      run_resident();
    Tensors outputs{h};
    outputs.insert(outputs.end(), final_state.begin(), final_state.end());
    outputs.insert(outputs.end(), cells.begin(), cells.end());
    for (const OptionalTensor& x : {saved, candidates})
      if (x) outputs.push_back(*x);
    return outputs;
  }

  void run_resident() {
    BlockForward<S> p{};
    set_weights(p);
    p.sequence = this->sequence;
    p.u = read<S>(call.u);
    p.R = read<S>(call.R);
    for (int s = 0; s < cell.states; ++s) {
      p.state[s] = read<S>(call.state[s]);
      p.final_state[s] = write<S>(final_state[s]);
    }
    p.h = write<S>(h);
    for (size_t s = 0; s < cells.size(); ++s) p.cells[s + 1] = write<A>(cells[s]);
    p.saved = write<A>(saved);
    Base::run_resident(plan.kernels.forward, p);
  }

  void run_stepwise() {
    const int64_t batch = call.steps.batch, hidden = call.hidden, width = call.width;
    const Tensor x = empty(call.u, {batch, width}), r = buffer(batch, gate_columns());
    const Tensor operand = cell.two_products() ? empty(call.u, {batch, hidden}) : x;
    const Tensor unprojected = cell.projected ? buffer(batch, hidden) : x;
    const Tensor projected = cell.projected ? buffer(batch, width) : x;
    OptionalTensor workspace, step_saved;  // of cells with norms; step_saved: the saved values of a step
    if (cell.normalised) workspace = buffer(batch, cell.norm_rows * hidden, arithmetic<S>);
    if (cell.normalised && !saved) step_saved = buffer(batch, cell.saved * hidden, arithmetic<S>);
    StepForward<S> p = step_forward(batch, 0, r);
    p.workspace = write<A>(workspace);
    Tensors state;  // in arithmetic precision; the tensors of final_state if they have that dtype
    for (int s = 0; s < cell.states; ++s) {
      state.push_back(narrow<S> ? widened(call.state[s], columns_of_state(s)) : final_state[s]);
      if (!narrow<S>) copy(state[s], call.state[s]);
      p.state[s] = p.next[s] = write<A>(state[s]);
    }
    p.x = cell.projected ? nullptr : write<S>(x);
    p.noise = noise;
    StepProjected<S> after{0, width, read<S>(projected), nullptr, write<A>(state[0]), nullptr, write<S>(x), noise};
    if (noise.mask)
      drop({{1, batch, width}, 1}, 0, batch, call.state[0], x);
    else
      copy(x, call.state[0]);

    Multiplication first, second;
    A *const all_saved = write<A>(saved), *const all_candidates = write<A>(candidates);
    for (int64_t k = 0, alive = -1; k < call.steps.count; ++k) {
      const int64_t t = call.steps.at(k), rows = call.steps.rows(t), row = call.steps.offset(t);
      if (rows == 0) continue;
      if (rows != alive) {
        alive = rows;
        first = prepare(x, r, rows, 0, cell.first_gates);
        if (cell.two_products()) second = prepare(operand, r, rows, cell.first_gates, cell.recurrent);
        if (cell.projected)
          second = multiplication(by_head(projected, rows, width), by_head(unprojected, rows, hidden),
                                  transposed(projection(), 1, 2));
      }
      p.rows = after.rows = rows;
      p.u = read<S>(call.u) + row * cell.gates * hidden;
      p.reset = after.reset = call.reset ? read<bool>(*call.reset) + t * batch : nullptr;
      p.h = cell.projected ? write<S>(unprojected) : write<S>(h) + row * hidden;
      for (size_t s = 0; s < cells.size(); ++s) p.cells[s + 1] = write<A>(cells[s]) + row * hidden;
      p.saved = step_saved ? write<A>(step_saved) : cuda::from(all_saved, row * cell.saved * hidden);
      p.candidates = cuda::from(all_candidates, row * hidden);
      p.noise.t = after.noise.t = t;
      first.run();
      if (cell.two_products()) {
        StepForward<S> q = p;
        q.operand = write<S>(operand);
        start_forward(q);
        second.run();
      }
      start_forward(p);
      if (!cell.projected) continue;
      second.run();
      after.h = write<S>(h) + row * width;
      start_step(this->steps[noise.any()].projected, rows, width, after);
    }
    for (int s = 0; narrow<S> && s < cell.states; ++s) copy(final_state[s], state[s]);
  }

  // The product of gates first..last-1 and the first rows of x (B, P).
  Multiplication prepare(const Tensor& x, const Tensor& r, int64_t rows, int first, int last) const {
    const Tensor heads = shaped(part(x, 0, 0, rows), {rows, call.heads, head_width});
    const Tensor out = columns_of(by_head(r, rows, gate_columns()), first, last);
    return multiplication(out, transposed(heads, 0, 1), transposed(rows_of_R(first, last), 1, 2));
  }
};

// Like recurrence_cpu (recurrence/cpu/operators.cpp), but with `weight_ih` it raises an error, because the caller
// projects the input. With 16-bit tensors, cell states and saved gates are float32.
Tensors recurrence_cuda(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias,
                        OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                        bool training, bool save_gates, OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout,
                        double dropout, OptionalTensor seed, OptionalTensor keep, int64_t) {
  STD_TORCH_CHECK(!weight_ih && !bias_ih, "recurrence: on a CUDA device the caller projects the input");
  STD_TORCH_CHECK(!keep, "recurrence: `keep` has no CUDA kernel");
  Call call(cell, dense(u), R, state, bias, params.value_or(Tensors()), batch_sizes, reset, reverse);
  call.set_noise(zoneout, dropout, seed);
  return by_storage(u.scalar_type(),
                    [&](auto zero) { return ForwardDriver<decltype(zero)>(call).run(training, save_gates); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) { m.impl("recurrence", TORCH_BOX(&recurrence_cuda)); }

}  // namespace rnnkern
