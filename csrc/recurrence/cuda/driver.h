// Shared by the CUDA drivers of both directions: the sequence as kernels see it, and the products between kernels.
#pragma once

#include "cuda/driver.h"
#include "recurrence/call.h"
#include "recurrence/cuda/plan.h"
#include "recurrence/cuda/step_normalised.cuh"

namespace rnnkern {

struct Multiplication {
  Tensor out, a, b;

  void run() const { product(out, a, b); }
};

template <class S>
struct CudaDriver : cuda::Driver {
  using A = Arithmetic<S>;

  const Call& call;
  const StepKernels* steps;          // of KernelTable
  Sequence sequence, sequence_of_h;  // in sequence_of_h, `hidden` is the number of columns of h
  int64_t head_size, head_width;     // of a head: units, and columns of h
  StepNoise<A> noise{};
  Tensor mask;  // dropout mask

  CudaDriver(const Call& call, const char* direction)
      : Driver(call.u), call(call), steps(table_of<S>(call.known).steps) {
    const Steps& over = call.steps;
    plan = plan_recurrence({cuda::facts_of_current(stream),
                            call.known,
                            call.u.scalar_type(),
                            {over.count, over.batch, call.hidden, call.heads},
                            call.noise.any(),
                            allows_tf32});
    head_size = call.hidden / call.heads;
    head_width = call.width / call.heads;
    sequence = {
        {over.count, over.batch, call.hidden, nullptr, nullptr, read<bool>(call.reset)}, call.heads, over.reverse};
    set_rows(call.layout, call.u, "recurrence", sequence.offsets, sequence.lengths);
    sequence_of_h = sequence;
    sequence_of_h.hidden = call.width;
    if (call.noise.any()) draw();
    count("recurrence/cuda", direction, call.cell.name, plan.name());
  }

  void draw() {
    for (int s = 0; s < call.cell.states; ++s) {
      noise.zoneout[s] = A(call.noise.zoneout[s]);
      noise.below[s] = threshold(call.noise.zoneout[s]);
    }
    noise.seed = call.noise.seed;
    const double rate = call.noise.dropout;
    if (rate == 0) return;
    mask = empty(call.u, {call.steps.batch, call.width}, arithmetic<S>);
    noise.mask = write<A>(mask);
    cuda::launch_elements<MaskKernel<S>>(
        mask.numel(), {call.steps.batch, call.width, threshold(rate), A(1 / (1 - rate)), noise.seed, write<A>(mask)},
        stream);
  }

  // Runs all steps in a kernel that keeps R.
  template <class Problem>
  void run_resident(const Resident& kernel, const Problem& problem) const {
    const int64_t batch = call.steps.batch;
    if (plan.kind == KernelKind::block) return start(kernel, problem, batch, call.heads);
    if (plan.kind == KernelKind::cluster) return start(kernel, OnCluster<Problem>{problem, kernel.columns}, batch);
    static_assert(sizeof(device::Word16) == 2 * sizeof(int64_t));
    const Tensor words = zeros(call.u, {2 * kernel.words}, ScalarType::Long);
    start(kernel, OnGrid<Problem>{problem, kernel.grid, reinterpret_cast<device::Word16*>(write<int64_t>(words))},
          batch);
  }

  template <class Problem>
  void set_weights(Problem& p) const {
    p.bias = read<S>(call.bias);
    for (int i = 0; i < call.cell.params; ++i) p.params[i] = read<S>(call.params[i]);
  }

  // The arguments of the pointwise forward of rows whose products are in r, from `row` on.
  StepForward<S> step_forward(int64_t rows, int64_t row, const Tensor& r) const {
    StepForward<S> p{};
    set_weights(p);
    p.rows = rows;
    p.hidden = call.hidden;
    p.heads = call.heads;
    p.u = read<S>(call.u) + row * call.cell.gates * call.hidden;
    p.r = read<S>(r);
    return p;
  }

  // to = x times the dropout mask, of rows of `columns` from step `first` on.
  void drop(const Sequence& columns, int64_t first, int64_t rows, const Tensor& x, const Tensor& to) const {
    cuda::launch_elements<DropKernel<S>>(rows * call.width,
                                         {columns, first, rows, noise.mask, read<S>(x), write<S>(to)}, stream);
  }

  // (B, columns) in arithmetic precision: a copy of `from`, or zeros.
  Tensor widened(const OptionalTensor& from, int64_t columns) const {
    if (!from) return zeros(call.u, {call.steps.batch, columns}, arithmetic<S>);
    const Tensor wide = empty(call.u, {call.steps.batch, columns}, arithmetic<S>);
    copy(wide, *from);
    return wide;
  }

  // Converts to the dtype of the call; returns `wide` itself if it has that dtype.
  Tensor narrowed(const Tensor& wide) const {
    if constexpr (!narrow<S>) return wide;
    const Tensor stored = empty_of_sizes(call.u, wide);
    copy(stored, wide);
    return stored;
  }

  // The first elements of a buffer, as (K, rows, columns).
  Tensor by_head(const Tensor& buffer, int64_t rows, int64_t columns) const {
    return shaped(part(buffer, 0, 0, call.heads * rows * columns), {call.heads, rows, columns});
  }

  Tensor buffer(int64_t rows, int64_t columns, std::optional<ScalarType> dtype = {}) const {
    return empty(call.u, {call.heads * rows * columns}, dtype);
  }

  // out = a b for every head, (K, ., .) each. Constructed once, run in every step.
  Multiplication multiplication(const Tensor& out, const Tensor& a, const Tensor& b) const {
    if (call.heads > 1) return {out, a, b};
    return {at_index(out, 0, 0), at_index(a, 0, 0), at_index(b, 0, 0)};
  }

  // Number of columns of state s.
  int64_t columns_of_state(int s) const { return s ? call.hidden : call.width; }

  // W_hr as (1, P, H).
  Tensor projection() const { return shaped(call.params[0], {1, call.width, call.hidden}); }

  // Rows of gates first..last-1 of every head of R: (K, (last-first)*D, D).
  Tensor rows_of_R(int first, int last) const {
    const Tensor R = shaped(call.R, {call.heads, call.cell.recurrent * head_size, head_width});
    return part(R, 1, first * head_size, (last - first) * head_size);
  }

  // Columns of the same gates in (K, rows, Q*D).
  Tensor columns_of(const Tensor& r, int first, int last) const {
    return part(r, 2, first * head_size, (last - first) * head_size);
  }

  int64_t gate_columns() const { return call.cell.recurrent * head_size; }

  // Starts a thread for each of `columns` of `rows` rows or, with norms, a block for each row.
  template <class Problem>
  void start_step(const cuda::Kernel* kernel, int64_t rows, int64_t columns, const Problem& p) const {
    if (!call.cell.normalised) return cuda::start_elements(*kernel, rows * columns, p, stream);
    cuda::start(*kernel, {rows, most_norm_sums * norm_warps * int64_t(sizeof(A))}, &p, stream);
  }
  void start_forward(const StepForward<S>& p) const {
    start_step(steps[p.noise.any()].forward, p.rows, call.hidden, p);
  }
};

}  // namespace rnnkern
