// The arguments of the recurrence with layers of Givens rotations on any device: the checks needed for memory safety,
// and the result tensors.
#pragma once

#include "common/row_layout.h"
#include "common/tensor.h"
#include "orthogonal/givens_sizes.h"

namespace rnnkern {

inline void require_of_givens(bool holds, const char* what) { STD_TORCH_CHECK(holds, "givens_recurrence: ", what); }

// The tensors of a call, contiguous, with matching dtypes and sizes.
struct GivensCall {
  Tensor u, angles, bias, h0;
  OptionalTensor phases, diagonal, reset;
  RowLayout layout;
  GivensSizes sizes;
  GivensSequences sequences{};

  GivensCall(const Tensor& u_, const Tensor& angles_, const OptionalTensor& phases_, const OptionalTensor& diagonal_,
             const Tensor& bias_, const Tensor& h0_, const OptionalTensor& batch_sizes, const OptionalTensor& reset_,
             bool reverse, bool butterfly)
      : u(dense(u_)), angles(dense(angles_)), bias(dense(bias_)), h0(dense(h0_)), reset(reset_) {
    const auto require = require_of_givens;
    require(h0.dim() == 2, "`h0` must be (B, C)");
    layout = RowLayout("givens_recurrence", "u", u, h0.size(0), batch_sizes);
    require(bias.dim() == 1 && angles.dim() == 2 && angles.size(1) == bias.size(0) / 2,
            "`bias` must be (N,) and `angles` (L, N / 2)");
    require(!phases_ == !diagonal_, "`phases` and `diagonal` must both be there or both be missing");
    const int64_t numbers = bias.size(0), parts = phases_ ? 2 : 1, batch = layout.batch;
    require(u.size(u.dim() - 1) == parts * numbers, "`u` must have N columns, or 2 N beside `phases`");
    require(h0.size(1) == parts * numbers, "`h0` must be (B, C) for the C of `u`");
    require(!butterfly || (numbers & (numbers - 1)) == 0, "N must be a power of two");
    for (const Tensor* x : {&angles, &bias, &h0})
      require(x->scalar_type() == u.scalar_type(), "all tensors must be of the dtype of `u`");
    if (phases_) {
      phases = dense(*phases_);
      diagonal = dense(*diagonal_);
      require(phases->dim() == 2 && phases->size(0) == angles.size(0) && phases->size(1) == angles.size(1) &&
                  phases->scalar_type() == u.scalar_type(),
              "`phases` must be like `angles`");
      require(diagonal->dim() == 1 && diagonal->size(0) == numbers && diagonal->scalar_type() == u.scalar_type(),
              "`diagonal` must be like `bias`");
    }
    const int64_t steps = layout.steps;
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch),
            "`reset` must be (T, B) bool");
    if (reset) reset = dense(*reset);
    sizes = {.count = 1,
             .vectors = batch,
             .size = numbers,
             .layers = angles.size(0),
             .columns = false,
             .butterfly = butterfly};
    sequences = {.steps = steps,
                 .batch = batch,
                 .reals = parts * numbers,
                 .rows = layout.offsets,
                 .lengths = layout.lengths,
                 .reset = reset ? read<bool>(*reset) : nullptr,
                 .reverse = reverse};
  }
  GivensCall(const GivensCall&) = delete;

  // Checks the arguments of the backward and makes them contiguous.
  void make_dense(Tensor& h, OptionalTensor& grad_h, OptionalTensor& grad_last) const {
    const auto like = [&](const OptionalTensor& x, const Tensor& wanted) {
      return !x || (x->numel() == wanted.numel() && x->scalar_type() == wanted.scalar_type());
    };
    require_of_givens(like(h, u) && like(grad_h, u) && like(grad_last, h0),
                      "`h` and `grad_h` must be like `u`, `grad_last` like `h0`");
    h = dense(h);
    if (grad_h) grad_h = dense(*grad_h);
    if (grad_last) grad_last = dense(*grad_last);
  }

  int64_t parts() const { return phases ? 2 : 1; }

  // The results; `rows` has the sizes of `u`.
  Tensors results(const Tensor& rows) const { return {rows, empty_of_sizes(h0, h0)}; }
  Tensors gradients(const Tensor& rows) const {
    Tensors found = {rows, empty_of_sizes(angles, angles), empty_of_sizes(bias, bias), empty_of_sizes(h0, h0)};
    if (phases) {
      found.push_back(empty_of_sizes(*phases, *phases));
      found.push_back(empty_of_sizes(*diagonal, *diagonal));
    }
    return found;
  }

  // If u is empty, fills the results, with `state` as the one that has the sizes of h0, and returns true.
  bool is_empty(const Tensors& found, const OptionalTensor& state) const {
    if (u.numel()) return false;
    for (const Tensor& x : found) fill_zero(x);
    if (state) copy(found.size() == 2 ? found[1] : found[3], *state);
    return true;
  }
};

// Calls f(T()) for the dtype of u.
template <class F>
auto by_dtype_of_givens(const Tensor& u, F f) {
  return by_float_or_double(u, "givens_recurrence: `u` must be float32 or float64", f);
}

}  // namespace rnnkern
