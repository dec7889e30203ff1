// The recurrence on a CPU: checks that memory safety needs, allocation, and one team of threads for the whole sequence.
#include <omp.h>

#include "common/counters.h"
#include "common/simd_level.h"
#include "recurrence/call.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

const Level& level() {
  static const Level plain = level_plain();
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx512) {
    static const Level avx512 = level_avx512();
    return avx512;
  }
  if (simd_level() == SimdLevel::avx2) {
    static const Level avx2 = level_avx2();
    return avx2;
  }
#endif
  return plain;
}

template <class S>
const Kernels<S>& kernels() {
  if constexpr (std::is_same_v<S, float>) return level().f32;
  if constexpr (std::is_same_v<S, double>) return level().f64;
  if constexpr (std::is_same_v<S, device::bfloat16>) return level().bf16;
  if constexpr (std::is_same_v<S, device::float16>) return level().f16;
}

// Threads share out sequences where there are enough of them, for then they never meet; but where R is larger than a
// core's cache, and few sequences use what was loaded of it, they share out hidden units, and with them R. They do so
// too where a part of dR for each thread would take too much memory.
bool split_hidden(const Call& call, int threads) {
  const int64_t bytes = call.R.numel() * int64_t(call.R.element_size()), batch = call.steps.batch;
  return batch < 4 * threads || (bytes > (int64_t(1) << 20) && batch < 64 * threads) ||
         bytes * threads > (int64_t(1) << 28);
}

// A thread for every 32,768 multiplications of a step: less work costs more to share out than to do.
int team_size(const Call& call) {
  const int64_t useful = 1 + call.steps.batch * call.R.numel() / 32768;
  const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
  return int(useful < most ? useful : most);
}

// Steps whose gradients are kept until the gradient of R takes them: enough for a block of it in each thread.
int64_t kept_slots(int64_t batch, int threads) {
  const int64_t steps = gradient_rows * threads / (batch > 0 ? batch : 1);
  return steps < 2 ? 2 : steps;
}

template <class Kernel, class Problem>
void run(Kernel kernel, const Problem& problem, int threads) {
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  kernel(problem, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

void count_kernel(const char* direction, const Call& call) {
  count(std::string("recurrence/cpu/") + direction + "/" + call.cell.name + "/" + name(simd_level()));
}

// In what S is computed in: x itself where it is so already.
template <class S>
Tensor widened(const Tensor& x) {
  if constexpr (!narrow<S>) return x;
  const Tensor wide = empty_of_sizes(x, x, arithmetic<S>);
  copy(wide, x);
  return wide;
}

// As S is stored.
template <class S>
Tensor narrowed(const Call& call, const Tensor& wide) {
  if constexpr (!narrow<S>) return wide;
  const Tensor stored = empty_of_sizes(call.u, wide);
  copy(stored, wide);
  return stored;
}

// All that does not grow with the sequence.
template <class S>
void widen(Call& call) {
  call.R = widened<S>(call.R);
  for (Tensor& x : call.state) x = widened<S>(x);
  for (Tensor& x : call.params) x = widened<S>(x);
  if (call.bias) call.bias = widened<S>(*call.bias);
}

template <class S>
Tensors forward(const Call& call, bool training, bool save_gates) {
  using T = Arithmetic<S>;
  constexpr ScalarType wide = arithmetic<S>;
  const Kernels<S>& kernels = rnnkern::kernels<S>();
  const int64_t batch = call.steps.batch;
  Forward<S> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  p.u = read<S>(call.u);
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;
  p.keep_saved = training && save_gates && call.cell.saved > 0;

  Tensors outputs{call.rows_like_u(call.hidden)};
  p.h = write<S>(outputs[0]);
  for (int s = 0; s < call.cell.states; ++s) {
    outputs.push_back(empty(call.u, {batch, call.hidden}, wide));
    p.state[s] = read<T>(call.state[s]);
    p.final_state[s] = write<T>(outputs.back());
  }
  if (training && call.cell.states > 1) {
    outputs.push_back(call.rows_like_u(call.hidden, wide));
    p.cell_states = write<T>(outputs.back());
  }
  if (p.keep_saved) {
    outputs.push_back(call.rows_like_u(call.cell.saved * call.hidden, wide));
    p.saved = write<T>(outputs.back());
  }
  Tensors workspace;  // alive until the end
  auto room = [&](int64_t rows, int64_t columns) {
    workspace.push_back(empty(call.u, {rows, columns}, wide));
    return write<T>(workspace.back());
  };
  p.packed = room(1, kernels.packed_size(call.hidden, call.heads, call.cell.gates));
  const Tensor zeros = rnnkern::zeros(call.u, {zeros_size(call.hidden)}, wide);
  p.zeros = write<T>(zeros);
  if (narrow<S>) p.carried = room(2 * batch, call.hidden);
  if (call.cell.two_products()) {
    p.operand = room(batch, call.hidden);
    if (!p.keep_saved) p.saved = room(batch, call.cell.saved * call.hidden);
  }
  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  run(kernels.forward[call.place], p, threads);
  for (int s = 0; s < call.cell.states; ++s) outputs[1 + s] = narrowed<S>(call, outputs[1 + s]);
  return outputs;
}

// `call` is widened but for h0.
template <class S>
Tensors backward(const Call& call, const Tensor& h0, const OptionalTensor& grad_h, const Tensors& grad_state,
                 const OptionalTensor& grad_scale, const Tensor& h, const Tensors& given, bool needs_R,
                 bool needs_bias) {
  using T = Arithmetic<S>;
  constexpr ScalarType wide = arithmetic<S>;
  const Kernels<S>& kernels = rnnkern::kernels<S>();
  const CellInfo& cell = call.cell;
  const int64_t columns = cell.gates * call.hidden, batch = call.steps.batch;
  Backward<S> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;

  Tensors kept;  // contiguous forms and workspace, alive until the end
  auto keep = [&](const char* name, const Tensor& x, int64_t elements) {
    kept.push_back(call.sized(name, x, elements));
    return read<S>(kept.back());
  };
  auto keep_wide = [&](const char* name, const Tensor& x, int64_t elements) {
    kept.push_back(widened<S>(call.sized(name, x, elements)));
    return read<T>(kept.back());
  };
  auto keep_saved = [&](const Tensor& x, int64_t elements) {
    kept.push_back(call.sized("saved", x, elements, wide));
    return read<T>(kept.back());
  };
  auto room = [&](int64_t rows, int64_t columns) {
    kept.push_back(empty(call.u, {rows, columns}, wide));
    return write<T>(kept.back());
  };
  if (grad_scale) {
    const bool per_sequence = grad_scale->dim() == 2;
    p.grad_scale = keep_wide("grad_scale", *grad_scale, call.steps.count * (per_sequence ? batch : 1));
    p.scale_step = per_sequence ? batch : 1;
    p.scale_row = per_sequence ? 1 : 0;
  }
  p.h0 = read<S>(h0);
  p.h = keep("h", h, call.rows * call.hidden);
  const bool has_cell_states = cell.states > 1;
  Tensors saved = given;
  if (cell.saved > 0 && saved.size() == size_t(has_cell_states)) {  // without gates: the forward gives them again
    count_kernel("forward", call);
    saved.push_back(forward<S>(call, true, true).back());
  }
  STD_TORCH_CHECK(saved.size() == size_t(has_cell_states) + (cell.saved > 0), "recurrence_backward: wrong `saved`");
  p.c0 = has_cell_states ? read<T>(call.state[1]) : nullptr;
  p.cell_states = has_cell_states ? keep_saved(saved[0], call.rows * call.hidden) : nullptr;
  p.saved = cell.saved ? keep_saved(saved.back(), call.rows * cell.saved * call.hidden) : nullptr;
  p.grad_h = grad_h ? keep("grad_h", *grad_h, call.rows * call.hidden) : nullptr;
  STD_TORCH_CHECK(grad_state.empty() || grad_state.size() == call.state.size(),
                  "recurrence_backward: wrong `grad_state`");

  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  Tensors outputs{call.rows_like_u(columns), empty(call.R, {0}), empty(call.u, {0}, wide)};
  p.du = write<S>(outputs[0]);
  if constexpr (narrow<S>) {
    p.slots = kept_slots(batch, p.split_hidden ? 1 : threads);
    p.dr = room(p.slots * batch, columns);
  } else {
    p.dr = cell.joint ? p.du : room(call.rows, columns);
  }
  for (int s = 0; s < cell.states; ++s) {
    p.grad_state[s] = grad_state.empty() ? nullptr : keep_wide("grad_state", grad_state[s], batch * call.hidden);
    outputs.push_back(empty(call.u, {batch, call.hidden}, wide));
    p.dstate[s] = write<T>(outputs.back());
  }
  Tensors dparams;
  for (int i = 0; i < cell.params; ++i) {
    dparams.push_back(empty(call.u, {batch, call.hidden}, wide));
    p.dparams[i] = write<T>(dparams.back());
  }
  if (needs_R) {
    outputs[1] = empty_of_sizes(call.R, call.R);
    p.dR = write<T>(outputs[1]);
    p.dR_parts = room(p.split_hidden ? 1 : threads, kernels.gradient_size(call.hidden, call.heads, cell.gates));
    if (cell.two_products()) p.operand = room(narrow<S> ? p.slots * batch : call.rows, call.hidden);
  }
  p.packed = room(1, kernels.packed_size(call.hidden, call.heads, cell.gates));
  const Tensor zeros = rnnkern::zeros(call.u, {zeros_size(call.hidden)}, wide);
  p.zeros = write<T>(zeros);
  Tensor dbias;
  if (needs_bias) {
    dbias = rnnkern::zeros(call.u, {threads * 2 * columns}, wide);
    p.dbias = write<T>(dbias);
  }
  run(kernels.backward[call.place], p, threads);

  for (const Tensor& rows : dparams) outputs.push_back(sum(rows, 0));
  if (needs_bias) outputs[2] = sum(part(shaped(dbias, {threads, 2 * columns}), 1, columns, columns), 0);
  for (size_t i = 1; i < outputs.size(); ++i) outputs[i] = narrowed<S>(call, outputs[i]);
  return outputs;
}

}  // namespace

std::string recurrence_cells() {
  std::string text = "{";
  for (const CellInfo& cell : cell_list) {
    text += std::string(text.size() > 1 ? ", " : "") + '"' + cell.name +
            "\": {\"gates\": " + std::to_string(cell.gates) + ", \"states\": " + std::to_string(cell.states) +
            ", \"params\": " + std::to_string(cell.params) + ", \"saved\": " + std::to_string(cell.saved) +
            ", \"first_gates\": " + std::to_string(cell.first_gates) +
            ", \"joint\": " + (cell.joint ? "true" : "false") + "}";
  }
  return text + "}";
}

Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, Tensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates) {
  Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse);
  count_kernel("forward", call);
  return by_storage(u, [&](auto zero) {
    widen<decltype(zero)>(call);
    return forward<decltype(zero)>(call, training, save_gates);
  });
}

Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias) {
  Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse);
  const Tensor h0 = call.state[0];
  count_kernel("backward", call);
  return by_storage(u, [&](auto zero) {
    widen<decltype(zero)>(call);
    return backward<decltype(zero)>(call, h0, grad_h, grad_state, grad_scale, h, saved, needs_R, needs_bias);
  });
}

}  // namespace rnnkern
