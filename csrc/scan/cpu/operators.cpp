// linear_scan and moment_filter on a CPU: the checks needed for memory safety, allocation, and the number of threads.
#include <cstring>
#include <vector>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "scan/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 32768;  // reals per thread

constexpr const char* filter_dtypes = "moment_filter: `u` must be float32, float64, bfloat16 or float16";

// The operator's name, and the names of the arguments that have its rows and its state.
struct Names {
  const char *op, *rows, *state;
};

// The checks that both operators need, the sizes for the kernels, and the tensors that these sizes point into.
struct Rows {
  Names names;
  OptionalTensor reset;
  std::vector<int64_t> state;  // (B, C)
  RowLayout layout;
  ScanSizes sizes;

  // `x` is any tensor with the sizes of the rows; `initial` is an initial state, which has the same B.
  Rows(Names names_, const Tensor& x, const OptionalTensor& initial, const OptionalTensor& batch_sizes,
       const OptionalTensor& reset_, bool reverse, int64_t reals = 1)
      : names(names_), reset(reset_) {
    require(initial || !batch_sizes, names.state, "must be there where `batch_sizes` is");
    layout = RowLayout(names.op, names.rows, x, initial ? initial->size(0) : x.size(1), batch_sizes);
    const int64_t channels = x.size(x.dim() - 1), steps = layout.steps, batch = layout.batch;
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch), "reset",
            "must be (T, B) bool");
    if (reset) reset = dense(*reset);
    state = {batch, channels};
    const bool apart = batch_sizes || reset;
    sizes = {.steps = steps,
             .groups = apart ? batch : 1,
             .width = reals * channels * (apart ? 1 : batch),
             .offsets = layout.offsets,
             .lengths = layout.lengths,
             .reset = read<bool>(reset),
             .complex = reals == 2,
             .per_step = false,
             .reverse = reverse};
  }
  Rows(const Rows&) = delete;

  void require(bool holds, const char* argument, const char* must) const {
    STD_TORCH_CHECK(holds, names.op, ": `", argument, "` ", must);
  }

  // Checks optional arguments and makes them contiguous.
  OptionalTensor like_state(const OptionalTensor& given, const char* argument, ScalarType dtype) const {
    if (!given) return given;
    require(given->sizes().equals(state) && given->scalar_type() == dtype, argument,
            "must be (B, C), of the dtype that states have");
    return dense(*given);
  }
  OptionalTensor like_rows(const OptionalTensor& given, const char* argument, const Tensor& x) const {
    if (!given) return given;
    require(given->numel() == x.numel() && given->scalar_type() == x.scalar_type(), argument,
            "must be of the sizes and the dtype of the rows");
    return dense(*given);
  }
};

template <class Problem>
void run(void (*kernel)(const Problem&, ThreadContext), const Problem& problem, int64_t reals) {
  in_team(at_most_all(1 + reals / worth_sharing), problem, kernel);
}

void begin_with(const Tensor& to, const OptionalTensor& from) {
  if (from)
    copy(to, *from);
  else
    fill_zero(to);
}

// ---- linear_scan

bool is_double(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double || x.scalar_type() == ScalarType::ComplexDouble;
}

bool is_complex(const Tensor& x) {
  return x.scalar_type() == ScalarType::ComplexFloat || x.scalar_type() == ScalarType::ComplexDouble;
}

int64_t reals_of_one(const Tensor& x) { return is_complex(x) ? 2 : 1; }

int64_t reals_of(const Tensor& x) { return x.numel() * reals_of_one(x); }

// Calls f(double()) or f(float()), for the type of the reals.
template <class F>
auto by_reals(const Tensor& x, F f) {
  if (is_double(x)) return f(double());
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float || is_complex(x),
                  "linear_scan: `x` must be float32, float64, complex64 or complex128");
  return f(float());
}

void count_scan(const char* direction, const Tensor& x) {
  const char* const real = is_double(x) ? "float64" : "float32";
  count_kernel("linear_scan/cpu", direction, !is_complex(x) ? real : is_double(x) ? "complex128" : "complex64");
}

// The tensors of a call, contiguous, with matching dtypes and sizes. `x` is any tensor with the sizes of the input.
struct ScanCall : Rows {
  OptionalTensor h0;
  Tensor a;

  ScanCall(const Tensor& a_, const Tensor& x, const OptionalTensor& h0_, const OptionalTensor& batch_sizes,
           const OptionalTensor& reset_, bool reverse)
      : Rows({"linear_scan", "x", "h0"}, x, h0_, batch_sizes, reset_, reverse, reals_of_one(x)),
        h0(like_state(h0_, "h0", x.scalar_type())),
        a(a_) {
    const bool per_step = a.dim() != 1;
    require(a.scalar_type() == x.scalar_type() && (per_step ? a.sizes().equals(x.sizes()) : a.size(0) == state[1]), "a",
            "must be (C,) or of the sizes of `x`, of its dtype");
    sizes.per_step = per_step;
    a = dense(a);
    if (!per_step && sizes.groups == 1 && state[0] > 1) a = repeated(a, state);
  }

  static Tensor repeated(const Tensor& one, const std::vector<int64_t>& sizes) {
    const Tensor all = empty(one, sizes);
    const int64_t bytes = one.numel() * int64_t(one.element_size());
    for (int64_t b = 0; b < sizes[0]; ++b) std::memcpy(write<char>(all) + b * bytes, read<char>(one), bytes);
    return all;
  }
};

// ---- moment_filter

// The tensors of a call, contiguous, with matching sizes.
struct FilterCall : Rows {
  ScalarType wide;  // the type of the arithmetic, and the dtype of states
  Tensor u;         // in dtype `wide`
  OptionalTensor v0, q0;
  bool squares;

  FilterCall(const Tensor& u_, const OptionalTensor& v0_, const OptionalTensor& q0_, const OptionalTensor& batch_sizes,
             const OptionalTensor& reset_, bool reverse, bool squares_)
      : Rows({"moment_filter", "u", "v0"}, u_, v0_, batch_sizes, reset_, reverse),
        wide(wide_of(u_.scalar_type())),
        u(widened(u_)),
        v0(like_state(v0_, "v0", wide)),
        q0(like_state(q0_, "q0", wide)),
        squares(squares_) {}

  static ScalarType wide_of(ScalarType dtype) {
    if (dtype == ScalarType::Double || dtype == ScalarType::Float) return dtype;
    STD_TORCH_CHECK(dtype == ScalarType::BFloat16 || dtype == ScalarType::Half, filter_dtypes);
    return ScalarType::Float;
  }
  Tensor widened(const Tensor& x) const {
    if (x.scalar_type() == wide) return dense(x);
    const Tensor made = reusable_like(x, wide);
    copy(made, x);
    return made;
  }
  // Rounds a result to the dtype of the input; returns x itself if it has that dtype.
  static Tensor rounded(const Tensor& x, ScalarType dtype) {
    if (x.scalar_type() == dtype) return x;
    const Tensor made = empty_of_sizes(x, x, dtype);
    copy(made, x);
    return made;
  }

  // `rows` and the states, or their gradients.
  Tensors results(const Tensor& rows) const {
    Tensors made = {rows, empty(u, state, wide)};
    if (squares) made.push_back(empty(u, state, wide));
    return made;
  }
  void fill_empty(const Tensors& results, const OptionalTensor& v, const OptionalTensor& q) const {
    begin_with(results[1], v);
    if (squares) begin_with(results[2], q);
  }

  std::vector<int64_t> sizes_of_kept(int64_t every) const {
    const int64_t pieces = (sizes.steps + every - 1) / every;
    return {pieces > 1 ? pieces - 1 : 0, 2, state[0], state[1]};
  }

  template <class T>
  MomentRule<T> rule(double mu, double s, std::optional<double> beta, double eps, int64_t every) const {
    require(0 <= every && every <= longest_piece && every % few_steps == 0, "every",
            "must be a number of steps that the kernels have room for");
    return {T(mu), T(s), T(beta.value_or(0)), T(eps), squares, every ? every : longest_piece};
  }
};

// Returns [if `sequence`: h, the final state (B, C)]. `a` is (C,) or has the sizes of `x`. `h0` may be missing if `x`
// is (T, B, C), and is then zero.
Tensors linear_scan_cpu(Tensor a, Tensor x, OptionalTensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                        bool reverse, bool sequence) {
  const ScanCall call(a, x, h0, batch_sizes, reset, reverse);
  x = dense(x);
  return by_reals(x, [&](auto zero) {
    using T = decltype(zero);
    Tensors results;
    if (sequence) results.push_back(reusable_like(x));
    results.push_back(empty(x, call.state));
    if (!x.numel()) {
      begin_with(results.back(), call.h0);
      return results;
    }
    count_scan("forward", x);
    const ScanForward<T> problem{.sizes = call.sizes,
                                 .a = read<T>(call.a),
                                 .x = read<T>(x),
                                 .h0 = read<T>(call.h0),
                                 .h = sequence ? write<T>(results[0]) : nullptr,
                                 .last = write<T>(results.back())};
    run(kernels_in_use<ScanKernels<T>>().forward, problem, reals_of(x));
    return results;
  });
}

// Returns [dx, dh0, if `needs_a`: da]; `h` is the forward's, and missing gradients are zero.
Tensors linear_scan_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor a, OptionalTensor h0, Tensor h,
                                 OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool needs_a) {
  const ScanCall call(a, h, h0, batch_sizes, reset, reverse);
  h = dense(h);
  grad_h = call.like_rows(grad_h, "grad_h", h);
  grad_last = call.like_state(grad_last, "grad_last", h.scalar_type());
  return by_reals(h, [&](auto zero) {
    using T = decltype(zero);
    const bool per_step = call.sizes.per_step;
    Tensors results = {reusable_like(h), empty(h, call.state)};
    if (needs_a) results.push_back(per_step ? reusable_like(h) : empty_of_sizes(a, a));
    if (!h.numel()) {
      begin_with(results[1], grad_last);
      if (needs_a) fill_zero(results[2]);
      return results;
    }
    count_scan("backward", h);
    OptionalTensor grad_a;  // of a constant a: per sequence
    if (needs_a) grad_a = per_step ? results[2] : empty(h, call.state);
    if (needs_a && !per_step) fill_zero(*grad_a);
    const ScanBackward<T> problem{.sizes = call.sizes,
                                  .grad_h = read<T>(grad_h),
                                  .grad_last = read<T>(grad_last),
                                  .a = read<T>(call.a),
                                  .h0 = read<T>(call.h0),
                                  .h = read<T>(h),
                                  .grad_x = write<T>(results[0]),
                                  .grad_h0 = write<T>(results[1]),
                                  .grad_a = write<T>(grad_a)};
    run(kernels_in_use<ScanKernels<T>>().backward, problem, reals_of(h));
    if (needs_a && !per_step)
      sum_rows<double>(read<T>(*grad_a), call.state[0], reals_of(results[2]), write<T>(results[2]));
    return results;
  });
}

// Returns [y, v (B, C), with `beta`: q (B, C), if `every`: the saved states (pieces - 1, 2, B, C)]. States are float32
// if `u` has 16 bits. Missing states are zero; with `batch_sizes`, `v0` is required.
Tensors moment_filter_cpu(Tensor u, OptionalTensor v0, OptionalTensor q0, OptionalTensor batch_sizes,
                          OptionalTensor reset, bool reverse, double mu, double s, std::optional<double> beta,
                          double eps, int64_t every) {
  const FilterCall call(u, v0, q0, batch_sizes, reset, reverse, beta.has_value());
  return by_float_or_double(call.u, filter_dtypes, [&](auto zero) {
    using T = decltype(zero);
    const MomentRule<T> rule = call.rule<T>(mu, s, beta, eps, every);
    const Tensor y = reusable_like(call.u);
    Tensors results = call.results(y);
    const bool keeps = call.squares && every;
    if (keeps) results.push_back(cached_empty(call.u, call.sizes_of_kept(every), call.wide));
    if (!u.numel()) {
      call.fill_empty(results, call.v0, call.q0);
    } else {
      count_kernel("moment_filter/cpu", "forward", call.u);
      const MomentsForward<T> problem{.sizes = call.sizes,
                                      .rule = rule,
                                      .u = read<T>(call.u),
                                      .v0 = read<T>(call.v0),
                                      .q0 = read<T>(call.q0),
                                      .y = write<T>(y),
                                      .v = write<T>(results[1]),
                                      .q = call.squares ? write<T>(results[2]) : nullptr,
                                      .kept = keeps ? write<T>(results[3]) : nullptr};
      run(kernels_in_use<ScanKernels<T>>().moments_forward, problem, u.numel());
    }
    results[0] = call.rounded(y, u.scalar_type());
    return results;
  });
}

// Returns [du, dv0, with `beta`: dq0]; missing gradients are zero. Without `beta`, `u` may be any tensor with its sizes
// and dtype.
Tensors moment_filter_backward_cpu(OptionalTensor grad_y, OptionalTensor grad_v, OptionalTensor grad_q, Tensor u,
                                   OptionalTensor v0, OptionalTensor q0, OptionalTensor kept,
                                   OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, double mu, double s,
                                   std::optional<double> beta, double eps, int64_t every) {
  const FilterCall call(u, v0, q0, batch_sizes, reset, reverse, beta.has_value());
  grad_y = call.like_rows(grad_y, "grad_y", u);
  if (grad_y) grad_y = call.widened(*grad_y);
  grad_v = call.like_state(grad_v, "grad_v", call.wide);
  grad_q = call.like_state(grad_q, "grad_q", call.wide);
  return by_float_or_double(call.u, filter_dtypes, [&](auto zero) {
    using T = decltype(zero);
    const MomentRule<T> rule = call.rule<T>(mu, s, beta, eps, every);
    if (call.squares) {
      int64_t numbers = 1;
      for (const int64_t size : call.sizes_of_kept(rule.every)) numbers *= size;
      call.require(kept && kept->numel() == numbers && kept->scalar_type() == call.wide, "kept",
                   "must be what the forward kept");
      kept = dense(*kept);
    }
    const Tensor grad_u = reusable_like(call.u);
    Tensors results = call.results(grad_u);
    if (!u.numel()) {
      call.fill_empty(results, grad_v, grad_q);
    } else {
      count_kernel("moment_filter/cpu", "backward", call.u);
      const MomentsBackward<T> problem{.sizes = call.sizes,
                                       .rule = rule,
                                       .grad_y = read<T>(grad_y),
                                       .grad_v = read<T>(grad_v),
                                       .grad_q = read<T>(grad_q),
                                       .u = read<T>(call.u),
                                       .v0 = read<T>(call.v0),
                                       .q0 = read<T>(call.q0),
                                       .kept = call.squares ? read<T>(*kept) : nullptr,
                                       .grad_u = write<T>(grad_u),
                                       .grad_v0 = write<T>(results[1]),
                                       .grad_q0 = call.squares ? write<T>(results[2]) : nullptr};
      run(kernels_in_use<ScanKernels<T>>().moments_backward, problem, u.numel());
    }
    results[0] = call.rounded(grad_u, u.scalar_type());
    return results;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("linear_scan", TORCH_BOX(&linear_scan_cpu));
  m.impl("linear_scan_backward", TORCH_BOX(&linear_scan_backward_cpu));
  m.impl("moment_filter", TORCH_BOX(&moment_filter_cpu));
  m.impl("moment_filter_backward", TORCH_BOX(&moment_filter_backward_cpu));
}

}  // namespace rnnkern
