// Shared by the CUDA drivers of both directions: the plan, the sequence as kernels see it, and the products between
// kernels. Everything runs on the current stream and allocates through PyTorch; nothing waits for the device.
#pragma once

#include "common/counters.h"
#include "cuda/current.h"
#include "cuda/driver.h"
#include "recurrence/call.h"
#include "recurrence/cuda/plan.h"
#include "recurrence/cuda/step_normalised.cuh"
#include "recurrence/cuda/step_projected.cuh"

namespace rnnkern {

struct Multiplication {
  Tensor out, a, b;

  void run() const { product(out, a, b); }
};

template <class S>
struct CudaDriver {
  using A = Arithmetic<S>;
  static constexpr bool narrow = rnnkern::narrow<S>;
  static constexpr ScalarType arithmetic = rnnkern::arithmetic<S>;

  const Call& call;
  CurrentDevice current;
  void* stream;
  Plan plan;
  const StepTable& steps;
  Sequence sequence, sequence_of_h;  // in sequence_of_h, `hidden` is the number of columns of h
  int64_t head_size, head_width;     // of a head: units, and columns of h
  Tensor table;                      // offsets and lengths of packed rows, on the device
  StepNoise<A> noise{};
  Tensor mask;  // dropout mask

  CudaDriver(const Call& call, const char* direction)
      : call(call), current(call.u), stream(current.stream()), steps(table_of<S>(call.known).steps) {
    const Steps& over = call.steps;
    plan = plan_recurrence({cuda::facts_of_current(stream),
                            call.known,
                            call.u.scalar_type(),
                            {over.count, over.batch, call.hidden, call.heads},
                            call.noise.any(),
                            allows_tf32});
    head_size = call.hidden / call.heads;
    head_width = call.width / call.heads;
    sequence = {over.count, over.batch, call.hidden, call.heads};
    sequence.reset = read<bool>(call.reset);
    sequence.reverse = over.reverse;
    if (call.layout.packed()) {
      table = call.layout.on_device_of(call.u, "recurrence", cuda::capturing(stream));
      sequence.offsets = read<int64_t>(table);
      sequence.lengths = sequence.offsets + over.count + 1;
    }
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
    mask = empty(call.u, {call.steps.batch, call.width}, arithmetic);
    noise.mask = write<A>(mask);
    cuda::launch_elements<MaskKernel<S>>(
        mask.numel(), {call.steps.batch, call.width, threshold(rate), A(1 / (1 - rate)), noise.seed, write<A>(mask)},
        stream);
  }

  // Runs the whole loop in a kernel that keeps R, one of Plan::kernels.
  template <class Problem>
  void run_resident(const Resident& kernel, const Problem& problem) const {
    const auto start = [&](const cuda::Launch& shape, const auto& problem) {
      cuda::start(*kernel.kernel, shape, &problem, stream);
    };
    if (plan.kind == KernelKind::grid) {
      static_assert(sizeof(device::Word16) == 2 * sizeof(int64_t));
      const Tensor words = zeros(call.u, {2 * kernel.words}, ScalarType::Long);
      const cuda::Launch shape{plan.grid.blocks(), kernel.shared_bytes, 1, true};
      return start(shape,
                   OnGrid<Problem>{problem, plan.grid, reinterpret_cast<device::Word16*>(write<int64_t>(words))});
    }
    const int64_t tiles = (call.steps.batch + kernel.columns - 1) / kernel.columns;
    const cuda::Launch shape{tiles * call.heads * kernel.cluster, kernel.shared_bytes, kernel.cluster};
    if (plan.kind == KernelKind::block) return start(shape, problem);
    start(shape, OnCluster<Problem>{problem, kernel.columns});
  }

  // (B, columns) in arithmetic precision: a copy of `from`, or zeros.
  Tensor widened(const OptionalTensor& from, int64_t columns) const {
    if (!from) return zeros(call.u, {call.steps.batch, columns}, arithmetic);
    const Tensor wide = empty(call.u, {call.steps.batch, columns}, arithmetic);
    copy(wide, *from);
    return wide;
  }

  // Converts to the dtype of the call; returns `wide` itself if it has that dtype.
  Tensor narrowed(const Tensor& wide) const {
    if constexpr (!narrow) return wide;
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

  // Starts a thread for each unit of `rows` rows or, with layer norm, a block for each row.
  template <class Problem>
  void start_step(const cuda::Kernel* const (&kernels)[2], int64_t rows, const Problem& problem) const {
    cuda::Launch shape{(rows * call.hidden + step_threads - 1) / step_threads};
    if (call.cell.normalised) shape = {rows, 2 * norm_warps * int64_t(sizeof(A))};
    cuda::start(*kernels[problem.noise.any()], shape, &problem, stream);
  }
  void start(const StepForward<S>& problem) const { start_step(steps.forward, problem.rows, problem); }
  void start(const StepBackward<S>& problem) const { start_step(steps.backward, problem.threads, problem); }
};

}  // namespace rnnkern
