// The arguments of the CPU and CUDA drivers of the recurrence, forward and backward, with the checks that memory safety
// needs.
#pragma once

#include "common/row_layout.h"
#include "common/tensor.h"
#include "recurrence/cells.h"
#include "recurrence/problem.h"

namespace rnnkern {

// Zoneout rates, one for each state tensor; nullopt means zeros.
using Rates = std::optional<std::vector<double>>;

// Calls f(S()), where S is the storage type of `dtype`.
template <class F>
auto by_storage(ScalarType dtype, F f) {
#define RNNKERN_CASE(type, name) \
  if (dtype == ScalarType::name) return f(device::type());
  RNNKERN_NARROW_TYPES(RNNKERN_CASE)
#undef RNNKERN_CASE
  if (dtype == ScalarType::Double) return f(double());
  STD_TORCH_CHECK(dtype == ScalarType::Float, "recurrence: no kernel takes this dtype");
  return f(float());
}

template <class S>
constexpr ScalarType arithmetic = sizeof(Arithmetic<S>) == 8 ? ScalarType::Double : ScalarType::Float;

// Whether all steps of u (T, B, G*H) share one (B, G*H) of memory.
inline bool repeats(const Tensor& u) {
  return u.dim() == 3 && u.size(0) > 1 && u.stride(0) == 0 && u.stride(2) == 1 && u.stride(1) == u.size(2);
}

// The arguments that forward and backward share, checked and, except `u`, contiguous. `vector_bytes` is the width of
// the SIMD level in use, or 0 on a CUDA device. Of a u (1, B, G*H) that all steps read, `of_all_steps` is a tensor
// (T, B, columns).
struct Call {
  KnownCell known;
  CellInfo cell;
  Tensor u, R;  // u is the input x if W is given; drivers that read u make it contiguous
  Tensors state, params;
  OptionalTensor bias, reset, W, bias_ih, seed, keep;
  ScalarType dtype;  // dtype and device of u, read once because each query costs time in a small call
  Device device;
  RowLayout layout;
  Steps steps;     // from `layout`
  bool u_repeats;  // all steps read the same u
  int parts = 0;   // the bfloat16 parts into which products in tiles split float32, or 0
  Noise noise{};
  int64_t hidden, width, heads, rows;  // width: columns of h, equal to H unless h is projected

  Call(const std::string& name, const Tensor& u_, const Tensor& R_, const Tensors& state_, const OptionalTensor& bias_,
       const Tensors& params_, const OptionalTensor& batch_sizes, const OptionalTensor& reset_, bool reverse,
       const OptionalTensor& W_ = {}, const OptionalTensor& bias_ih_ = {}, int vector_bytes = 0,
       const OptionalTensor& of_all_steps = {})
      : known(known_cell(name, vector_bytes)),
        cell(known.info),
        u(u_),
        R(R_),
        dtype(u.scalar_type()),
        device(u.device()) {
    STD_TORCH_CHECK(known.cell_id >= 0, "recurrence: the cell `", name,
                    "` has no kernel; if rnnkern.cell made it, define it in this process and call its compile()");
    STD_TORCH_CHECK(state_.size() == size_t(cell.states) && params_.size() == size_t(cell.tensors()),
                    "recurrence: wrong number of tensors in `state` or `params`");
    // Modules pass (1, B, H): creating a view would take as long as a small step.
    const int64_t rank = state_[0].dim();
    STD_TORCH_CHECK(rank == 2 || (rank == 3 && state_[0].size(0) == 1), "recurrence: `state[0]` must be (B, H)");
    STD_TORCH_CHECK(!cell.projected || params_[0].dim() == 2, "recurrence: `params[0]` must be (P, H)");
    width = state_[0].size(rank - 1);
    hidden = cell.projected ? params_[0].size(1) : width;
    const int64_t columns = cell.gates * hidden, recurrent = cell.recurrent * hidden;
    heads = R_.dim() == 3 ? R_.size(0) : 1;
    const int64_t inputs = u.size(u.dim() - 1);
    STD_TORCH_CHECK(hidden > 0 && width > 0 && (W_ || inputs == columns), "recurrence: `u` must have G*H = ", columns,
                    " columns");
    if (W_) W = sized("weight_ih", *W_, columns * inputs);
    if (bias_ih_) bias_ih = sized("bias_ih", *bias_ih_, columns);
    STD_TORCH_CHECK(heads > 0 && hidden % heads == 0 && !((cell.projected || cell.normalised) && heads > 1),
                    "recurrence: `R` does not fit the other arguments");
    R = sized("R", R_, recurrent * (width / heads));
    const int64_t batch = state_[0].size(rank - 2);
    for (const Tensor& s : state_) state.push_back(sized("state", s, batch * (state.empty() ? width : hidden)));
    for (const Tensor& x : params_) {
      const int rows = cell.param_rows[params.size()];
      params.push_back(sized("params", x, cell.projected ? width * hidden : rows * hidden));
    }
    if (bias_) bias = sized("bias", *bias_, recurrent);
    layout = RowLayout("recurrence", "u", of_all_steps.value_or(u), batch, batch_sizes);
    STD_TORCH_CHECK(!of_all_steps || u.size(1) == batch, "recurrence: `u` must have B = ", batch, " rows, got ",
                    u.size(1));
    u_repeats = !W && (of_all_steps || repeats(u));
    steps = {layout.steps, batch, layout.offsets, reverse};
    rows = layout.rows;
    if (reset_) reset = sized("reset", *reset_, steps.count * batch, ScalarType::Bool);
  }

  static void check_dtype(const char* name, const Tensor& x, ScalarType wanted) {
    STD_TORCH_CHECK(x.scalar_type() == wanted, "recurrence: `", name, "` is of another dtype than the call needs");
  }

  // Returns x contiguous, after checking its dtype (that of u unless another is given), device and size.
  Tensor sized(const char* name, const Tensor& x, int64_t elements, std::optional<ScalarType> dtype = {}) const {
    check_dtype(name, x, dtype.value_or(this->dtype));
    STD_TORCH_CHECK(x.device() == device, "recurrence: `", name, "` is on another device than `u`");
    STD_TORCH_CHECK(x.numel() == elements, "recurrence: `", name, "` must have ", elements, " elements, got ",
                    x.numel());
    return dense(x);
  }

  void set_noise(const Rates& zoneout, double dropout, const OptionalTensor& seed_) {
    if (seed_) seed = sized("seed", *seed_, 1, ScalarType::Long);
    auto rate = [](const char* name, double given) {
      STD_TORCH_CHECK(0 <= given && given < 1, "recurrence: `", name, "` must be in [0, 1), got ", given);
      return threshold(given) > 0 ? given : 0;  // smaller rates are 0 in float32
    };
    const double dropped = rate("dropout", dropout);
    noise = {{}, seed ? dropped : 0, seed ? read<int64_t>(*seed) : nullptr};
    STD_TORCH_CHECK(!zoneout || zoneout->empty() || zoneout->size() == size_t(cell.states),
                    "recurrence: `zoneout` must have a rate for each of the ", cell.states,
                    " tensors of the state, got ", zoneout ? zoneout->size() : 0);
    for (size_t s = 0; zoneout && s < zoneout->size(); ++s) noise.zoneout[s] = rate("zoneout", (*zoneout)[s]);
  }

  void set_parts(int64_t given) {
    STD_TORCH_CHECK(0 <= given && given <= 2, "recurrence: `bfloat16_parts` must be 0, 1 or 2, got ", given);
    parts = int(given);
  }

  void set_keep(const OptionalTensor& keep_) {
    if (!keep_) return;
    for (const double rate : noise.zoneout) STD_TORCH_CHECK(rate == 0, "recurrence: `keep` excludes `zoneout`");
    keep = sized("keep", *keep_, steps.count * (keep_->dim() == 2 ? steps.batch : 1));
  }

  // Whether the backward needs h before it was mixed with the old one by zoneout's expectation or `keep`, because a
  // cell that saves nothing cannot recover it from the output.
  bool keeps_candidates() const { return (keep || (!seed && noise.zoneout[0] > 0)) && cell.saved == 0; }

  // Whether the backward reads u, given `saved`. If not, u may be an expanded tensor without memory of its own.
  bool backward_reads_u(const Tensors& saved) const {
    return W || (cell.saved > 0 && saved.size() == size_t(cell.states - 1));
  }

  // The shape of a tensor (rows, columns) as the caller sees it.
  std::vector<int64_t> sizes_like_u(int64_t columns) const {
    if (layout.packed()) return {rows, columns};
    return {steps.count, steps.batch, columns};
  }
  // An uninitialized tensor of that shape, with the dtype of u unless another is given.
  Tensor rows_like_u(int64_t columns, std::optional<ScalarType> dtype = {}) const {
    return empty(u, sizes_like_u(columns), dtype);
  }

  template <class T>
  Keep<T> weights_of_old() const {
    if (!keep) return {};
    const bool per_sequence = keep->dim() == 2;
    return {read<T>(*keep), per_sequence ? steps.batch : 1, per_sequence};
  }

  template <class T>
  Weights<T> weights() const {
    auto values = [](const OptionalTensor& x) { return x ? read<T>(*x) : nullptr; };
    const int64_t d = hidden / heads;
    Weights<T> w{hidden, width, {read<void>(R), values(bias), cell.recurrent, heads, d, width / heads}, {}, {}, {}};
    if (W) w.W = {read<void>(*W), values(bias_ih), cell.gates, 1, hidden, W->numel() / (cell.gates * hidden)};
    if (cell.projected) {
      w.W_hr = {read<void>(params[0]), nullptr, 1, 1, width, hidden};
    } else {
      for (size_t i = 0; i < params.size(); ++i) w.params[i] = read<T>(params[i]);
    }
    return w;
  }
};

}  // namespace rnnkern
