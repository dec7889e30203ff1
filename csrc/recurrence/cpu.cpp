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

template <class T>
const Kernels<T>& kernels() {
  if constexpr (std::is_same_v<T, float>)
    return level().f32;
  else
    return level().f64;
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

template <class Kernel, class Problem>
void run(Kernel kernel, const Problem& problem, int threads) {
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  kernel(problem, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

void count_kernel(const char* direction, const Call& call) {
  count(std::string("recurrence/cpu/") + direction + "/" + call.cell.name + "/" + name(simd_level()));
}

template <class T>
Tensors forward(const Call& call, bool training, bool save_gates) {
  const Kernels<T>& kernels = rnnkern::kernels<T>();
  Forward<T> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  p.u = read<T>(call.u);
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;
  p.keep_saved = training && save_gates && call.cell.saved > 0;

  Tensors outputs{call.rows_like_u(call.hidden)};
  p.h = write<T>(outputs[0]);
  for (int s = 0; s < call.cell.states; ++s) {
    outputs.push_back(empty(call.u, {call.steps.batch, call.hidden}));
    p.state[s] = read<T>(call.state[s]);
    p.final_state[s] = write<T>(outputs.back());
  }
  if (training && call.cell.states > 1) {
    outputs.push_back(call.rows_like_u(call.hidden));
    p.cell_states = write<T>(outputs.back());
  }
  if (p.keep_saved) {
    outputs.push_back(call.rows_like_u(call.cell.saved * call.hidden));
    p.saved = write<T>(outputs.back());
  }
  const Tensor packed = empty(call.u, {kernels.packed_size(call.hidden, call.heads, call.cell.gates)});
  const Tensor zeros = rnnkern::zeros(call.u, zeros_size(call.hidden));
  p.packed = write<T>(packed);
  p.zeros = write<T>(zeros);
  Tensor operand, one_step;
  if (call.cell.two_products()) {
    operand = empty(call.u, {call.steps.batch, call.hidden});
    p.operand = write<T>(operand);
    if (!p.keep_saved) {
      one_step = empty(call.u, {call.steps.batch, call.cell.saved * call.hidden});
      p.saved = write<T>(one_step);
    }
  }
  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  run(kernels.forward[call.place], p, threads);
  return outputs;
}

template <class T>
Tensors backward(const Call& call, const OptionalTensor& grad_h, const Tensors& grad_state,
                 const OptionalTensor& grad_scale, const Tensor& h, const Tensors& given, bool needs_R,
                 bool needs_bias) {
  const Kernels<T>& kernels = rnnkern::kernels<T>();
  const CellInfo& cell = call.cell;
  const int64_t columns = cell.gates * call.hidden, batch = call.steps.batch;
  Backward<T> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;

  Tensors kept;  // contiguous forms, alive until the end
  auto keep = [&](const char* name, const Tensor& x, int64_t elements) {
    kept.push_back(call.sized(name, x, elements));
    return read<T>(kept.back());
  };
  if (grad_scale) {
    const bool per_sequence = grad_scale->dim() == 2;
    p.grad_scale = keep("grad_scale", *grad_scale, call.steps.count * (per_sequence ? batch : 1));
    p.scale_step = per_sequence ? batch : 1;
    p.scale_row = per_sequence ? 1 : 0;
  }
  p.h = keep("h", h, call.rows * call.hidden);
  const bool has_cell_states = cell.states > 1;
  Tensors saved = given;
  if (cell.saved > 0 && saved.size() == size_t(has_cell_states)) {  // without gates: the forward gives them again
    count_kernel("forward", call);
    saved.push_back(forward<T>(call, true, true).back());
  }
  STD_TORCH_CHECK(saved.size() == size_t(has_cell_states) + (cell.saved > 0), "recurrence_backward: wrong `saved`");
  p.cell_states = has_cell_states ? keep("saved", saved[0], call.rows * call.hidden) : nullptr;
  p.saved = cell.saved ? keep("saved", saved.back(), call.rows * cell.saved * call.hidden) : nullptr;
  p.grad_h = grad_h ? keep("grad_h", *grad_h, call.rows * call.hidden) : nullptr;
  STD_TORCH_CHECK(grad_state.empty() || grad_state.size() == call.state.size(),
                  "recurrence_backward: wrong `grad_state`");

  Tensor du = call.rows_like_u(columns);
  const Tensor dr = cell.joint ? du : call.rows_like_u(columns);
  Tensors outputs{du, needs_R ? rnnkern::empty_like(call.R) : empty(call.R, {0}), empty(call.u, {0})};
  p.du = write<T>(du);
  p.dr = write<T>(dr);
  for (int s = 0; s < cell.states; ++s) {
    p.state[s] = read<T>(call.state[s]);
    p.grad_state[s] = grad_state.empty() ? nullptr : keep("grad_state", grad_state[s], batch * call.hidden);
    outputs.push_back(empty(call.u, {batch, call.hidden}));
    p.dstate[s] = write<T>(outputs.back());
  }
  Tensors dparams;
  for (int i = 0; i < cell.params; ++i) {
    dparams.push_back(empty(call.u, {batch, call.hidden}));
    p.dparams[i] = write<T>(dparams.back());
  }
  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  Tensor parts, operand;
  if (needs_R) {
    const int64_t size = kernels.gradient_size(call.hidden, call.heads, cell.gates);
    parts = empty(call.u, {p.split_hidden ? size : threads * size});
    p.dR_parts = write<T>(parts);
    p.dR = write<T>(outputs[1]);
    if (cell.two_products()) {
      operand = empty(call.u, {call.rows, call.hidden});
      p.operand = write<T>(operand);
    }
  }
  const Tensor packed = empty(call.u, {kernels.packed_size(call.hidden, call.heads, cell.gates)});
  const Tensor zeros = rnnkern::zeros(call.u, zeros_size(call.hidden));
  p.packed = write<T>(packed);
  p.zeros = write<T>(zeros);
  Tensor dbias;
  if (needs_bias) {
    dbias = rnnkern::zeros(call.u, threads * 2 * columns);
    p.dbias = write<T>(dbias);
  }
  run(kernels.backward[call.place], p, threads);

  for (const Tensor& rows : dparams) outputs.push_back(sum(rows, 0));
  if (needs_bias) outputs[2] = sum(part(shaped(dbias, {threads, 2 * columns}), 1, columns, columns), 0);
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
  const Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse);
  count_kernel("forward", call);
  return by_dtype("recurrence", u, [&](auto zero) { return forward<decltype(zero)>(call, training, save_gates); });
}

Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias) {
  const Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse);
  count_kernel("backward", call);
  return by_dtype("recurrence_backward", u, [&](auto zero) {
    return backward<decltype(zero)>(call, grad_h, grad_state, grad_scale, h, saved, needs_R, needs_bias);
  });
}

}  // namespace rnnkern
