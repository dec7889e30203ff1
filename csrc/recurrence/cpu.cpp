// The recurrence on a CPU: checks that memory safety needs, allocation, and one team of threads for the whole sequence.
#include <omp.h>
#include <pthread.h>

#include <cstring>
#include <utility>

#include "common/counters.h"
#include "common/reuse.h"
#include "common/simd_level.h"
#include "recurrence/call.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

const Level& level() {
  static const Level plain = level_plain();
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx512_bf16) {
    static const Level avx512_bf16 = level_avx512_bf16();
    return avx512_bf16;
  }
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

// Elements of the weights that every step multiplies by.
int64_t step_weights(const Call& call) { return call.R.numel() + (call.cell.projected ? call.params[0].numel() : 0); }

// Threads share out sequences where there are enough of them, for then they never meet; but where R is larger than a
// core's cache, and few sequences use what was loaded of it, they share out hidden units, and with them R. They do so
// too where a part of dR for each thread would take too much memory.
bool split_hidden(const Call& call, int threads) {
  const int64_t bytes = step_weights(call) * int64_t(call.R.element_size()), batch = call.steps.batch;
  return batch < 4 * threads || call.steps.count == 1 || (bytes > (int64_t(1) << 20) && batch < 64 * threads) ||
         bytes * threads > (int64_t(1) << 28);
}

// Threads do not survive a fork: a child that found its parent's team in libgomp's books would wait for it for ever. So
// the team ends before a fork, and the next region on either side starts one, of PyTorch's operators too. In a process
// that is told to use one thread there is none, or, after a fork without this library, none that could end.
const int at_fork = pthread_atfork(
    [] {
      if (omp_get_max_threads() > 1) omp_pause_resource_all(omp_pause_soft);
    },
    nullptr, nullptr);

// A thread for every 32,768 multiplications of a step: less work costs more to share out than to do. A call of one step
// has to wake the team for it.
int team_size(const Call& call) {
  const int64_t least = call.steps.count == 1 ? 131072 : 32768;
  const int64_t useful = 1 + call.steps.batch * (step_weights(call) + (call.W ? call.W->numel() : 0)) / least;
  const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
  return int(useful < most ? useful : most);
}

// Workspace of a small call: an allocation would be a good part of its time.
constexpr int64_t small_room = 1 << 16;  // bytes
alignas(64) thread_local char small_rooms[small_room];

template <class Kernel, class MeasureRoom, class Problem>
void run(Kernel kernel, MeasureRoom measure_room, Problem& problem, int threads, const Tensor& like) {
  using T = typename Problem::T;
  const int64_t elements = measure_room(problem, threads);
  std::optional<Tensor> room;
  if (elements * int64_t(sizeof(T)) <= small_room) {
    problem.room = reinterpret_cast<T*>(small_rooms);
  } else {
    room = reusable(like, {elements}, sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float);
    problem.room = write<T>(*room);
  }
  if (threads == 1) return kernel(problem, Member{0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  kernel(problem, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

void count_kernel(const char* direction, const Call& call) {
  count("recurrence/cpu", direction, call.cell.name, name(simd_level()));
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
  if (call.W) call.W = widened<S>(*call.W);
  if (call.bias_ih) call.bias_ih = widened<S>(*call.bias_ih);
  for (Tensor& x : call.state) x = widened<S>(x);
  for (Tensor& x : call.params) x = widened<S>(x);
  if (call.bias) call.bias = widened<S>(*call.bias);
}

template <class S>
Tensors forward(const Call& call, bool training, bool save_gates) {
  using T = Arithmetic<S>;
  constexpr ScalarType wide = arithmetic<S>;
  Forward<S> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  (call.W ? p.x : p.u) = read<S>(call.u);
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;
  p.noise = call.noise;

  Tensors outputs{call.rows_like_u(call.width)};
  p.h = write<S>(outputs[0]);
  for (int s = 0; s < call.cell.states; ++s) {
    outputs.push_back(empty_of_sizes(call.u, call.state[s], wide));
    p.state[s] = read<T>(call.state[s]);
    p.final_state[s] = write<T>(outputs.back());
  }
  if (training && call.cell.states > 1) {
    outputs.push_back(reusable(call.u, call.sizes_like_u(call.hidden), wide));
    p.cell_states = write<T>(outputs.back());
  }
  if (training && save_gates && call.cell.saved > 0) {
    outputs.push_back(reusable(call.u, call.sizes_like_u(call.cell.saved * call.hidden), wide));
    p.saved = write<T>(outputs.back());
  }
  if (training && call.keeps_candidates()) {
    outputs.push_back(reusable(call.u, call.sizes_like_u(call.hidden), wide));
    p.candidates = write<T>(outputs.back());
  }
  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  const Kernels<S>& kernels = rnnkern::kernels<S>();
  run(kernels.forward[call.place], kernels.forward_room[call.place], p, threads, call.u);
  for (int s = 0; s < call.cell.states; ++s) outputs[1 + s] = narrowed<S>(call, outputs[1 + s]);
  return outputs;
}

// Which gradients are wanted of those that cost something by themselves.
struct Needs {
  bool x, R, bias, W, bias_ih;
};

// `call` is widened but for h0.
template <class S>
Tensors backward(const Call& call, const Tensor& h0, const OptionalTensor& grad_h, const Tensors& grad_state,
                 const OptionalTensor& grad_scale, const Tensor& h, const Tensors& saved, Needs needs) {
  using T = Arithmetic<S>;
  constexpr ScalarType wide = arithmetic<S>;
  const CellInfo& cell = call.cell;
  const int64_t columns = cell.gates * call.hidden, batch = call.steps.batch;
  Backward<S> p{};
  p.steps = call.steps;
  p.weights = call.weights<T>();
  (call.W ? p.x : p.u) = read<S>(call.u);
  p.reset = call.reset ? read<bool>(*call.reset) : nullptr;
  p.noise = call.noise;

  Tensors kept;  // contiguous forms, alive until the end
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
  if (grad_scale) {
    const bool per_sequence = grad_scale->dim() == 2;
    p.grad_scale = keep_wide("grad_scale", *grad_scale, call.steps.count * (per_sequence ? batch : 1));
    p.scale_step = per_sequence ? batch : 1;
    p.scale_row = per_sequence ? 1 : 0;
  }
  p.h0 = read<S>(h0);
  p.h = keep("h", h, call.rows * call.width);
  const size_t has_cell_states = cell.states > 1, has_candidates = call.keeps_candidates();
  const size_t has_gates = saved.size() - has_cell_states - has_candidates;
  STD_TORCH_CHECK(saved.size() >= has_cell_states + has_candidates && has_gates <= size_t(cell.saved > 0),
                  "recurrence_backward: wrong `saved`");
  p.c0 = has_cell_states ? read<T>(call.state[1]) : nullptr;
  p.cell_states = has_cell_states ? keep_saved(saved[0], call.rows * call.hidden) : nullptr;
  p.saved = has_gates ? keep_saved(saved.back(), call.rows * cell.saved * call.hidden) : nullptr;
  p.candidates = has_candidates ? keep_saved(saved.back(), call.rows * call.hidden) : nullptr;
  p.grad_h = grad_h ? keep("grad_h", *grad_h, call.rows * call.width) : nullptr;
  STD_TORCH_CHECK(grad_state.empty() || grad_state.size() == call.state.size(),
                  "recurrence_backward: wrong `grad_state`");

  const int threads = team_size(call);
  p.split_hidden = split_hidden(call, threads);
  auto weight_gradient = [&](const OptionalTensor& weight, bool needed, T*& gradient) {
    const Tensor made = needed ? empty_of_sizes(*weight, *weight) : empty(call.u, {0}, wide);
    gradient = needed ? write<T>(made) : nullptr;
    return made;
  };
  auto bias_gradient = [&](bool needed, T*& gradient) {
    const Tensor made = empty(call.u, {needed ? columns : 0}, wide);
    gradient = needed ? write<T>(made) : nullptr;
    return made;
  };
  const bool wants_du = !call.W || needs.x;
  Tensors outputs{wants_du ? empty_of_sizes(call.u, call.u) : empty(call.u, {0}),
                  weight_gradient(call.R, needs.R, p.dR)};
  if (wants_du) (call.W ? p.dx : p.du) = write<S>(outputs[0]);
  const Tensor dW = weight_gradient(call.W, call.W && needs.W, p.dW);
  outputs.push_back(bias_gradient(needs.bias || (cell.joint && needs.bias_ih), p.dbias));
  const Tensor dbias_ih = bias_gradient(needs.bias_ih, p.dbias_ih);
  T* const same_as_dbias = cell.joint ? std::exchange(p.dbias_ih, nullptr) : nullptr;
  for (int s = 0; s < cell.states; ++s) {
    p.grad_state[s] = grad_state.empty() ? nullptr : keep_wide("grad_state", grad_state[s], call.state[s].numel());
    outputs.push_back(empty(call.u, {batch, s ? call.hidden : call.width}, wide));
    p.dstate[s] = write<T>(outputs.back());
  }
  Tensors dparams;
  const Tensor dW_hr = weight_gradient(cell.projected ? call.params[0] : OptionalTensor(), cell.projected, p.dW_hr);
  for (int i = 0; i < cell.params && !cell.projected; ++i) {
    dparams.push_back(empty(call.u, {batch, call.hidden}, wide));
    p.dparams[i] = write<T>(dparams.back());
  }
  const Kernels<S>& kernels = rnnkern::kernels<S>();
  run(kernels.backward[call.place], kernels.backward_room[call.place], p, threads, call.u);

  if (same_as_dbias) std::memcpy(same_as_dbias, p.dbias, sizeof(T) * columns);
  for (const Tensor& rows : dparams) outputs.push_back(sum(rows, 0));
  if (cell.projected) outputs.push_back(dW_hr);
  if (call.W) {
    outputs.push_back(dW);
    outputs.push_back(dbias_ih);
  }
  for (size_t i = 1; i < outputs.size(); ++i) outputs[i] = narrowed<S>(call, outputs[i]);
  return outputs;
}

}  // namespace

std::string recurrence_cells() {
  std::string text = "{";
  int place = 0;
  for (const CellInfo& cell : cell_list) {
    text += std::string(text.size() > 1 ? ", " : "") + '"' + cell.name +
            "\": {\"gates\": " + std::to_string(cell.gates) + ", \"states\": " + std::to_string(cell.states) +
            ", \"params\": " + std::to_string(cell.params) + ", \"saved\": " + std::to_string(cell.saved) +
            ", \"first_gates\": " + std::to_string(cell.first_gates) +
            ", \"joint\": " + (cell.joint ? "true" : "false") +
            ", \"cuda\": " + (place++ < cuda_cells ? "true" : "false") + "}";
  }
  return text + "}";
}

Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, OptionalTensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates,
                       OptionalTensor weight_ih, OptionalTensor bias_ih, double zoneout_h, double zoneout_c,
                       double dropout, OptionalTensor seed) {
  Call call(cell, u, R, state, bias, params.value_or(Tensors()), batch_sizes, reset, reverse, weight_ih, bias_ih);
  call.set_noise(zoneout_h, zoneout_c, dropout, seed);
  count_kernel("forward", call);
  return by_storage(u, [&](auto zero) {
    widen<decltype(zero)>(call);
    return forward<decltype(zero)>(call, training, save_gates);
  });
}

Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                bool needs_u, bool needs_weight_ih, bool needs_bias_ih, double zoneout_h,
                                double zoneout_c, double dropout, OptionalTensor seed) {
  Call call(cell, u, R, state, bias, params, batch_sizes, reset, reverse, weight_ih, bias_ih);
  call.set_noise(zoneout_h, zoneout_c, dropout, seed);
  const Tensor h0 = call.state[0];
  count_kernel("backward", call);
  return by_storage(u, [&](auto zero) {
    widen<decltype(zero)>(call);
    return backward<decltype(zero)>(call, h0, grad_h, grad_state, grad_scale, h, saved,
                                    {needs_u, needs_R, needs_bias, needs_weight_ih, needs_bias_ih && bias_ih});
  });
}

}  // namespace rnnkern
