// moment_filter on a CPU: the checks needed for memory safety, and allocation.
#include "scan/cpu/call.h"
#include "scan/scan.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "moment_filter: `u` must be float32, float64, bfloat16 or float16";

// The type of the arithmetic, and the dtype of states.
ScalarType wide_of(const Tensor& u) {
  const ScalarType dtype = u.scalar_type();
  if (dtype == ScalarType::Double || dtype == ScalarType::Float) return dtype;
  STD_TORCH_CHECK(dtype == ScalarType::BFloat16 || dtype == ScalarType::Half, dtypes);
  return ScalarType::Float;
}

// The tensors of a call, contiguous, with matching sizes.
struct Call : ScanRows {
  ScalarType wide;
  Tensor u;  // in dtype `wide`
  OptionalTensor v0, q0;
  bool squares;

  Call(const Tensor& u_, const OptionalTensor& v0_, const OptionalTensor& q0_, const OptionalTensor& batch_sizes,
       const OptionalTensor& reset_, bool reverse, bool squares_)
      : ScanRows({"moment_filter", "u", "v0"}, u_, v0_, batch_sizes, reset_, reverse),
        wide(wide_of(u_)),
        u(widened(u_)),
        v0(like_state(v0_, "v0", wide)),
        q0(like_state(q0_, "q0", wide)),
        squares(squares_) {}

  Tensor widened(const Tensor& x) const {
    if (x.scalar_type() == wide) return dense(x);
    const Tensor made = reusable_like(x, wide);
    copy(made, x);
    return made;
  }
  OptionalTensor widened(const OptionalTensor& x) const { return x ? OptionalTensor(widened(*x)) : x; }

  Tensor new_state() const { return empty(u, state, wide); }

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

// Rounds a result to a narrow dtype; returns x itself if it has that dtype.
Tensor rounded(const Tensor& x, ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  const Tensor made = empty_of_sizes(x, x, dtype);
  copy(made, x);
  return made;
}

}  // namespace

Tensors moment_filter_cpu(Tensor u, OptionalTensor v0, OptionalTensor q0, OptionalTensor batch_sizes,
                          OptionalTensor reset, bool reverse, double mu, double s, std::optional<double> beta,
                          double eps, int64_t every) {
  const Call call(u, v0, q0, batch_sizes, reset, reverse, beta.has_value());
  return by_float_or_double(call.u, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const MomentRule<T> rule = call.rule<T>(mu, s, beta, eps, every);
    const Tensor y = reusable_like(call.u);
    Tensors results = {y, call.new_state()};
    if (call.squares) results.push_back(call.new_state());
    const bool keeps = call.squares && every;
    if (keeps) results.push_back(cached_empty(call.u, call.sizes_of_kept(every), call.wide));
    if (!u.numel()) {
      begin_with(results[1], call.v0);
      if (call.squares) begin_with(results[2], call.q0);
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
    results[0] = rounded(y, u.scalar_type());
    return results;
  });
}

Tensors moment_filter_backward_cpu(OptionalTensor grad_y, OptionalTensor grad_v, OptionalTensor grad_q, Tensor u,
                                   OptionalTensor v0, OptionalTensor q0, OptionalTensor kept,
                                   OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, double mu, double s,
                                   std::optional<double> beta, double eps, int64_t every) {
  const Call call(u, v0, q0, batch_sizes, reset, reverse, beta.has_value());
  grad_y = call.widened(call.like_rows(grad_y, "grad_y", u));
  grad_v = call.like_state(grad_v, "grad_v", call.wide);
  grad_q = call.like_state(grad_q, "grad_q", call.wide);
  return by_float_or_double(call.u, dtypes, [&](auto zero) {
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
    Tensors results = {grad_u, call.new_state()};
    if (call.squares) results.push_back(call.new_state());
    if (!u.numel()) {
      begin_with(results[1], grad_v);
      if (call.squares) begin_with(results[2], grad_q);
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
    results[0] = rounded(grad_u, u.scalar_type());
    return results;
  });
}

}  // namespace rnnkern
