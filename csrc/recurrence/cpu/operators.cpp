// The recurrence and the projection of its input on a CPU: the checks needed for memory safety, allocation, and one
// team of threads for the whole sequence.
#include <array>
#include <cstring>
#include <utility>

#include "recurrence/cpu/call.h"
#include "recurrence/cpu/linear.h"
#include "recurrence/cpu/team.h"

namespace rnnkern {
namespace {

// A problem that is ready to run, its kernel, its first result (h, or the gradient of u), and a function that returns
// the operator's results after the run. `call` must outlive it.
template <class Problem, class Collect>
struct Prepared {
  Problem problem;
  Kernel<Problem> kernel;
  Tensor first;
  Collect collect;
};

// Writes h to `h` if it is given.
template <class T>
auto forward(const Call& call, bool training, bool save_gates, const OptionalTensor& h = {}) {
  constexpr ScalarType wide = arithmetic<T>;
  Forward<T> p{};
  set_common<T>(p, call);
  Tensors outputs{h ? *h : call.rows_like_u(call.width)};
  p.h = write_rows<T>(outputs[0]);
  for (int s = 0; s < call.cell.states; ++s) {
    outputs.push_back(empty_of_sizes(call.u, call.state[s], wide));
    p.state[s] = read<T>(call.state[s]);
    p.final_state[s] = write<T>(outputs.back());
  }
  for (int s = 1; training && s < call.cell.states; ++s) {
    outputs.push_back(cached_empty(call.u, call.sizes_like_u(call.hidden), wide));
    p.states[s] = write<T>(outputs.back());
  }
  if (training && save_gates && call.cell.saved > 0) {
    outputs.push_back(cached_empty(call.u, call.sizes_like_u(call.cell.saved * call.hidden), wide));
    p.saved = write<T>(outputs.back());
  }
  if (training && call.keeps_candidates()) {
    outputs.push_back(cached_empty(call.u, call.sizes_like_u(call.hidden), wide));
    p.candidates = write<T>(outputs.back());
  }
  return Prepared{p, kernels<T>(call).forward, outputs[0], [&call, outputs]() mutable {
                    for (int s = 0; s < call.cell.states; ++s) outputs[1 + s] = narrowed(call, outputs[1 + s]);
                    return outputs;
                  }};
}

// Which of the gradients that cost extra work are wanted.
struct Needs {
  bool x, R, bias, W, bias_ih, h = false, params = true;
};

// All arguments of `call` are converted, except h0.
template <class T>
auto backward(const Call& call, const Tensor& h0, const OptionalTensor& grad_h, const Tensors& grad_state,
              const OptionalTensor& grad_scale, const Tensor& h, const Tensors& saved, Needs needs) {
  constexpr ScalarType wide = arithmetic<T>;
  const CellInfo& cell = call.cell;
  const int64_t columns = cell.gates * call.hidden, recurrent = cell.recurrent * call.hidden, batch = call.steps.batch;
  Backward<T> p{};
  set_common<T>(p, call);

  Tensors kept;  // contiguous copies, kept until the end
  auto keep = [&](const char* name, const Tensor& x, int64_t elements) {
    kept.push_back(call.sized(name, x, elements));
    return read_rows<T>(kept.back());
  };
  auto keep_wide = [&](const char* name, const Tensor& x, int64_t elements) {
    kept.push_back(widened(call, call.sized(name, x, elements)));
    return read<T>(kept.back());
  };
  auto keep_saved = [&](const Tensor& x, int64_t elements) {
    kept.push_back(call.sized("saved", x, elements, wide));
    return read<T>(kept.back());
  };
  if (grad_scale) {
    const bool per_sequence = grad_scale->dim() == 2;
    p.grad_scale = keep_wide("grad_scale", *grad_scale, call.steps.count * (per_sequence ? batch : 1));
    p.scale_step = per_sequence ? batch : 1;
    p.scale_row = per_sequence ? 1 : 0;
  }
  p.h0 = read_rows<T>(h0);
  p.h = keep("h", h, call.rows * call.width);
  const size_t states = cell.states - 1, has_candidates = call.keeps_candidates();
  const size_t has_gates = saved.size() - states - has_candidates;
  STD_TORCH_CHECK(saved.size() >= states + has_candidates && has_gates <= size_t(cell.saved > 0),
                  "recurrence_backward: wrong `saved`");
  for (int s = 1; s < cell.states; ++s) {
    p.state[s] = read<T>(call.state[s]);
    p.states[s] = keep_saved(saved[s - 1], call.rows * call.hidden);
  }
  p.saved = has_gates ? keep_saved(saved.back(), call.rows * cell.saved * call.hidden) : nullptr;
  p.candidates = has_candidates ? keep_saved(saved.back(), call.rows * call.hidden) : nullptr;
  if (grad_h) p.grad_h = keep("grad_h", *grad_h, call.rows * call.width);
  STD_TORCH_CHECK(grad_state.empty() || grad_state.size() == call.state.size(),
                  "recurrence_backward: wrong `grad_state`");

  auto weight_gradient = [&](const OptionalTensor& weight, bool needed, T*& gradient) {
    const Tensor made = needed ? empty_of_sizes(*weight, *weight, wide) : empty(call.u, {0}, wide);
    gradient = needed ? write<T>(made) : nullptr;
    return made;
  };
  auto bias_gradient = [&](bool needed, int64_t elements, T*& gradient) {
    const Tensor made = empty(call.u, {needed ? elements : 0}, wide);
    gradient = needed ? write<T>(made) : nullptr;
    return made;
  };
  const bool wants_du = !call.W || needs.x, sums_du = call.u_repeats && call.u.size(0) == 1;
  Tensors outputs{sums_du    ? empty_of_sizes(call.u, call.u, wide)
                  : wants_du ? empty_of_sizes(call.u, call.u)
                             : empty(call.u, {0}),
                  weight_gradient(call.R, needs.R, p.dR)};
  if (sums_du) {
    p.du_sum = write<T>(outputs[0]);
  } else if (wants_du) {
    (call.W ? p.dx : p.du) = write_rows<T>(outputs[0]);
  }
  const Tensor dW = weight_gradient(call.W, call.W && needs.W, p.dW);
  outputs.push_back(bias_gradient(needs.bias, recurrent, p.dbias));
  const Tensor dbias_ih = bias_gradient(needs.bias_ih, columns, p.dbias_ih);
  T* const same_as_dbias = cell.joint ? std::exchange(p.dbias_ih, nullptr) : nullptr;
  if (!needs.bias) p.dbias = same_as_dbias;
  for (int s = 0; s < cell.states; ++s) {
    p.grad_state[s] = grad_state.empty() ? nullptr : keep_wide("grad_state", grad_state[s], call.state[s].numel());
    outputs.push_back(empty(call.u, {batch, s ? call.hidden : call.width}, wide));
    p.dstate[s] = write<T>(outputs.back());
  }
  Tensors dparams;
  const Tensor dW_hr =
      weight_gradient(cell.projected ? call.params[0] : OptionalTensor(), cell.projected && needs.params, p.dW_hr);
  for (int i = 0; i < cell.params; ++i) {
    if (!needs.params) {
      dparams.push_back(empty(call.u, {0}, wide));
      continue;
    }
    dparams.push_back(empty(call.u, {batch, call.params[i].numel()}, wide));
    p.dparams[i] = write<T>(dparams.back());
  }
  OptionalTensor dh;
  if (needs.h) {
    dh = call.rows_like_u(call.width);
    p.dh = write_rows<T>(*dh);
  }
  const Tensor first = outputs[0];
  auto collect = [=, &call, kept = std::move(kept)]() mutable {
    if (same_as_dbias && same_as_dbias != p.dbias) std::memcpy(same_as_dbias, p.dbias, sizeof(T) * columns);
    for (const Tensor& rows : dparams) outputs.push_back(needs.params ? sum(rows, 0) : empty(call.u, {0}, wide));
    if (call.cell.projected) outputs.push_back(dW_hr);
    if (call.W) {
      outputs.push_back(dW);
      outputs.push_back(dbias_ih);
    }
    for (size_t i = sums_du ? 0 : 1; i < outputs.size(); ++i) outputs[i] = narrowed(call, outputs[i]);
    if (dh) outputs.push_back(*dh);
    return outputs;
  };
  return Prepared{p, kernels<T>(call).backward, first, std::move(collect)};
}

// One problem's half of a list that holds the tensors of the first problem and then those of the second.
Tensors half(const Tensors& both, bool second) {
  STD_TORCH_CHECK(both.size() % 2 == 0, "recurrence_pair: a list has ", both.size(), " tensors");
  const auto middle = both.begin() + both.size() / 2;
  return second ? Tensors(middle, both.end()) : Tensors(both.begin(), middle);
}

Tensor only(const Tensors& both, bool second) {
  STD_TORCH_CHECK(both.size() == 2, "recurrence_pair: a list has ", both.size(), " tensors, not 2");
  return both[second];
}

OptionalTensor only(const OptionalTensors& both, bool second) {
  return both && !both->empty() ? OptionalTensor(only(*both, second)) : OptionalTensor();
}

// The calls of both problems. The second of two stacked layers reads the h of the first, `between`, which is allocated
// here unless given.
std::array<Call, 2> both_calls(const std::string& cell, bool stacked, const Tensor& u, const Tensors& R,
                               const Tensors& state, const OptionalTensors& bias, const OptionalTensors& params,
                               const OptionalTensor& batch_sizes, const OptionalTensors& reset,
                               const Tensors& weight_ih, const OptionalTensors& bias_ih,
                               const OptionalTensor& between = {}) {
  auto one = [&](bool second, const Tensor& x) {
    return Call(cell, x, only(R, second), half(state, second), only(bias, second),
                half(params.value_or(Tensors()), second), batch_sizes, only(reset, second), second && !stacked,
                only(weight_ih, second), only(bias_ih, second), simd_vector_bytes());
  };
  const Call first = one(false, dense(u));
  return {first, one(true, !stacked ? first.u : between ? dense(*between) : first.rows_like_u(first.width))};
}

template <class P>
Tensors results_of(const Call& call, P prepared) {
  run(prepared.kernel, prepared.problem, call);
  return prepared.collect();
}

template <class P>
Tensors results_of_both(P& first, P& second) {
  Tensors results = first.collect();
  for (Tensor& x : second.collect()) results.push_back(std::move(x));
  return results;
}

// The properties of every built-in cell (cells/cell.h) as JSON, in the order of cells/list.h.
std::string recurrence_cells() {
  std::string text = "{";
  int cell_id = 0;
  for (const CellInfo& cell : cell_list) {
    text += std::string(text.size() > 1 ? ", " : "") + '"' + cell.name +
            "\": {\"gates\": " + std::to_string(cell.gates) + ", \"states\": " + std::to_string(cell.states) +
            ", \"params\": " + std::to_string(cell.tensors()) + ", \"saved\": " + std::to_string(cell.saved) +
            ", \"first_gates\": " + std::to_string(cell.first_gates) +
            ", \"recurrent\": " + std::to_string(cell.recurrent) + ", \"joint\": " + (cell.joint ? "true" : "false") +
            ", \"resident\": " + (cell_id < resident_cells ? "true" : "false") + "}";
    ++cell_id;
  }
  return text + "}";
}

// Returns [h, *final state, *cell states, saved]: the last two only when training, and `saved` only if the gates are
// kept and the cell saves any. With `weight_ih`, `u` is the input x, and u = x W^T + bias_ih is never materialized.
Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, OptionalTensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates,
                       OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout, double dropout,
                       OptionalTensor seed, OptionalTensor keep, int64_t parts) {
  Call call(cell, weight_ih || !repeats(u) ? dense(u) : u, R, state, bias, params.value_or(Tensors()), batch_sizes,
            reset, reverse, weight_ih, bias_ih, simd_vector_bytes());
  call.set_noise(zoneout, dropout, seed);
  call.set_keep(keep);
  prepare(call, "forward", parts);
  return by_arithmetic(
      call, [&](auto zero) { return results_of(call, forward<decltype(zero)>(call, training, save_gates)); });
}

// Returns [du, dR, dbias, *dstate, *dparams], with `weight_ih` [dx, dR, dbias, *dstate, *dparams, dW, dbias_ih].
// Gradients that are not needed are empty tensors. With `needs_h` one more result follows: the gradient of h of each
// step through all later steps, shaped like h.
Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                bool needs_u, bool needs_weight_ih, bool needs_bias_ih, Rates zoneout, double dropout,
                                OptionalTensor seed, OptionalTensor keep, bool needs_h, bool needs_params,
                                int64_t parts) {
  // Of a u with one step that all steps of h read, the gradient is the sum over them.
  const bool one_for_all = !weight_ih && u.dim() == 3 && u.size(0) == 1 && h.dim() == 3 && h.size(0) > 1;
  Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse, weight_ih, bias_ih, simd_vector_bytes(),
            one_for_all ? OptionalTensor(h) : OptionalTensor());
  call.set_noise(zoneout, dropout, seed);
  call.set_keep(keep);
  if (call.backward_reads_u(saved) && (weight_ih || !repeats(call.u))) call.u = dense(call.u);
  const Tensor h0 = call.state[0];
  prepare(call, "backward", parts);
  return by_arithmetic(call, [&](auto zero) {
    return results_of(call, backward<decltype(zero)>(call, h0, grad_h, grad_state, grad_scale, h, saved,
                                                     {needs_u, needs_R, needs_bias, needs_weight_ih,
                                                      needs_bias_ih && bias_ih, needs_h, needs_params}));
  });
}

// Two recurrences of equal sizes at once: both directions of a layer over one input, or, if `stacked`, a layer and the
// layer above it, which reads its h. Lists contain the tensors of the first and then those of the second; results are
// those of `recurrence` and `recurrence_backward` for the first and then for the second. If stacked, the only gradient
// of the first h comes from the layer above.
Tensors recurrence_pair_cpu(std::string cell, bool stacked, Tensor u, Tensors R, Tensors state, OptionalTensors bias,
                            OptionalTensors params, OptionalTensor batch_sizes, OptionalTensors reset, bool training,
                            bool save_gates, Tensors weight_ih, OptionalTensors bias_ih, int64_t parts) {
  std::array<Call, 2> calls =
      both_calls(cell, stacked, u, R, state, bias, params, batch_sizes, reset, weight_ih, bias_ih);
  for (Call& call : calls) prepare(call, "forward", parts);
  return by_arithmetic(calls[0], [&](auto zero) {
    using T = decltype(zero);
    auto first = forward<T>(calls[0], training, save_gates, stacked ? OptionalTensor(calls[1].u) : OptionalTensor());
    auto second = forward<T>(calls[1], training, save_gates);
    if (stacked) {
      run_in_turn(first.kernel, first.problem, second.problem, &Forward<T>::below, calls[0]);
    } else {
      run_both(first.kernel, first.problem, second.problem, calls[0]);
    }
    return results_of_both(first, second);
  });
}

Tensors recurrence_pair_backward_cpu(std::string cell, bool stacked, OptionalTensor grad_h,
                                     OptionalTensor grad_h_second, Tensors grad_state, Tensor u, Tensors R,
                                     Tensors state, OptionalTensors bias, OptionalTensors params,
                                     OptionalTensor batch_sizes, OptionalTensors reset, Tensors h, Tensors saved,
                                     Tensors weight_ih, OptionalTensors bias_ih, bool needs_u, bool needs_R,
                                     bool needs_bias, bool needs_weight_ih, bool needs_bias_ih, int64_t parts) {
  std::array<Call, 2> calls = both_calls(cell, stacked, u, R, state, bias, params, batch_sizes, reset, weight_ih,
                                         bias_ih, only(OptionalTensors(h), false));
  const Tensor h0[2] = {calls[0].state[0], calls[1].state[0]};
  for (Call& call : calls) prepare(call, "backward", parts);
  return by_arithmetic(calls[0], [&](auto zero) {
    using T = decltype(zero);
    auto one = [&](bool second, const OptionalTensor& grad) {
      return backward<T>(
          calls[second], h0[second], grad, half(grad_state, second), {}, only(h, second), half(saved, second),
          {needs_u || (stacked && second), needs_R, needs_bias, needs_weight_ih, needs_bias_ih && bias_ih});
    };
    auto second = one(true, grad_h_second);
    auto first = one(false, stacked ? OptionalTensor(second.first) : grad_h);
    if (stacked) {
      run_in_turn(first.kernel, second.problem, first.problem, &Backward<T>::above, calls[0]);
    } else {
      run_both(first.kernel, first.problem, second.problem, calls[0]);
    }
    return results_of_both(first, second);
  });
}

constexpr int64_t held = int64_t(1) << 18;  // elements of x that a core's cache holds

// y = x W^T + b for x (..., K), weight (N, K) and bias (N,). The bits of a row of y depend neither on the other rows
// nor on the number of threads.
Tensor linear_cpu(Tensor x, Tensor weight, OptionalTensor bias) {
  STD_TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(x.dim() - 1) &&
                      weight.scalar_type() == x.scalar_type(),
                  "linear: `weight` must be (N, K), of the dtype of `x`, which is (..., K)");
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  STD_TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == outputs && bias->scalar_type() == x.scalar_type()),
                  "linear: `bias` must be (N,), of the dtype of `x`");
  return by_float_or_double(x, "linear: `x` must be float32 or float64", [&](auto zero) {
    using T = decltype(zero);
    const Tensor y = empty(x, sizes_with(x, 1, {outputs}));
    if (!y.numel()) return y;
    if (!inputs) {
      bias ? copy(y, *bias) : fill_zero(y);
      return y;
    }
    x = dense(x), weight = dense(weight);
    if (bias) bias = dense(*bias);
    const int64_t rows = x.numel() / inputs;
    const int threads = at_most_all(1 + rows * weight.numel() / worth_waking);
    const bool by_rows = threads > 1 && rows >= int64_t(chunk_rows) * threads;
    const bool at_once = !by_rows && (rows <= chunk_rows || (rows <= 4 * chunk_rows && x.numel() <= held));
    const Matrix<T> matrix{read<T>(weight), read<T>(bias), 1, 1, outputs, inputs};
    Linear<T> p{matrix, rows, by_rows, at_once, read<T>(x), write<T>(y), nullptr};
    const auto kernel = at_level_in_use([]<SimdLevel level>() { return linear_at<T, level>(); });
    const Workspace<T> workspace(kernel.workspace(p, threads), x);
    p.workspace = workspace.begin;
    in_team(threads, p, kernel.run);
    return y;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CompositeExplicitAutograd, m) {
  m.impl("recurrence_cells", TORCH_BOX(&recurrence_cells));
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("recurrence", TORCH_BOX(&recurrence_cpu));
  m.impl("recurrence_backward", TORCH_BOX(&recurrence_backward_cpu));
  m.impl("recurrence_pair", TORCH_BOX(&recurrence_pair_cpu));
  m.impl("recurrence_pair_backward", TORCH_BOX(&recurrence_pair_backward_cpu));
  m.impl("linear", TORCH_BOX(&linear_cpu));
}

}  // namespace rnnkern
