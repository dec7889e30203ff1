// linear_scan on a CPU: what is checked for the sake of memory, what is allocated, and how many threads take it.
#include <omp.h>

#include <cstring>

#include "common/counters.h"
#include "common/levels.h"
#include "common/reuse.h"
#include "scan/problem.h"
#include "scan/scan.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 32768;  // reals

template <class T>
const ScanKernels<T>& kernels() {
  static const ScanLevel levels[] = {
      scan_level_plain(),
#if defined(__x86_64__)
      scan_level_avx2(),
      scan_level_avx512(),
#endif
  };
  return kernels_in_use<T>(levels);
}

bool is_complex(const Tensor& x) {
  return x.scalar_type() == ScalarType::ComplexFloat || x.scalar_type() == ScalarType::ComplexDouble;
}

// f(double()) or f(float()), what the reals are.
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
  count("linear_scan/cpu", direction, dtype, name(simd_level()));
}

// A call's tensors, dense, of one dtype and of sizes that belong together. `x` is any tensor with its sizes.
struct Call {
  Tensor a;
  OptionalTensor h0, reset;
  std::vector<int64_t> state;  // (B, C)
  std::vector<int64_t> rows, lengths;
  ScanSizes sizes;

  Call(const Tensor& a_, const Tensor& x, const OptionalTensor& h0_, const OptionalTensor& batch_sizes,
       const OptionalTensor& reset_, bool reverse)
      : a(a_), h0(h0_), reset(reset_) {
    const int64_t rank = batch_sizes ? 2 : 3;
    require(x.dim() == rank, "`x` must be (T, B, C), or (rows, C) beside `batch_sizes`");
    require(h0 || !batch_sizes, "`h0` must be there where `batch_sizes` is");
    const int64_t channels = x.size(rank - 1), batch = h0 ? h0->size(0) : x.size(1);
    const int64_t steps = batch_sizes ? batch_sizes->numel() : x.size(0), reals = is_complex(x) ? 2 : 1;
    require(batch_sizes || x.size(1) == batch, "`x` and `h0` differ in B");
    require(!h0 || (h0->dim() == 2 && h0->size(1) == channels && h0->scalar_type() == x.scalar_type()),
            "`h0` must be (B, C), of the dtype of `x`");
    const bool per_step = a.dim() != 1;
    require(a.scalar_type() == x.scalar_type() && (per_step ? same_sizes(a, x) : a.size(0) == channels),
            "`a` must be (C,) or of the sizes of `x`, of its dtype");
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch),
            "`reset` must be (T, B) bool");
    state = {batch, channels};
    const bool apart = batch_sizes || reset;
    sizes.steps = steps;
    sizes.groups = apart ? batch : 1;
    sizes.width = reals * channels * (apart ? 1 : batch);
    if (batch_sizes) read_lengths(*batch_sizes, x.size(0), reals * channels);
    if (h0) h0 = dense(*h0);
    if (reset) reset = dense(*reset);
    a = !per_step && !apart && batch > 1 ? repeated(batch) : dense(a);
    sizes.rows = batch_sizes ? rows.data() : nullptr;
    sizes.lengths = batch_sizes ? lengths.data() : nullptr;
    sizes.reset = reset ? read<bool>(*reset) : nullptr;
    sizes.complex = reals == 2;
    sizes.per_step = per_step;
    sizes.reverse = reverse;
  }
  Call(const Call&) = delete;

  static void require(bool holds, const char* what) { STD_TORCH_CHECK(holds, "linear_scan: ", what); }

  static bool same_sizes(const Tensor& a, const Tensor& b) {
    bool same = a.dim() == b.dim();
    for (int64_t dim = 0; same && dim < a.dim(); ++dim) same = a.size(dim) == b.size(dim);
    return same;
  }

  void read_lengths(const Tensor& batch_sizes, int64_t total, int64_t width) {
    require(batch_sizes.scalar_type() == ScalarType::Long, "`batch_sizes` must be int64");
    const Tensor values = dense(batch_sizes);
    int64_t before = state[0], sum = 0;
    lengths.assign(before, 0);
    for (int64_t t = 0; t < sizes.steps; ++t) {
      const int64_t now = read<int64_t>(values)[t];
      require(0 <= now && now <= before, "`batch_sizes` must never grow, begin with at most B and not be negative");
      rows.push_back(sum * width);
      for (int64_t b = now; b < before; ++b) lengths[b] = t;
      sum += before = now;
    }
    for (int64_t b = 0; b < before; ++b) lengths[b] = sizes.steps;
    require(sum == total, "`batch_sizes` must sum to the rows of `x`");
  }

  Tensor repeated(int64_t batch) const {
    const Tensor one = dense(a), all = empty(a, state);
    const int64_t bytes = sizes.width / batch * int64_t(sizeof(float)) * (is_wide() ? 2 : 1);
    for (int64_t b = 0; b < batch; ++b) std::memcpy(write<char>(all) + b * bytes, read<char>(one), bytes);
    return all;
  }
  bool is_wide() const { return a.scalar_type() == ScalarType::Double || a.scalar_type() == ScalarType::ComplexDouble; }

  int64_t reals_of_state() const { return sizes.groups * sizes.width; }
  // Of the rows of `x`, kept for the next call.
  Tensor rows_like(const Tensor& x) const {
    const auto of_x = x.sizes();
    return reusable(x, {of_x.begin(), of_x.end()}, x.scalar_type());
  }
};

template <class Problem>
void run(void (*kernel)(const Problem&, Member), const Problem& problem, int64_t reals) {
  const int64_t all = omp_in_parallel() ? 1 : get_num_threads(), worth = 1 + reals / worth_sharing;
  const int threads = int(worth < all ? worth : all);
  if (threads == 1) return kernel(problem, Member{0, 1, nullptr});
#pragma omp parallel num_threads(threads)
  kernel(problem, Member{omp_get_thread_num(), omp_get_num_threads(), nullptr});
}

int64_t reals_of(const Tensor& x) { return x.numel() * (is_complex(x) ? 2 : 1); }

template <class T>
const T* read_or_null(const OptionalTensor& x) {
  return x ? read<T>(*x) : nullptr;
}

void begin_with(const Tensor& to, const OptionalTensor& from) {
  if (from)
    copy(to, *from);
  else
    fill_zero(to);
}

}  // namespace

Tensors linear_scan_cpu(Tensor a, Tensor x, OptionalTensor h0, OptionalTensor batch_sizes, OptionalTensor reset,
                        bool reverse, bool sequence) {
  const Call call(a, x, h0, batch_sizes, reset, reverse);
  x = dense(x);
  return by_reals(x, [&](auto zero) {
    using T = decltype(zero);
    Tensors results;
    if (sequence) results.push_back(call.rows_like(x));
    results.push_back(empty(x, call.state));
    if (!x.numel()) {
      begin_with(results.back(), call.h0);
      return results;
    }
    count_kernel("forward", x);
    const ScanForward<T> problem{.sizes = call.sizes,
                                 .a = read<T>(call.a),
                                 .x = read<T>(x),
                                 .h0 = read_or_null<T>(call.h0),
                                 .h = sequence ? write<T>(results[0]) : nullptr,
                                 .last = write<T>(results.back())};
    run(kernels<T>().forward, problem, reals_of(x));
    return results;
  });
}

Tensors linear_scan_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor a, OptionalTensor h0, Tensor h,
                                 OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool needs_a) {
  const Call call(a, h, h0, batch_sizes, reset, reverse);
  h = dense(h);
  for (const OptionalTensor* x : {&grad_h, &grad_last})
    Call::require(!*x || (*x)->scalar_type() == h.scalar_type(), "gradients must be of the dtype of `h`");
  Call::require(!grad_h || grad_h->numel() == h.numel(), "`grad_h` must be of the sizes of `h`");
  Call::require(!grad_last || (grad_last->dim() == 2 && grad_last->numel() == call.state[0] * call.state[1]),
                "`grad_last` must be (B, C)");
  if (grad_h) grad_h = dense(*grad_h);
  if (grad_last) grad_last = dense(*grad_last);
  return by_reals(h, [&](auto zero) {
    using T = decltype(zero);
    const bool per_step = call.sizes.per_step;
    Tensors results = {call.rows_like(h), empty(h, call.state)};
    if (needs_a) results.push_back(per_step ? call.rows_like(h) : empty_of_sizes(a, a));
    if (!h.numel()) {
      begin_with(results[1], grad_last);
      if (needs_a) fill_zero(results[2]);
      return results;
    }
    count_kernel("backward", h);
    OptionalTensor columns;  // what each of a constant a's gives
    if (needs_a && !per_step) fill_zero(*(columns = empty(h, call.state)));
    const ScanBackward<T> problem{.sizes = call.sizes,
                                  .grad_h = read_or_null<T>(grad_h),
                                  .grad_last = read_or_null<T>(grad_last),
                                  .a = read<T>(call.a),
                                  .h0 = read_or_null<T>(call.h0),
                                  .h = read<T>(h),
                                  .grad_x = write<T>(results[0]),
                                  .grad_h0 = write<T>(results[1]),
                                  .grad_a = !needs_a   ? nullptr
                                            : per_step ? write<T>(results[2])
                                                       : write<T>(*columns)};
    run(kernels<T>().backward, problem, reals_of(h));
    if (columns) {  // in order, whoever made them
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
