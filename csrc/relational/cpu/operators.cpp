// similarity on a CPU: the checks needed for memory safety, allocation, and the number of threads.
#include <vector>

#include "cpu/levels.h"
#include "cpu/run.h"
#include "relational/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 16384;  // values of x per thread

constexpr const char* dtypes = "similarity: `x` must be float32 or float64";

void require(bool holds, const char* argument, const char* must) {
  STD_TORCH_CHECK(holds, "similarity: `", argument, "` ", must);
}

// The tensors of a call, contiguous, with matching dtypes and sizes, and the sizes for the kernels.
struct Call {
  Tensor x;
  OptionalTensor y, weight, bias, values;
  std::vector<int64_t> lengths, segments;
  SimilarityRule rule;

  Call(const Tensor& x_, const OptionalTensor& y_, const OptionalTensor& weight_, const OptionalTensor& bias_,
       const OptionalTensor& values_, const OptionalTensor& lengths_, const std::vector<int64_t>& segments_,
       const std::string& norm, double eps, const std::string& mask, double scale, bool packed)
      : x(x_), segments(segments_) {
    require(x.dim() == 3, "x", "must be (B, T, d)");
    const int64_t batch = x.size(0), objects = x.size(1), features = x.size(2);
    x = dense(x);
    y = like(y_, "y", {batch, objects, features});
    require(weight_.has_value() == bias_.has_value(), "weight", "must be there where `bias` is");
    const bool one =
        !weight_ || weight_->dim() != 2;  // for all samples, (d,); otherwise (G, d) for G groups of samples
    const int64_t rows = one ? 1 : weight_->size(0);
    require(rows > 0 && batch % rows == 0, "weight", "must have a number of rows that divides B");
    const auto sizes = one ? std::vector<int64_t>{features} : std::vector<int64_t>{rows, features};
    weight = like(weight_, "weight", sizes);
    bias = like(bias_, "bias", sizes);
    const int64_t width = values_ && values_->dim() == 3 ? values_->size(2) : 0;
    values = like(values_, "values", {batch, objects, width});
    int64_t sum = 0;
    for (const int64_t length : segments) {
      require(length > 0, "segments", "must be positive");
      sum += length;
    }
    require(sum == objects, "segments", "must sum to T");
    require(!packed || mask != "full", "packed", "must be False where `mask` is full");
    read_lengths(lengths_);
    rule = {.batch = batch,
            .objects = objects,
            .features = features,
            .values = width,
            .share = batch / rows,
            .segments = segments.data(),
            .segment_count = int64_t(segments.size()),
            .lengths = lengths_ ? lengths.data() : nullptr,
            .normalizes = norm != "none",
            .correction = norm == "unbiased",
            .eps = eps,
            .scale = scale,
            .mask = mask == "causal"   ? Mask::causal
                    : mask == "strict" ? Mask::strict
                                       : Mask::full,
            .packed = packed};
  }
  Call(const Call&) = delete;

  OptionalTensor like(const OptionalTensor& given, const char* argument, std::vector<int64_t> sizes) const {
    if (!given) return given;
    require(given->sizes().equals(sizes) && given->scalar_type() == x.scalar_type(), argument,
            "must be of the sizes and the dtype that go with `x`");
    return dense(*given);
  }

  // Clamped to [0, T]: values are not checked where they are not readable when the call is made.
  void read_lengths(const OptionalTensor& given) {
    if (!given) return;
    require(given->dim() == 1 && given->size(0) == x.size(0) && given->scalar_type() == ScalarType::Long, "lengths",
            "must be (B,) int64");
    const Tensor all = dense(*given);
    for (int64_t b = 0; b < x.size(0); ++b) {
      const int64_t length = read<int64_t>(all)[b];
      lengths.push_back(length < 0 ? 0 : length > x.size(1) ? x.size(1) : length);
    }
  }

  std::vector<int64_t> sizes_of_pairs() const {
    if (rule.packed) return {rule.batch, rule.size()};
    return {rule.batch, rule.objects, rule.objects};
  }

  template <class Problem>
  void run(KernelOfParts<Problem> kernel, const Problem& problem, int64_t parts) const {
    const int64_t worth = 1 + x.numel() / worth_sharing;
    run_parts(kernel, problem, parts, true, at_most_all(worth < parts ? worth : parts), x);
  }
};

// Returns [R, if `scores`: S, with `values`: R values]. `weight` and `bias` are (G, d), a row for B / G samples in a
// row. `norm` is "unbiased", "biased" or "none".
Tensors similarity_cpu(Tensor x, OptionalTensor y, OptionalTensor weight, OptionalTensor bias, OptionalTensor values,
                       OptionalTensor lengths, std::vector<int64_t> segments, std::string norm, double eps,
                       std::string mask, double scale, bool packed, bool scores) {
  const Call call(x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed);
  return by_float_or_double(x, dtypes, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty(x, call.sizes_of_pairs())};
    if (scores) results.push_back(empty(x, call.sizes_of_pairs()));
    if (values) results.push_back(empty_of_sizes(x, *values));
    if (!x.numel()) return results;
    count_kernel("similarity/cpu", "forward", x);
    const SimilarityForward<T> problem{.rule = call.rule,
                                       .x = read<T>(call.x),
                                       .y = read<T>(call.y),
                                       .weight = read<T>(call.weight),
                                       .bias = read<T>(call.bias),
                                       .values = read<T>(call.values),
                                       .R = write<T>(results[0]),
                                       .scores = scores ? write<T>(results[1]) : nullptr,
                                       .product = values ? write<T>(results.back()) : nullptr};
    call.run(kernels_in_use<SimilarityKernels<T>>().forward, problem, call.rule.batch);
    return results;
  });
}

// Returns [dx, dy, dweight, dbias, dvalues], (0,) for arguments that are missing; missing gradients are zero.
Tensors similarity_backward_cpu(OptionalTensor grad_R, OptionalTensor grad_scores, OptionalTensor grad_product,
                                Tensor x, OptionalTensor y, OptionalTensor weight, OptionalTensor bias,
                                OptionalTensor values, OptionalTensor lengths, Tensor R, std::vector<int64_t> segments,
                                std::string norm, double eps, std::string mask, double scale, bool packed) {
  const Call call(x, y, weight, bias, values, lengths, segments, norm, eps, mask, scale, packed);
  const SimilarityRule& rule = call.rule;
  grad_R = call.like(grad_R, "grad_R", call.sizes_of_pairs());
  grad_scores = call.like(grad_scores, "grad_scores", call.sizes_of_pairs());
  R = *call.like(R, "R", call.sizes_of_pairs());
  require(values || !grad_product, "grad_product", "must be missing where `values` is");
  grad_product = call.like(grad_product, "grad_product", {rule.batch, rule.objects, rule.values});
  return by_float_or_double(x, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const auto made_like = [&](const OptionalTensor& given) {
      return given ? empty_of_sizes(x, *given) : empty(x, {0});
    };
    const Tensors results = {empty_of_sizes(x, x), made_like(y), made_like(weight), made_like(bias), made_like(values)};
    if (!x.numel()) {
      for (const Tensor& result : results) fill_zero(result);
      return results;
    }
    count_kernel("similarity/cpu", "backward", x);
    const int64_t pieces = pieces_of(rule.share), parts = rule.batch / rule.share * pieces, d = rule.features;
    OptionalTensor each;  // the gradients of weight and bias, by piece
    if (weight) each = empty(x, {2, parts, d});
    const SimilarityBackward<T> problem{.rule = rule,
                                        .grad_R = read<T>(grad_R),
                                        .grad_scores = read<T>(grad_scores),
                                        .grad_product = read<T>(grad_product),
                                        .x = read<T>(call.x),
                                        .y = read<T>(call.y),
                                        .weight = read<T>(call.weight),
                                        .bias = read<T>(call.bias),
                                        .values = read<T>(call.values),
                                        .R = read<T>(R),
                                        .grad_x = write<T>(results[0]),
                                        .grad_y = y ? write<T>(results[1]) : nullptr,
                                        .grad_values = values ? write<T>(results[4]) : nullptr,
                                        .grad_weight = each ? write<T>(*each) : nullptr,
                                        .grad_bias = each ? write<T>(*each) + parts * d : nullptr};
    call.run(kernels_in_use<SimilarityKernels<T>>().backward, problem, parts);
    for (int64_t which = 0; each && which < 2; ++which)
      for (int64_t row = 0; row < parts / pieces; ++row)
        sum_rows<double>(read<T>(*each) + (which * parts + row * pieces) * d, pieces, d,
                         write<T>(results[2 + which]) + row * d);
    return results;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("similarity", TORCH_BOX(&similarity_cpu));
  m.impl("similarity_backward", TORCH_BOX(&similarity_backward_cpu));
}

}  // namespace rnnkern
