// The arguments and results of the CPU and CUDA drivers of the relevancy recurrence, with the checks that memory safety
// needs.
#pragma once

#include <string>

#include "common/row_layout.h"
#include "common/tensor.h"
#include "relevancy/cells.h"
#include "relevancy/problem.h"

namespace rnnkern::relevancy {

constexpr CellInfo cell_list[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_CELL_INFO)};

inline void require(bool holds, const char* what) {
  STD_TORCH_CHECK(holds, "relevancy_recurrence: ", what, " must be as rnnkern.ops.relevancy_recurrence passes it");
}

inline bool is(const Tensor& x, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return x.scalar_type() == dtype && x.sizes().equals({sizes.begin(), sizes.size()});
}

// Returns x contiguous, after checking its sizes and dtype.
inline Tensor checked(const char* what, const Tensor& x, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  require(is(x, sizes, dtype), what);
  return dense(x);
}

// The state that is carried between calls, as in RelevancyState in rnnkern/reference/_relevancy.py.
struct State {
  Tensor s;
  OptionalTensor c;
  Tensor buffer, buffer_scores, buffer_ids, relevant, scores, ids, time;

  Tensors list() const {
    Tensors all{s};
    if (c) all.push_back(*c);
    all.insert(all.end(), {buffer, buffer_scores, buffer_ids, relevant, scores, ids, time});
    return all;
  }
};

// The arguments that all operators have, as they are given.
struct Arguments {
  const std::string& cell;
  const Tensors &weights, &state;
  const OptionalTensors& params;
  const OptionalTensor &batch_sizes, &reset, &scores;
  int64_t buffer_size;
  double mix;
  bool dot;
  const std::string& dtype;
};

// The same, checked; all tensors are contiguous. The values in `time` are not checked.
struct Call {
  int cell_id;
  CellInfo cell{};
  ScalarType dtype;
  double mix;
  Tensor V, W_a, U_a, v;
  OptionalTensor params, reset, given;  // given: scores of the events
  State first;
  RowLayout layout;
  RelevancySizes sizes;

  bool has_c() const { return cell.states == 2; }

  // `like` is an argument that has the rows.
  Call(const Arguments& from, const Tensor& like, const char* argument)
      : cell_id(find_cell(cell_list, from.cell)), dtype(like.scalar_type()), mix(from.mix) {
    require(cell_id >= 0, "`cell`");
    cell = cell_list[cell_id];
    require(dtype == ScalarType::Float || dtype == ScalarType::Double, "the dtype of `u`");
    require(from.buffer_size >= 1, "`buffer_size`");
    const Tensors params_ = from.params.value_or(Tensors());
    require(from.weights.size() == 4 && from.state.size() == size_t(7 + cell.states) &&
                params_.size() == size_t(cell.params),
            "the numbers of `weights`, `state` and `params`");
    const Tensor *const memory = from.state.data() + cell.states, &last_weight = from.weights[3];
    require(from.state[0].dim() == 2 && memory[0].dim() == 3 && memory[3].dim() == 3, "`state`");
    sizes = {.batch = from.state[0].size(0),
             .hidden = memory[0].size(2),
             .state = from.state[0].size(1),
             .heads = last_weight.dim() == 2 ? last_weight.size(0) : 1,
             .buffer_size = from.buffer_size,
             .first_slots = memory[0].size(1),
             .relevant = memory[3].size(1),
             .dot = from.dot};
    set_weights(from.weights, params_);
    require(sizes.first_slots <= sizes.buffer_size, "`state`");
    first = state_of(sizes.first_slots, [&](size_t k, auto shape, ScalarType type) {
      return checked("`state`", from.state[k], shape, type);
    });
    layout = RowLayout("relevancy_recurrence", argument, like, sizes.batch, from.batch_sizes);
    sizes.steps = layout.steps;
    const int64_t all = sizes.first_slots + sizes.steps;
    sizes.slots = sizes.keeps_all() ? all : sizes.buffer_size;
    if (from.reset) reset = checked("`reset`", *from.reset, {sizes.steps, sizes.batch}, ScalarType::Bool);
    if (from.scores) given = checked("`scores`", *from.scores, {sizes.steps, sizes.batch}, dtype);
    sizes.offsets = layout.offsets;
    sizes.lengths = layout.lengths;
    sizes.reset = read<bool>(reset);
  }
  Call(const Call&) = delete;

  // An uninitialized state as the call leaves it.
  State made_state(const Tensor& like) const {
    return state_of(sizes.slots, [&](size_t, auto shape, ScalarType type) { return empty(like, shape, type); });
  }

 private:
  void set_weights(const Tensors& weights, const Tensors& all_params) {
    constexpr const char* what = "`weights` and `params`";
    const int64_t n = sizes.hidden, size = sizes.state, heads = sizes.heads;
    require(n > 0 && (size == n || size == 2 * n) && heads > 0 && n % heads == 0, what);
    V = checked(what, weights[0], {cell.gates * n, size}, dtype);
    W_a = checked(what, weights[1], {n, size}, dtype);
    U_a = checked(what, weights[2], {n, n}, dtype);
    require(is(weights[3], {n}, dtype) || is(weights[3], {heads, n / heads}, dtype), what);
    v = dense(weights[3]);
    if (cell.params) params = checked(what, all_params[0], {n}, dtype);
  }

  // The state with `slots` slots in the buffer whose tensor k, in the order of the list, is make(k, sizes, dtype).
  template <class Make>
  State state_of(int64_t slots, Make make) const {
    constexpr ScalarType id = ScalarType::Long;
    const int64_t n = sizes.hidden, B = sizes.batch, rho = sizes.relevant;
    size_t k = 0;
    const auto next = [&](std::initializer_list<int64_t> shape, ScalarType type) { return make(k++, shape, type); };
    return {next({B, sizes.state}, dtype),
            has_c() ? OptionalTensor(next({B, n}, dtype)) : OptionalTensor(),
            next({B, slots, n}, dtype),
            next({B, slots}, dtype),
            next({B, slots}, id),
            next({B, rho, n}, dtype),
            next({B, rho}, dtype),
            next({B, rho}, id),
            next({B}, id)};
  }
};

// What the forward returns. The driver makes `gates`.
struct ForwardResults {
  Tensor h, s;
  State last;
  OptionalTensor map, ids;                    // (rows, kappa): alpha, averaged over the heads, and its ids
  OptionalTensor alpha, taken, gates, cells;  // for the backward

  ForwardResults(const Call& call, const Tensor& u, bool training, bool maps) : last(call.made_state(u)) {
    const RelevancySizes& sizes = call.sizes;
    const int64_t rows = call.layout.rows, kappa = sizes.kappa();
    h = empty(u, sizes_with(u, 1, {sizes.hidden}));
    s = empty(u, sizes_with(u, 1, {sizes.state}));
    if (maps) map = empty(u, sizes_with(u, 1, {kappa}));
    if (maps) ids = empty(u, sizes_with(u, 1, {kappa}), ScalarType::Long);
    if (training && !sizes.keeps_all()) alpha = empty(u, {rows, sizes.heads * kappa});
    if (training) taken = empty(u, {rows}, ScalarType::Int);
    if (training && call.has_c()) cells = empty(u, {rows, sizes.hidden});
  }

  Tensors list() const {
    Tensors all{h, s};
    for (const Tensor& x : last.list()) all.push_back(x);
    for (const OptionalTensor& x : {map, ids, alpha, taken, gates, cells})
      if (x) all.push_back(*x);
    return all;
  }
};

// The arguments of the backward: `grad_state` is empty or has the gradients of s, (c), buffer and relevant.
struct BackwardCall : Call {
  Tensor h, s, taken;
  OptionalTensor alpha, gates, cells;  // of `saved`
  OptionalTensor grad_h, grad_s;
  Tensors grad_state;

  BackwardCall(const Arguments& from, const Tensor& h_, const Tensor& s_, const OptionalTensor& grad_h_,
               const OptionalTensor& grad_s_, const OptionalTensors& grad_state_, const Tensors& saved)
      : Call(from, h_, "h"), h(dense(h_)) {
    const int64_t n = sizes.hidden, B = sizes.batch, rows = layout.rows;
    require(h.size(-1) == n, "`h` and `s`");
    s = like_h("`h` and `s`", s_, sizes.state);
    if (grad_h_) grad_h = like_h("`grad_h`", *grad_h_, n);
    if (grad_s_) grad_s = like_h("`grad_s`", *grad_s_, sizes.state);
    const size_t at = !sizes.keeps_all();
    require(saved.size() == at + (has_c() ? 3 : 1), "`saved`");
    if (at) alpha = checked("`saved`", saved[0], {rows, sizes.heads * sizes.kappa()}, dtype);
    taken = checked("`saved`", saved[at], {rows}, ScalarType::Int);
    if (has_c()) gates = checked("`saved`", saved[at + 1], {rows, cell.saved * n}, dtype);
    if (has_c()) cells = checked("`saved`", saved[at + 2], {rows, n}, dtype);
    if (!grad_state_ || grad_state_->empty()) return;
    const Tensors& grads = *grad_state_;
    require(grads.size() == size_t(cell.states + 2), "`grad_state`");
    grad_state.push_back(checked("`grad_state`", grads[0], {B, sizes.state}, dtype));
    if (has_c()) grad_state.push_back(checked("`grad_state`", grads[1], {B, n}, dtype));
    grad_state.push_back(checked("`grad_state`", grads[cell.states], {B, sizes.slots, n}, dtype));
    grad_state.push_back(checked("`grad_state`", grads[cell.states + 1], {B, sizes.relevant, n}, dtype));
  }

 private:
  Tensor like_h(const char* what, const Tensor& x, int64_t columns) const {
    require(x.scalar_type() == dtype && x.numel() == layout.rows * columns && x.dim() == h.dim(), what);
    return dense(x);
  }
};

}  // namespace rnnkern::relevancy
