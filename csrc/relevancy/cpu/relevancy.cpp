// The relevancy recurrence on a CPU: the checks needed for memory safety, allocation, and one team of threads.
#include <iterator>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/cells.h"
#include "relevancy/cpu/problem.h"
#include "relevancy/relevancy.h"

namespace rnnkern {
namespace {

struct CellFactsOf {
  const char* name;
  int64_t gates, states, params, saved;
};

#define RNNKERN_FACTS(Cell) {Cell::name, Cell::gates, Cell::states, Cell::params, Cell::saved},
constexpr CellFactsOf cells[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_FACTS)};

void require(bool holds, const char* what) {
  STD_TORCH_CHECK(holds, "relevancy_recurrence: ", what, " must be as rnnkern.ops.relevancy_recurrence passes it");
}

bool is(const Tensor& x, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  if (x.dim() != int64_t(sizes.size()) || x.scalar_type() != dtype) return false;
  int64_t k = 0;
  for (const int64_t size : sizes)
    if (x.size(k++) != size) return false;
  return true;
}

// The arguments that both directions share; all tensors are contiguous.
struct Call {
  int cell_id = -1;  // index of the cell
  ScalarType dtype;
  int64_t steps, batch, hidden, size, heads, buffer_size, first_slots, relevant, rows;
  double mix;
  bool dot;
  Tensors weights, state, params;
  OptionalTensor reset;
  RowLayout layout;

  const CellFactsOf& cell() const { return cells[cell_id]; }
  bool has_c() const { return cell().states == 2; }
  int64_t slots() const { return buffer_size < first_slots + steps ? buffer_size : first_slots + steps; }
  int64_t kappa() const { return slots() + relevant; }
  bool full() const { return first_slots + steps <= buffer_size; }  // nothing leaves the buffer
  const Tensor& memory(int64_t k) const { return state[1 + has_c() + k]; }

  // `like` is an argument that has the rows.
  Call(const std::string& name, const char* argument, const Tensor& like, Tensors weights_, Tensors state_,
       const OptionalTensors& params_, const OptionalTensor& batch_sizes, OptionalTensor reset_, int64_t buffer_size,
       double mix, bool dot)
      : dtype(like.scalar_type()), buffer_size(buffer_size), mix(mix), dot(dot) {
    for (size_t k = 0; k < std::size(cells); ++k)
      if (name == cells[k].name) cell_id = int(k);
    require(cell_id >= 0, "`cell`");
    require(dtype == ScalarType::Float || dtype == ScalarType::Double, "the dtype of `u`");
    require(buffer_size >= 1, "`buffer_size`");
    for (const Tensor& x : weights_) weights.push_back(dense(x));
    for (const Tensor& x : state_) state.push_back(dense(x));
    if (params_)
      for (const Tensor& x : *params_) params.push_back(dense(x));
    require(weights.size() == 4 && int64_t(state.size()) == 8 + has_c() && int64_t(params.size()) == cell().params,
            "the numbers of `weights`, `state` and `params`");
    const Tensor& s = state[0];
    require(s.dim() == 2 && memory(0).dim() == 3 && memory(3).dim() == 3, "`state`");
    batch = s.size(0), size = s.size(1), hidden = memory(0).size(2), first_slots = memory(0).size(1),
    relevant = memory(3).size(1);
    const int64_t n = hidden, G = cell().gates;
    heads = weights[3].dim() == 2 ? weights[3].size(0) : 1;
    require(n > 0 && (size == n || size == 2 * n) && heads > 0 && n % heads == 0 &&
                is(weights[0], {G * n, size}, dtype) && is(weights[1], {n, size}, dtype) &&
                is(weights[2], {n, n}, dtype) &&
                (is(weights[3], {n}, dtype) || is(weights[3], {heads, n / heads}, dtype)) &&
                (params.empty() || is(params[0], {n}, dtype)),
            "`weights` and `params`");
    constexpr ScalarType id = ScalarType::Long;
    require(is(s, {batch, size}, dtype) && (!has_c() || is(state[1], {batch, n}, dtype)) &&
                is(memory(0), {batch, first_slots, n}, dtype) && is(memory(1), {batch, first_slots}, dtype) &&
                is(memory(2), {batch, first_slots}, id) && is(memory(3), {batch, relevant, n}, dtype) &&
                is(memory(4), {batch, relevant}, dtype) && is(memory(5), {batch, relevant}, id) &&
                is(memory(6), {batch}, id),
            "`state`");
    layout = RowLayout("relevancy_recurrence", argument, like, batch, batch_sizes);
    steps = layout.steps, rows = layout.rows;
    if (reset_) {
      require(is(*reset_, {steps, batch}, ScalarType::Bool), "`reset`");
      reset = dense(*reset_);
    }
    const int64_t* const time = read<int64_t>(memory(6));
    for (int64_t b = 0; b < batch; ++b) {
      const bool within = slots() == buffer_size || time[b] % buffer_size + layout.length(b) <= slots();
      require(time[b] >= 0 && within, "`state.time`");
    }
  }

  template <class T>
  void fill(RelevancyProblem<T>& p) const {
    p.steps = steps, p.batch = batch, p.hidden = hidden, p.state = size, p.heads = heads;
    p.buffer_size = buffer_size, p.slots = slots(), p.first_slots = first_slots, p.relevant = relevant;
    p.mix = T(mix), p.dot = dot;
    p.offsets = layout.offsets, p.lengths = layout.lengths;
    p.reset = read<bool>(reset);
    p.V = read<T>(weights[0]), p.W_a = read<T>(weights[1]), p.U_a = read<T>(weights[2]), p.v = read<T>(weights[3]);
    p.params = params.empty() ? nullptr : read<T>(params[0]);
    p.first = {read<T>(state[0]),        has_c() ? read<T>(state[1]) : nullptr,
               read<T>(memory(0)),       read<T>(memory(1)),
               read<int64_t>(memory(2)), read<T>(memory(3)),
               read<T>(memory(4)),       read<int64_t>(memory(5)),
               read<int64_t>(memory(6))};
  }
};

template <class Problem>
void run(const Kernel<Problem>& kernel, Problem problem, const Tensor& like) {
  const int threads = at_most_all(problem.batch ? problem.batch : 1);
  int64_t workspace = 0;  // the maximum: a team may be smaller, and its threads then take more samples at once
  for (int team = 1; team <= threads; ++team) {
    const int64_t wanted = kernel.workspace(problem, team);
    if (wanted > workspace) workspace = wanted;
  }
  const Tensor memory = make_workspace(problem, workspace, like);
  in_team(threads, problem, kernel.run);
}

template <class F>
auto by_dtype(ScalarType dtype, F f) {
  return dtype == ScalarType::Double ? f(double()) : f(float());
}

void count_kernel(const Call& call, const char* direction) {
  rnnkern::count_kernel("relevancy_recurrence/cpu", direction, call.cell().name);
}

}  // namespace

Tensors relevancy_recurrence_cpu(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                 OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                 int64_t buffer_size, double mix, bool dot, std::string, bool training, bool maps) {
  const Call call(cell, "u", u, weights, state, params, batch_sizes, reset, buffer_size, mix, dot);
  const int64_t n = call.hidden, G = call.cell().gates, slots = call.slots(), kappa = call.kappa(), B = call.batch;
  require(u.size(-1) == G * n, "the columns of `u`");
  u = dense(u);
  if (scores) {
    require(is(*scores, {call.steps, B}, call.dtype), "`scores`");
    scores = dense(*scores);
  }
  constexpr ScalarType id = ScalarType::Long;
  Tensors results = {empty(u, sizes_with(u, 1, {n})), empty(u, sizes_with(u, 1, {call.size})),
                     empty(u, {B, call.size})};
  if (call.has_c()) results.push_back(empty(u, {B, n}));
  const size_t at = results.size();
  for (const Tensor& made :
       {empty(u, {B, slots, n}), empty(u, {B, slots}), empty(u, {B, slots}, id), empty(u, {B, call.relevant, n}),
        empty(u, {B, call.relevant}), empty(u, {B, call.relevant}, id), empty(u, {B}, id)})
    results.push_back(made);
  if (maps) {
    results.push_back(empty(u, sizes_with(u, 1, {kappa})));
    results.push_back(empty(u, sizes_with(u, 1, {kappa}), id));
  }
  const size_t saved = results.size();
  if (training) {
    if (!call.full()) results.push_back(empty(u, {call.rows, call.heads * kappa}));
    results.push_back(empty(u, {call.rows}, ScalarType::Int));
    if (call.has_c()) {
      results.push_back(cached_empty(u, {call.rows, call.cell().saved * n}, call.dtype));
      results.push_back(empty(u, {call.rows, n}));
    }
  }
  count_kernel(call, "forward");
  by_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    RelevancyForward<T> p{};
    call.fill(p);
    p.u = read<T>(u);
    p.given = read<T>(scores);
    p.h = write<T>(results[0]), p.s = write<T>(results[1]);
    p.last = {write<T>(results[2]),
              call.has_c() ? write<T>(results[3]) : nullptr,
              write<T>(results[at]),
              write<T>(results[at + 1]),
              write<int64_t>(results[at + 2]),
              write<T>(results[at + 3]),
              write<T>(results[at + 4]),
              write<int64_t>(results[at + 5]),
              write<int64_t>(results[at + 6])};
    if (maps) p.map = write<T>(results[saved - 2]), p.ids = write<int64_t>(results[saved - 1]);
    if (training) {
      const size_t taken = saved + !call.full();
      if (!call.full()) p.alpha = write<T>(results[saved]);
      p.taken = write<int32_t>(results[taken]);
      if (call.has_c()) p.gates = write<T>(results[taken + 1]), p.c = write<T>(results[taken + 2]);
    }
    run(kernels_in_use<RelevancyKernels<T>>().forward[call.cell_id], p, u);
  });
  return results;
}

Tensors relevancy_recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                          OptionalTensors grad_state, Tensors weights, Tensors state,
                                          OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                          OptionalTensor scores, int64_t buffer_size, double mix, bool dot, std::string,
                                          Tensor h, Tensor s, Tensors saved) {
  h = dense(h), s = dense(s);
  const Call call(cell, "h", h, weights, state, params, batch_sizes, reset, buffer_size, mix, dot);
  const int64_t n = call.hidden, G = call.cell().gates, slots = call.slots(), kappa = call.kappa(), B = call.batch;
  const auto like_h = [&](const Tensor& x, int64_t columns) {
    return x.scalar_type() == call.dtype && x.numel() == call.rows * columns && x.dim() == h.dim();
  };
  require(h.size(-1) == n && like_h(s, call.size), "`h` and `s`");
  if (grad_h) grad_h = dense(*grad_h), require(like_h(*grad_h, n), "`grad_h`");
  if (grad_s) grad_s = dense(*grad_s), require(like_h(*grad_s, call.size), "`grad_s`");
  for (Tensor& x : saved) x = dense(x);
  const size_t after_alpha = !call.full();
  require(saved.size() == after_alpha + (call.has_c() ? 3 : 1) &&
              (call.full() || is(saved[0], {call.rows, call.heads * kappa}, call.dtype)) &&
              is(saved[after_alpha], {call.rows}, ScalarType::Int) &&
              (!call.has_c() || (is(saved[after_alpha + 1], {call.rows, call.cell().saved * n}, call.dtype) &&
                                 is(saved[after_alpha + 2], {call.rows, n}, call.dtype))),
          "`saved`");
  const int32_t* const taken = read<int32_t>(saved[after_alpha]);
  for (int64_t row = 0; row < call.rows; ++row) require(taken[row] >= -1 && taken[row] < call.relevant, "`saved`");
  Tensors grads;
  if (grad_state)
    for (const Tensor& x : *grad_state) grads.push_back(dense(x));
  if (!grads.empty()) {
    const size_t k = call.has_c();
    require(grads.size() == 3 + k && is(grads[0], {B, call.size}, call.dtype) &&
                (!k || is(grads[1], {B, n}, call.dtype)) && is(grads[1 + k], {B, slots, n}, call.dtype) &&
                is(grads[2 + k], {B, call.relevant, n}, call.dtype),
            "`grad_state`");
  }
  Tensors results = {
      empty(h, sizes_with(h, 1, {G * n})), empty(h, {G * n, call.size}), empty(h, {n, call.size}), empty(h, {n, n}),
      empty_of_sizes(h, call.weights[3]),  empty(h, {B, call.size})};
  if (call.has_c()) results.push_back(empty(h, {B, n}));
  const size_t at = results.size();
  results.push_back(empty(h, {B, call.first_slots, n}));
  results.push_back(empty(h, {B, call.relevant, n}));
  if (call.cell().params) results.push_back(empty(h, {n}));
  if (scores) results.push_back(empty(h, {call.steps, B}));
  count_kernel(call, "backward");
  by_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    RelevancyBackward<T> p{};
    call.fill(p);
    p.h = read<T>(h), p.s = read<T>(s);
    p.alpha = call.full() ? nullptr : read<T>(saved[0]);
    p.taken = taken;
    if (call.has_c()) p.gates = read<T>(saved[after_alpha + 1]), p.c = read<T>(saved[after_alpha + 2]);
    p.grad_h = read<T>(grad_h), p.grad_s = read<T>(grad_s);
    if (!grads.empty()) {
      p.grad_last_s = read<T>(grads[0]);
      if (call.has_c()) p.grad_last_c = read<T>(grads[1]);
      p.grad_last_buffer = read<T>(grads[grads.size() - 2]);
      p.grad_last_relevant = read<T>(grads.back());
    }
    p.du = write<T>(results[0]), p.dV = write<T>(results[1]), p.dW_a = write<T>(results[2]);
    p.dU_a = write<T>(results[3]), p.dv = write<T>(results[4]), p.ds = write<T>(results[5]);
    if (call.has_c()) p.dc = write<T>(results[6]);
    p.dbuffer = write<T>(results[at]), p.drelevant = write<T>(results[at + 1]);
    if (call.cell().params) p.dparams = write<T>(results[at + 2]);
    if (scores) p.dscores = write<T>(results.back());
    run(kernels_in_use<RelevancyKernels<T>>().backward[call.cell_id], p, h);
  });
  return results;
}

}  // namespace rnnkern
