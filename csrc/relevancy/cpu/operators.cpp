// The relevancy recurrence on a CPU: the checks needed for memory safety, allocation, and one team of threads.
#include <iterator>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/cells.h"
#include "relevancy/cpu/problem.h"

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
  double mix;
  Tensors weights, state, params;
  OptionalTensor reset;
  RowLayout layout;
  RelevancySizes sizes;

  const CellFactsOf& cell() const { return cells[cell_id]; }
  bool has_c() const { return cell().states == 2; }
  // A tensor of the state behind s and c.
  const Tensor& memory(int64_t k) const { return state[1 + has_c() + k]; }

  // `like` is an argument that has the rows.
  Call(const std::string& name, const char* argument, const Tensor& like, const Tensors& weights_,
       const Tensors& state_, const OptionalTensors& params_, const OptionalTensor& batch_sizes,
       const OptionalTensor& reset_, int64_t buffer_size, double mix, bool dot)
      : dtype(like.scalar_type()), mix(mix) {
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
    const Tensor &s = state[0], &buffer = memory(0), &relevant = memory(3);
    require(s.dim() == 2 && buffer.dim() == 3 && relevant.dim() == 3, "`state`");
    sizes = {.batch = s.size(0),
             .hidden = buffer.size(2),
             .state = s.size(1),
             .heads = weights[3].dim() == 2 ? weights[3].size(0) : 1,
             .buffer_size = buffer_size,
             .first_slots = buffer.size(1),
             .relevant = relevant.size(1),
             .dot = dot};
    check_weights();
    check_state();
    layout = RowLayout("relevancy_recurrence", argument, like, sizes.batch, batch_sizes);
    sizes.steps = layout.steps;
    const int64_t all = sizes.first_slots + sizes.steps;
    sizes.slots = buffer_size < all ? buffer_size : all;
    if (reset_) {
      require(is(*reset_, {sizes.steps, sizes.batch}, ScalarType::Bool), "`reset`");
      reset = dense(*reset_);
    }
    sizes.offsets = layout.offsets;
    sizes.lengths = layout.lengths;
    sizes.reset = read<bool>(reset);
    check_time(read<int64_t>(memory(6)));
  }
  Call(const Call&) = delete;

  template <class T>
  void fill(RelevancyProblem<T>& p) const {
    static_cast<RelevancySizes&>(p) = sizes;
    p.mix = T(mix);
    p.V = read<T>(weights[0]), p.W_a = read<T>(weights[1]), p.U_a = read<T>(weights[2]), p.v = read<T>(weights[3]);
    p.params = params.empty() ? nullptr : read<T>(params[0]);
    p.first = {read<T>(state[0]),        has_c() ? read<T>(state[1]) : nullptr,
               read<T>(memory(0)),       read<T>(memory(1)),
               read<int64_t>(memory(2)), read<T>(memory(3)),
               read<T>(memory(4)),       read<int64_t>(memory(5)),
               read<int64_t>(memory(6))};
  }

 private:
  void check_weights() const {
    const int64_t n = sizes.hidden, size = sizes.state, heads = sizes.heads, G = cell().gates;
    require(n > 0 && (size == n || size == 2 * n) && heads > 0 && n % heads == 0 &&
                is(weights[0], {G * n, size}, dtype) && is(weights[1], {n, size}, dtype) &&
                is(weights[2], {n, n}, dtype) &&
                (is(weights[3], {n}, dtype) || is(weights[3], {heads, n / heads}, dtype)) &&
                (params.empty() || is(params[0], {n}, dtype)),
            "`weights` and `params`");
  }
  void check_state() const {
    constexpr ScalarType id = ScalarType::Long;
    const int64_t n = sizes.hidden, batch = sizes.batch, slots = sizes.first_slots, relevant = sizes.relevant;
    require(is(state[0], {batch, sizes.state}, dtype) && (!has_c() || is(state[1], {batch, n}, dtype)) &&
                is(memory(0), {batch, slots, n}, dtype) && is(memory(1), {batch, slots}, dtype) &&
                is(memory(2), {batch, slots}, id) && is(memory(3), {batch, relevant, n}, dtype) &&
                is(memory(4), {batch, relevant}, dtype) && is(memory(5), {batch, relevant}, id) &&
                is(memory(6), {batch}, id),
            "`state`");
  }
  void check_time(const int64_t* time) const {
    const int64_t size = sizes.buffer_size, slots = sizes.slots;
    for (int64_t b = 0; b < sizes.batch; ++b)
      require(time[b] >= 0 && (slots == size || time[b] % size + sizes.length(b) <= slots), "`state.time`");
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

// Returns [h, s, the new state, with `maps` the attention weights and their ids, and when training what the backward
// needs: alpha (unless no event can leave the buffer), the slots of the relevant set that were overwritten (-1: none),
// and for an LSTM its gates and c]. `weights` are V, W_a, U_a, v; `state` is always complete: s, (c), buffer,
// buffer_scores, buffer_ids, relevant, scores, ids, time. Tensors are float64 or float32.
Tensors relevancy_recurrence_cpu(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                 OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                 int64_t buffer_size, double mix, bool dot, std::string, bool training, bool maps) {
  const Call call(cell, "u", u, weights, state, params, batch_sizes, reset, buffer_size, mix, dot);
  const RelevancySizes& sizes = call.sizes;
  const int64_t n = sizes.hidden, G = call.cell().gates, slots = sizes.slots, kappa = sizes.kappa(), B = sizes.batch;
  const int64_t rows = call.layout.rows, rho = sizes.relevant;
  require(u.size(-1) == G * n, "the columns of `u`");
  u = dense(u);
  if (scores) {
    require(is(*scores, {sizes.steps, B}, call.dtype), "`scores`");
    scores = dense(*scores);
  }
  constexpr ScalarType id = ScalarType::Long;
  Tensors results = {empty(u, sizes_with(u, 1, {n})), empty(u, sizes_with(u, 1, {sizes.state})),
                     empty(u, {B, sizes.state})};
  if (call.has_c()) results.push_back(empty(u, {B, n}));
  const size_t at = results.size();
  for (const Tensor& made : {empty(u, {B, slots, n}), empty(u, {B, slots}), empty(u, {B, slots}, id),
                             empty(u, {B, rho, n}), empty(u, {B, rho}), empty(u, {B, rho}, id), empty(u, {B}, id)})
    results.push_back(made);
  if (maps) {
    results.push_back(empty(u, sizes_with(u, 1, {kappa})));
    results.push_back(empty(u, sizes_with(u, 1, {kappa}), id));
  }
  const size_t saved = results.size();
  if (training) {
    if (!sizes.keeps_all()) results.push_back(empty(u, {rows, sizes.heads * kappa}));
    results.push_back(empty(u, {rows}, ScalarType::Int));
    if (call.has_c()) {
      results.push_back(cached_empty(u, {rows, call.cell().saved * n}, call.dtype));
      results.push_back(empty(u, {rows, n}));
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
      const size_t taken = saved + !sizes.keeps_all();
      if (!sizes.keeps_all()) p.alpha = write<T>(results[saved]);
      p.taken = write<int32_t>(results[taken]);
      if (call.has_c()) p.gates = write<T>(results[taken + 1]), p.c = write<T>(results[taken + 2]);
    }
    run(kernels_in_use<RelevancyKernels<T>>().forward[call.cell_id], p, u);
  });
  return results;
}

// Returns [du, dV, dW_a, dU_a, dv, ds, (dc), dbuffer, drelevant, dparams...]. `grad_state` is empty, or has the
// gradients of s, (c), buffer and relevant; `saved` is what the forward saved.
Tensors relevancy_recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                          OptionalTensors grad_state, Tensors weights, Tensors state,
                                          OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                          OptionalTensor scores, int64_t buffer_size, double mix, bool dot, std::string,
                                          Tensor h, Tensor s, Tensors saved) {
  h = dense(h), s = dense(s);
  const Call call(cell, "h", h, weights, state, params, batch_sizes, reset, buffer_size, mix, dot);
  const RelevancySizes& sizes = call.sizes;
  const int64_t n = sizes.hidden, G = call.cell().gates, B = sizes.batch, rows = call.layout.rows;
  const bool has_c = call.has_c(), has_alpha = !sizes.keeps_all();
  const auto like_h = [&](const Tensor& x, int64_t columns) {
    return x.scalar_type() == call.dtype && x.numel() == rows * columns && x.dim() == h.dim();
  };
  require(h.size(-1) == n && like_h(s, sizes.state), "`h` and `s`");
  if (grad_h) grad_h = dense(*grad_h), require(like_h(*grad_h, n), "`grad_h`");
  if (grad_s) grad_s = dense(*grad_s), require(like_h(*grad_s, sizes.state), "`grad_s`");
  for (Tensor& x : saved) x = dense(x);
  require(saved.size() == size_t(has_alpha + (has_c ? 3 : 1)) &&
              (!has_alpha || is(saved[0], {rows, sizes.heads * sizes.kappa()}, call.dtype)) &&
              is(saved[has_alpha], {rows}, ScalarType::Int) &&
              (!has_c || (is(saved[has_alpha + 1], {rows, call.cell().saved * n}, call.dtype) &&
                          is(saved[has_alpha + 2], {rows, n}, call.dtype))),
          "`saved`");
  const int32_t* const taken = read<int32_t>(saved[has_alpha]);
  for (int64_t row = 0; row < rows; ++row) require(taken[row] >= -1 && taken[row] < sizes.relevant, "`saved`");
  Tensors grads;
  if (grad_state)
    for (const Tensor& x : *grad_state) grads.push_back(dense(x));
  if (!grads.empty()) {
    require(grads.size() == size_t(3 + has_c) && is(grads[0], {B, sizes.state}, call.dtype) &&
                (!has_c || is(grads[1], {B, n}, call.dtype)) && is(grads[1 + has_c], {B, sizes.slots, n}, call.dtype) &&
                is(grads[2 + has_c], {B, sizes.relevant, n}, call.dtype),
            "`grad_state`");
  }
  Tensors results = {empty(h, sizes_with(h, 1, {G * n})), empty(h, {G * n, sizes.state}),
                     empty(h, {n, sizes.state}),          empty(h, {n, n}),
                     empty_of_sizes(h, call.weights[3]),  empty(h, {B, sizes.state})};
  if (has_c) results.push_back(empty(h, {B, n}));
  const size_t at = results.size();
  results.push_back(empty(h, {B, sizes.first_slots, n}));
  results.push_back(empty(h, {B, sizes.relevant, n}));
  if (call.cell().params) results.push_back(empty(h, {n}));
  if (scores) results.push_back(empty(h, {sizes.steps, B}));
  count_kernel(call, "backward");
  by_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    RelevancyBackward<T> p{};
    call.fill(p);
    p.h = read<T>(h), p.s = read<T>(s);
    p.alpha = has_alpha ? read<T>(saved[0]) : nullptr;
    p.taken = taken;
    if (has_c) p.gates = read<T>(saved[has_alpha + 1]), p.c = read<T>(saved[has_alpha + 2]);
    p.grad_h = read<T>(grad_h), p.grad_s = read<T>(grad_s);
    if (!grads.empty()) {
      p.grad_last_s = read<T>(grads[0]);
      if (has_c) p.grad_last_c = read<T>(grads[1]);
      p.grad_last_buffer = read<T>(grads[grads.size() - 2]);
      p.grad_last_relevant = read<T>(grads.back());
    }
    p.du = write<T>(results[0]), p.dV = write<T>(results[1]), p.dW_a = write<T>(results[2]);
    p.dU_a = write<T>(results[3]), p.dv = write<T>(results[4]), p.ds = write<T>(results[5]);
    if (has_c) p.dc = write<T>(results[6]);
    p.dbuffer = write<T>(results[at]), p.drelevant = write<T>(results[at + 1]);
    if (call.cell().params) p.dparams = write<T>(results[at + 2]);
    if (scores) p.dscores = write<T>(results.back());
    run(kernels_in_use<RelevancyKernels<T>>().backward[call.cell_id], p, h);
  });
  return results;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("relevancy_recurrence", TORCH_BOX(&relevancy_recurrence_cpu));
  m.impl("relevancy_recurrence_backward", TORCH_BOX(&relevancy_recurrence_backward_cpu));
}

}  // namespace rnnkern
