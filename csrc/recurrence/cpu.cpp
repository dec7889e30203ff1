// The recurrence on a CPU: checks that memory safety needs, allocation, and one team of threads for the whole sequence.
#include <omp.h>

#include <memory>

#include "common/counters.h"
#include "common/simd_level.h"
#include "recurrence/cells.h"
#include "recurrence/problem.h"
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

// The arguments that forward and backward share: found sound, contiguous, and measured.
struct Call {
  int place;
  CellInfo cell;
  Tensor u, R;
  Tensors state, params;
  OptionalTensor bias, batch_sizes, reset;
  Tensor offsets;  // kept alive for `steps`
  Steps steps;
  int64_t hidden, heads, rows;
  bool packed;

  Call(const std::string& name, const Tensor& u_, const Tensor& R_, const Tensors& state_, const OptionalTensor& bias_,
       const Tensors& params_, const OptionalTensor& batch_sizes_, const OptionalTensor& reset_, bool reverse)
      : place(find_cell(name)), u(dense(u_)), R(dense(R_)), packed(batch_sizes_.has_value()) {
    STD_TORCH_CHECK(place >= 0, "recurrence: the cell `", name, "` has no kernel");
    cell = cell_list[place];
    STD_TORCH_CHECK(u.dim() == (packed ? 2 : 3), "recurrence: `u` has ", u.dim(), " dimensions");
    STD_TORCH_CHECK(state_.size() == size_t(cell.states) && params_.size() == size_t(cell.params),
                    "recurrence: wrong number of tensors in `state` or `params`");
    STD_TORCH_CHECK(state_[0].dim() == 2, "recurrence: `state[0]` must be (B, H)");
    hidden = state_[0].size(1);
    const int64_t columns = cell.gates * hidden;
    heads = R.dim() == 3 ? R.size(0) : 1;
    STD_TORCH_CHECK(hidden > 0 && u.size(u.dim() - 1) == columns, "recurrence: `u` must have G*H = ", columns,
                    " columns");
    STD_TORCH_CHECK(heads > 0 && hidden % heads == 0 && R.numel() == columns * (hidden / heads),
                    "recurrence: `R` does not fit the other arguments");
    const int64_t batch = state_[0].size(0);
    check_dtype("R", R, u.scalar_type());
    for (const Tensor& s : state_) state.push_back(sized("state", s, batch * hidden));
    for (const Tensor& x : params_) params.push_back(sized("params", x, hidden));
    if (bias_) bias = sized("bias", *bias_, columns);
    steps = {packed ? batch_sizes_->size(0) : u.size(0), batch, nullptr, nullptr, reverse};
    if (packed) {
      check_dtype("batch_sizes", *batch_sizes_, ScalarType::Long);
      STD_TORCH_CHECK(batch_sizes_->dim() == 1, "recurrence: `batch_sizes` must be (T,)");
      batch_sizes = dense(*batch_sizes_);
      offsets = empty_int64(*batch_sizes, steps.count);
      steps.batch_sizes = read<int64_t>(*batch_sizes);
      int64_t sum = 0, before = batch;
      for (int64_t t = 0; t < steps.count; ++t) {
        const int64_t now = steps.batch_sizes[t];
        STD_TORCH_CHECK(0 <= now && now <= before, "recurrence: `batch_sizes` must never grow from B = ", batch,
                        " and not be negative, got ", now, " at ", t);
        write<int64_t>(offsets)[t] = sum;
        sum += before = now;
      }
      steps.offsets = read<int64_t>(offsets);
      STD_TORCH_CHECK(sum == u.size(0), "recurrence: `batch_sizes` must sum to the rows of `u`");
    } else {
      STD_TORCH_CHECK(u.size(1) == batch, "recurrence: `u` and `state` differ in B");
    }
    rows = steps.total();
    if (reset_) reset = sized("reset", *reset_, steps.count * batch, ScalarType::Bool);
  }

  static void check_dtype(const char* name, const Tensor& x, ScalarType wanted) {
    STD_TORCH_CHECK(x.scalar_type() == wanted, "recurrence: `", name, "` is of another dtype than the call needs");
  }

  // Contiguous, of the dtype of u unless another is named.
  Tensor sized(const char* name, const Tensor& x, int64_t elements, std::optional<ScalarType> dtype = {}) const {
    check_dtype(name, x, dtype.value_or(u.scalar_type()));
    STD_TORCH_CHECK(x.numel() == elements, "recurrence: `", name, "` must have ", elements, " elements, got ",
                    x.numel());
    return dense(x);
  }

  // (rows, columns), in the shape that the caller knows.
  Tensor rows_like_u(int64_t columns) const {
    return packed ? empty(u, {rows, columns}) : empty(u, {steps.count, steps.batch, columns});
  }

  template <class T>
  Weights<T> weights() const {
    Weights<T> w{hidden, heads, read<T>(R), bias ? read<T>(*bias) : nullptr, {}};
    for (size_t i = 0; i < params.size(); ++i) w.params[i] = read<T>(params[i]);
    return w;
  }

  // Threads share out sequences where there are enough of them, for then they never meet; but where R is larger than a
  // core's cache, and few sequences use what was loaded of it, they share out hidden units, and with them R. They do so
  // too where a part of dR for each thread would take too much memory.
  bool split_hidden(int threads) const {
    const int64_t bytes = R.numel() * int64_t(R.element_size());
    return steps.batch < 4 * threads || (bytes > (int64_t(1) << 20) && steps.batch < 64 * threads) ||
           bytes * threads > (int64_t(1) << 28);
  }

  // A thread for every 32,768 multiplications of a step: less work costs more to share out than to do.
  int threads() const {
    const int64_t useful = 1 + steps.batch * R.numel() / 32768;
    const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
    return int(useful < most ? useful : most);
  }
};

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
  const int threads = call.threads();
  p.split_hidden = call.split_hidden(threads);
  run(kernels.forward[call.place], p, threads);
  return outputs;
}

template <class T>
Tensors backward(const Call& call, const OptionalTensor& grad_h, const Tensors& grad_state,
                 const OptionalTensor& grad_scale, const Tensor& h, const Tensors& saved, bool needs_R,
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
  const int threads = call.threads();
  p.split_hidden = call.split_hidden(threads);
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

  for (const Tensor& rows : dparams) outputs.push_back(sum_rows(rows));
  if (needs_bias) outputs[2] = sum_rows(part(shaped(dbias, {threads, 2 * columns}), 1, columns, columns));
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
