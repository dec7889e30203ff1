// linear_scan on a CPU: the checks needed for memory safety, and allocation.
#include <cstring>

#include "scan/cpu/call.h"
#include "scan/scan.h"

namespace rnnkern {
namespace {

bool is_complex(const Tensor& x) {
  return x.scalar_type() == ScalarType::ComplexFloat || x.scalar_type() == ScalarType::ComplexDouble;
}

int64_t reals_of_one(const Tensor& x) { return is_complex(x) ? 2 : 1; }

// Calls f(double()) or f(float()), for the type of the reals.
template <class F>
auto by_reals(const Tensor& x, F f) {
  const ScalarType dtype = x.scalar_type();
  if (dtype == ScalarType::Double || dtype == ScalarType::ComplexDouble) return f(double());
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::ComplexFloat,
                  "linear_scan: `x` must be float32, float64, complex64 or complex128");
  return f(float());
}

void count_kernel(const char* direction, const Tensor& x) {
  const bool wide = x.scalar_type() == ScalarType::Double || x.scalar_type() == ScalarType::ComplexDouble;
  const char* dtype = is_complex(x) ? wide ? "complex128" : "complex64" : wide ? "float64" : "float32";
  rnnkern::count_kernel("linear_scan/cpu", direction, dtype);
}

// The tensors of a call, contiguous, with matching dtypes and sizes. `x` is any tensor with the sizes of the input.
struct Call : ScanRows {
  OptionalTensor h0;
  Tensor a;

  Call(const Tensor& a_, const Tensor& x, const OptionalTensor& h0_, const OptionalTensor& batch_sizes,
       const OptionalTensor& reset_, bool reverse)
      : ScanRows({"linear_scan", "x", "h0"}, x, h0_, batch_sizes, reset_, reverse, reals_of_one(x)),
        h0(like_state(h0_, "h0", x.scalar_type())),
        a(a_) {
    const bool per_step = a.dim() != 1;
    require(a.scalar_type() == x.scalar_type() && (per_step ? same_sizes(a, x) : a.size(0) == state[1]), "a",
            "must be (C,) or of the sizes of `x`, of its dtype");
    sizes.per_step = per_step;
    a = !per_step && sizes.groups == 1 && state[0] > 1 ? repeated(state[0]) : dense(a);
  }

  static bool same_sizes(const Tensor& a, const Tensor& b) {
    bool same = a.dim() == b.dim();
    for (int64_t dim = 0; same && dim < a.dim(); ++dim) same = a.size(dim) == b.size(dim);
    return same;
  }

  Tensor repeated(int64_t batch) const {
    const Tensor one = dense(a), all = empty(a, state);
    const int64_t bytes = sizes.width / batch * int64_t(sizeof(float)) * (is_wide() ? 2 : 1);
    for (int64_t b = 0; b < batch; ++b) std::memcpy(write<char>(all) + b * bytes, read<char>(one), bytes);
    return all;
  }
  bool is_wide() const { return a.scalar_type() == ScalarType::Double || a.scalar_type() == ScalarType::ComplexDouble; }
};

int64_t reals_of(const Tensor& x) { return x.numel() * reals_of_one(x); }

}  // namespace

Tensors linear_scan_cpu(Tensor a, Tensor x, OptionalTensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                        bool reverse, bool sequence) {
  const Call call(a, x, h0, batch_sizes, reset, reverse);
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
    count_kernel("forward", x);
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

Tensors linear_scan_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor a, OptionalTensor h0, Tensor h,
                                 OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool needs_a) {
  const Call call(a, h, h0, batch_sizes, reset, reverse);
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
    count_kernel("backward", h);
    OptionalTensor columns;  // the gradient of a constant a, per sequence
    if (needs_a && !per_step) fill_zero(*(columns = empty(h, call.state)));
    const ScanBackward<T> problem{.sizes = call.sizes,
                                  .grad_h = read<T>(grad_h),
                                  .grad_last = read<T>(grad_last),
                                  .a = read<T>(call.a),
                                  .h0 = read<T>(call.h0),
                                  .h = read<T>(h),
                                  .grad_x = write<T>(results[0]),
                                  .grad_h0 = write<T>(results[1]),
                                  .grad_a = !needs_a   ? nullptr
                                            : per_step ? write<T>(results[2])
                                                       : write<T>(*columns)};
    run(kernels_in_use<ScanKernels<T>>().backward, problem, reals_of(h));
    if (columns) {  // summed in a fixed order
      const int64_t batch = call.state[0], width = call.reals_of_state() / batch;
      const T* const each = read<T>(*columns);
      std::vector<double> sums(width, 0);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t k = 0; k < width; ++k) sums[k] += each[b * width + k];
      for (int64_t k = 0; k < width; ++k) write<T>(results[2])[k] = T(sums[k]);
    }
    return results;
  });
}

}  // namespace rnnkern
