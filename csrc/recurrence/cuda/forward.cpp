// The forward of the recurrence on a CUDA device: one kernel that keeps R, or per step a product and a
// pointwise kernel.
#include "recurrence/cuda/driver.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

template <class S>
struct ForwardDriver : CudaDriver<S> {
  using Base = CudaDriver<S>;
  using Base::call, Base::noise, Base::plan, Base::sequence, Base::stream;
  using typename Base::A;

  Tensor h;
  OptionalTensor saved, candidates;
  Tensors final_state, cells;  // cells: the states except the first, of every step

  explicit ForwardDriver(const Call& call) : Base(call, "forward") {}

  template <class Problem>
  void fill(Problem& p) const {
    p.bias = read<S>(call.bias);
    for (int i = 0; i < call.cell.params; ++i) p.params[i] = read<S>(call.params[i]);
  }

  Tensors run(bool training, bool save_gates) {
    h = call.rows_like_u(call.width);
    for (int s = 1; training && s < call.cell.states; ++s)
      cells.push_back(call.rows_like_u(call.hidden, Base::arithmetic));
    if (training && save_gates && call.cell.saved)
      saved = call.rows_like_u(call.cell.saved * call.hidden, Base::arithmetic);
    if (training && call.keeps_candidates()) candidates = call.rows_like_u(call.hidden, Base::arithmetic);
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

  // Runs all steps in one kernel that keeps R.
  void run_resident() {
    BlockForward<S> p{};
    fill(p);
    p.sequence = sequence;
    p.u = read<S>(call.u);
    p.R = read<S>(call.R);
    for (int s = 0; s < call.cell.states; ++s) {
      p.state[s] = read<S>(call.state[s]);
      p.final_state[s] = write<S>(final_state[s]);
    }
    p.h = write<S>(h);
    for (size_t s = 0; s < cells.size(); ++s) p.cells[s + 1] = write<A>(cells[s]);
    p.saved = write<A>(saved);
    Base::run_resident(plan.kernels.forward, p);
  }

  void run_stepwise() {
    const CellInfo& cell = call.cell;
    const int64_t batch = call.steps.batch, hidden = call.hidden, width = call.width, columns = cell.gates * hidden;
    StepForward<S> p{};
    fill(p);
    p.hidden = hidden;
    p.heads = call.heads;
    Tensors state;  // in arithmetic precision; the tensors of final_state if they have that dtype
    for (int s = 0; s < cell.states; ++s) {
      state.push_back(Base::narrow ? this->widened(call.state[s], this->columns_of_state(s)) : final_state[s]);
      if (!Base::narrow) copy(state[s], call.state[s]);
      p.state[s] = p.next[s] = write<A>(state[s]);
    }
    const Tensor x = empty(call.u, {batch, width}), r = this->buffer(batch, this->gate_columns());
    const Tensor operand = cell.two_products() ? empty(call.u, {batch, hidden}) : x;
    p.x = cell.projected ? nullptr : write<S>(x);
    p.noise = noise;
    A *const to_saved = write<A>(saved), *const to_candidates = write<A>(candidates);
    Tensor workspace;  // for the saved values of a step
    if (cell.normalised && !to_saved) workspace = empty(call.u, {batch, cell.saved * hidden}, Base::arithmetic);
    const Tensor unprojected = cell.projected ? this->buffer(batch, hidden) : x;
    const Tensor projected = cell.projected ? this->buffer(batch, width) : x;
    StepProjected<S> after{0, width, read<S>(projected), nullptr, write<A>(state[0]), nullptr, write<S>(x), noise};
    if (noise.mask) {
      const Sequence first{1, batch, width, 1};
      cuda::launch_elements<DropKernel<S>>(batch * width,
                                           {first, 0, batch, noise.mask, read<S>(call.state[0]), write<S>(x)}, stream);
    } else {
      copy(x, call.state[0]);
    }
    p.r = read<S>(r);

    Multiplication first, second;
    int64_t alive = -1;
    for (int64_t k = 0; k < call.steps.count; ++k) {
      const int64_t t = call.steps.at(k), rows = call.steps.rows(t), row = call.steps.offset(t);
      if (rows == 0) continue;
      if (rows != alive) {
        alive = rows;
        first = prepare(x, r, rows, 0, cell.first_gates);
        if (cell.two_products()) second = prepare(operand, r, rows, cell.first_gates, cell.recurrent);
        if (cell.projected)
          second = this->multiplication(this->by_head(projected, rows, width), this->by_head(unprojected, rows, hidden),
                                        transposed(this->projection(), 1, 2));
      }
      p.rows = rows;
      p.u = read<S>(call.u) + row * columns;
      p.reset = call.reset ? read<bool>(*call.reset) + t * batch : nullptr;
      p.h = cell.projected ? write<S>(unprojected) : write<S>(h) + row * hidden;
      for (size_t s = 0; s < cells.size(); ++s) p.cells[s + 1] = write<A>(cells[s]) + row * hidden;
      p.saved = to_saved ? to_saved + row * cell.saved * hidden : cell.normalised ? write<A>(workspace) : nullptr;
      p.candidates = to_candidates ? to_candidates + row * hidden : nullptr;
      p.noise.t = t;
      first.run();
      if (cell.two_products()) {
        StepForward<S> q = p;
        q.operand = write<S>(operand);
        this->start(q);
        second.run();
      }
      this->start(p);
      if (cell.projected) {
        second.run();
        after.rows = rows;
        after.reset = p.reset;
        after.h = write<S>(h) + row * width;
        after.noise.t = t;
        if (noise.any())
          cuda::launch_elements<StepProjectedKernel<S, true>>(rows * width, after, stream);
        else
          cuda::launch_elements<StepProjectedKernel<S, false>>(rows * width, after, stream);
      }
    }
    for (int s = 0; Base::narrow && s < cell.states; ++s) copy(final_state[s], state[s]);
  }

  // The product of gates first..last-1 and the first rows of x (B, P).
  Multiplication prepare(const Tensor& x, const Tensor& r, int64_t rows, int first, int last) const {
    const Tensor heads = shaped(part(x, 0, 0, rows), {rows, call.heads, this->head_width});
    const Tensor out = this->columns_of(this->by_head(r, rows, this->gate_columns()), first, last);
    return this->multiplication(out, transposed(heads, 0, 1), transposed(this->rows_of_R(first, last), 1, 2));
  }
};

}  // namespace

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

}  // namespace rnnkern
