// The relevancy recurrence on a CPU: the checks needed for memory safety, allocation, and one team of threads.
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/call.h"
#include "relevancy/cpu/problem.h"

namespace rnnkern {
namespace {

using relevancy::BackwardCall, relevancy::Call, relevancy::require, relevancy::State;

void check_time(const Call& call) {
  const RelevancySizes& sizes = call.sizes;
  const int64_t* const time = read<int64_t>(call.first.time);
  const int64_t size = sizes.buffer_size, slots = sizes.slots;
  for (int64_t b = 0; b < sizes.batch; ++b)
    require(time[b] >= 0 && (slots == size || time[b] % size + sizes.length(b) <= slots), "`state.time`");
}

// The values of a tensor, which are written unless T is const.
template <class T>
T* values(const OptionalTensor& x) {
  if constexpr (std::is_const_v<T>)
    return read<std::remove_const_t<T>>(x);
  else
    return write<T>(x);
}

template <class T, class Id>
RelevancyMemory<T, Id> pointers(const State& x) {
  return {values<T>(x.s),           values<T>(x.c),        values<T>(x.buffer), values<T>(x.buffer_scores),
          values<Id>(x.buffer_ids), values<T>(x.relevant), values<T>(x.scores), values<Id>(x.ids),
          values<Id>(x.time)};
}

template <class T>
void fill(RelevancyProblem<T>& p, const Call& call) {
  static_cast<RelevancySizes&>(p) = call.sizes;
  p.mix = T(call.mix);
  p.V = read<T>(call.V), p.W_a = read<T>(call.W_a), p.U_a = read<T>(call.U_a), p.v = read<T>(call.v);
  p.params = read<T>(call.params);
  p.first = pointers<const T, const int64_t>(call.first);
}

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
  rnnkern::count_kernel("relevancy_recurrence/cpu", direction, call.cell.name);
}

// Returns [h, s, the new state, with `maps` the attention weights and their ids, and when training what the backward
// needs: alpha (unless no event can leave the buffer), the slots of the relevant set that were overwritten (-1: none),
// and for an LSTM its gates and c]. `weights` are V, W_a, U_a, v; `state` is always complete: s, (c), buffer,
// buffer_scores, buffer_ids, relevant, scores, ids, time. Tensors are float64 or float32.
Tensors relevancy_recurrence_cpu(std::string cell, Tensor u, Tensors weights, Tensors state, OptionalTensors params,
                                 OptionalTensor batch_sizes, OptionalTensor reset, OptionalTensor scores,
                                 int64_t buffer_size, double mix, bool dot, std::string dtype, bool training,
                                 bool maps) {
  const Call call({cell, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype}, u, "u");
  check_time(call);
  require(u.size(-1) == call.cell.gates * call.sizes.hidden, "the columns of `u`");
  u = dense(u);
  relevancy::ForwardResults results(call, u, training, maps);
  if (results.cells)
    results.gates = cached_empty(u, {call.layout.rows, call.cell.saved * call.sizes.hidden}, call.dtype);
  count_kernel(call, "forward");
  by_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    RelevancyForward<T> p{};
    fill(p, call);
    p.u = read<T>(u);
    p.given = read<T>(call.given);
    p.h = write<T>(results.h), p.s = write<T>(results.s);
    p.last = pointers<T, int64_t>(results.last);
    p.map = write<T>(results.map), p.ids = write<int64_t>(results.ids);
    p.alpha = write<T>(results.alpha), p.taken = write<int32_t>(results.taken);
    p.gates = write<T>(results.gates), p.c = write<T>(results.cells);
    run(kernels_in_use<RelevancyKernels<T>>().forward[call.cell_id], p, u);
  });
  return results.list();
}

// Returns [du, dV, dW_a, dU_a, dv, ds, (dc), dbuffer, drelevant, dparams...]. `grad_state` is empty, or has the
// gradients of s, (c), buffer and relevant; `saved` is what the forward saved.
Tensors relevancy_recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, OptionalTensor grad_s,
                                          OptionalTensors grad_state, Tensors weights, Tensors state,
                                          OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset,
                                          OptionalTensor scores, int64_t buffer_size, double mix, bool dot,
                                          std::string dtype, Tensor h, Tensor s, Tensors saved) {
  const BackwardCall call({cell, weights, state, params, batch_sizes, reset, scores, buffer_size, mix, dot, dtype}, h,
                          s, grad_h, grad_s, grad_state, saved);
  check_time(call);
  const RelevancySizes& sizes = call.sizes;
  const int64_t n = sizes.hidden, G = call.cell.gates, B = sizes.batch;
  const int32_t* const taken = read<int32_t>(call.taken);
  for (int64_t row = 0; row < call.layout.rows; ++row)
    require(taken[row] >= -1 && taken[row] < sizes.relevant, "`saved`");
  Tensors results = {empty(h, sizes_with(h, 1, {G * n})), empty(h, {G * n, sizes.state}),
                     empty(h, {n, sizes.state}),          empty(h, {n, n}),
                     empty_of_sizes(h, call.v),           empty(h, {B, sizes.state})};
  if (call.has_c()) results.push_back(empty(h, {B, n}));
  const size_t at = results.size();
  results.push_back(empty(h, {B, sizes.first_slots, n}));
  results.push_back(empty(h, {B, sizes.relevant, n}));
  if (call.params) results.push_back(empty(h, {n}));
  if (scores) results.push_back(empty(h, {sizes.steps, B}));
  count_kernel(call, "backward");
  by_dtype(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    RelevancyBackward<T> p{};
    fill(p, call);
    p.h = read<T>(call.h), p.s = read<T>(call.s);
    p.alpha = read<T>(call.alpha), p.taken = taken;
    p.gates = read<T>(call.gates), p.c = read<T>(call.cells);
    p.grad_h = read<T>(call.grad_h), p.grad_s = read<T>(call.grad_s);
    if (const Tensors& grads = call.grad_state; !grads.empty()) {
      p.grad_last_s = read<T>(grads[0]);
      if (call.has_c()) p.grad_last_c = read<T>(grads[1]);
      p.grad_last_buffer = read<T>(grads[grads.size() - 2]);
      p.grad_last_relevant = read<T>(grads.back());
    }
    p.du = write<T>(results[0]), p.dV = write<T>(results[1]), p.dW_a = write<T>(results[2]);
    p.dU_a = write<T>(results[3]), p.dv = write<T>(results[4]), p.ds = write<T>(results[5]);
    if (call.has_c()) p.dc = write<T>(results[6]);
    p.dbuffer = write<T>(results[at]), p.drelevant = write<T>(results[at + 1]);
    if (call.params) p.dparams = write<T>(results[at + 2]);
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
