// sab_recurrence on a CPU: the checks needed for memory safety, allocation, and the products over all rows.
#include <cstring>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/cpu/sab_problem.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "sab_recurrence: `u` must be float32 or float64";

constexpr int64_t worth_sharing = 131072;  // multiplications per thread

// The arguments, contiguous and checked, and their sizes.
struct Arguments {
  Tensor u, R, W, w, h, c, memory, time;
  OptionalTensor bias, reset;
  RowLayout layout;
  SabSizes sizes;

  // Earlier calls had `steps` steps.
  Arguments(const Tensor& u_, const Tensor& R_, const OptionalTensor& bias_, const Tensors& attention,
            const Tensors& state, const OptionalTensor& batch_sizes, const OptionalTensor& reset_, int64_t steps,
            int64_t top_k, int64_t every, int64_t truncation)
      : u(dense(u_)), R(dense(R_)) {
    STD_TORCH_CHECK((attention.size() == 1 || attention.size() == 2) && state.size() == 4 && top_k > 0 && every > 0 &&
                        truncation > 0,
                    "sab_recurrence: `attention` must be (w) or (W, w), `state` (h, c, memory, time), and `top_k`, "
                    "`attend_every` and `truncation` positive");
    const bool mlp = attention.size() == 2;
    w = dense(attention.back());
    W = dense(attention[0]);
    h = dense(state[0]);
    c = dense(state[1]);
    memory = dense(state[2]);
    time = dense(state[3]);
    if (bias_) bias = dense(*bias_);
    if (reset_) reset = dense(*reset_);
    STD_TORCH_CHECK(h.dim() == 2 && memory.dim() == 3,
                    "sab_recurrence: `h` or `memory` has another number of dimensions");
    layout = RowLayout("sab_recurrence", "u", u, h.size(0), batch_sizes);
    sizes = {.steps = layout.steps,
             .batch = layout.batch,
             .size = h.size(1),
             .width = mlp ? w.numel() : 0,
             .top_k = top_k,
             .every = every,
             .truncation = truncation,
             .old_slots = memory.size(1),
             .slots = 1 + (steps + layout.steps) / every,
             .offsets = layout.offsets,
             .lengths = layout.lengths,
             .time = read<int64_t>(time),
             .reset = read<bool>(reset)};
    check();
  }
  Arguments(const Arguments&) = delete;

  bool mlp() const { return sizes.width; }
  Tensor Wq() const { return part(W, 1, 0, sizes.size); }
  Tensor Wm() const { return part(W, 1, sizes.size, sizes.size); }

 private:
  void check() const {
    const int64_t n = sizes.size, batch = sizes.batch;
    for (const Tensor* x : {&R, &w, &W, &h, &c, &memory})
      STD_TORCH_CHECK(x->scalar_type() == u.scalar_type(), "sab_recurrence: all must be of the dtype of `u`");
    STD_TORCH_CHECK(!bias || (bias->scalar_type() == u.scalar_type() && bias->numel() == 4 * n),
                    "sab_recurrence: `bias` must be (4*n,)");
    STD_TORCH_CHECK(u.size(-1) == 4 * n && R.numel() == 4 * n * n && c.numel() == batch * n &&
                        memory.numel() == batch * sizes.old_slots * n &&
                        (mlp() ? W.numel() == sizes.width * 2 * n : w.numel() == 2 * n),
                    "sab_recurrence: sizes do not belong together");
    STD_TORCH_CHECK(time.scalar_type() == ScalarType::Long && time.numel() == batch,
                    "sab_recurrence: `time` must be (B,) int64");
    STD_TORCH_CHECK(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == sizes.steps * batch),
                    "sab_recurrence: `reset` must be (T, B) bool");
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t before = sizes.time[b], after = before + sizes.length(b);
      STD_TORCH_CHECK(before >= 0 && before / sizes.every < sizes.old_slots && after / sizes.every < sizes.slots,
                      "sab_recurrence: `time` has more memories than there are slots");
    }
  }
};

// Packs matrices for products, and owns the packed copies.
template <class T>
struct Packer {
  std::vector<Tensor> kept;

  SabPacked<T> operator()(const Tensor& matrix) {
    const Tensor x = dense(matrix);
    const int64_t depth = x.size(0), columns = x.size(1);
    const auto kernels = kernels_in_use<SabKernels<T>>();
    kept.push_back(cached_empty(x, {kernels.packed_size(depth, columns)}, x.scalar_type()));
    T* const panels = write<T>(kept.back());
    kernels.pack(read<T>(x), depth, columns, panels);
    return {panels, depth, columns};
  }
};

// The fields that both directions share, but for the products with R.
template <class T>
void fill(SabCall<T>& call, const Arguments& given, const Tensor& zeros, Packer<T>& packed) {
  static_cast<SabSizes&>(call) = given.sizes;
  call.u = read<T>(given.u);
  call.bias = read<T>(given.bias);
  call.h = read<T>(given.h);
  call.c = read<T>(given.c);
  call.memory = read<T>(given.memory);
  call.w = read<T>(given.w);
  call.zeros = read<T>(zeros);
  if (!given.mlp()) return;
  call.query = packed(transposed(given.Wq(), 0, 1));
  call.key = packed(transposed(given.Wm(), 0, 1));
}

template <class Call>
void run(KernelOfParts<Call> kernel, const Call& call, const Arguments& given, const char* direction) {
  count_kernel("sab_recurrence/cpu", direction, given.mlp() ? "mlp" : "separable");
  const int64_t worth = 1 + given.layout.rows * call.size * 4 * call.size / worth_sharing;
  run_parts(kernel, call, call.batch, true, at_most_all(worth < call.batch ? worth : call.batch), given.u);
}

// Checks that only slots that held a memory were attended to.
void check_attended(const SabSizes& sizes, const int32_t* attended) {
  for (int64_t b = 0; b < sizes.batch; ++b) {
    int64_t before = sizes.time[b];
    for (int64_t t = 0; t < sizes.length(b); ++t, ++before) {
      if (sizes.resets(t, b)) before = 0;
      const int64_t held = 1 + before / sizes.every;
      const int32_t* const slots = attended + (sizes.row(t) + b) * sizes.top_k;
      for (int64_t i = 0; i < (held < sizes.top_k ? held : sizes.top_k); ++i)
        STD_TORCH_CHECK(slots[i] >= 0 && slots[i] < held, "sab_recurrence_backward: `saved` is not the forward's");
    }
  }
}

// h of the step before that of each row.
template <class T>
Tensor former_states(const Arguments& given, const Tensor& out) {
  const SabSizes& sizes = given.sizes;
  const int64_t n = sizes.size, bytes = sizeof(T) * n;
  const Tensor made = cached_empty(given.u, {given.layout.rows, n}, given.u.scalar_type());
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t t = 0; t < sizes.length(b); ++t) {
      T* const to = write<T>(made) + (sizes.row(t) + b) * n;
      if (sizes.resets(t, b))
        std::memset(to, 0, bytes);
      else
        std::memcpy(to, t ? read<T>(out) + (sizes.row(t - 1) + b) * 2 * n : read<T>(given.h) + b * n, bytes);
    }
  }
  return made;
}

template <class T>
Tensors backward(const Arguments& given, const OptionalTensor& grad_out, const Tensors& grad_state, const Tensor& out,
                 const Tensors& saved) {
  const SabSizes& sizes = given.sizes;
  const int64_t n = sizes.size, rows = given.layout.rows, width = sizes.width, batch = sizes.batch;
  const int64_t old = batch * sizes.old_slots;
  const Tensor& like = given.u;
  const auto dtype = like.scalar_type();
  const Tensor du = empty_of_sizes(like, given.u), flat = shaped(du, {rows, 4 * n});
  const Tensor dR = empty_of_sizes(like, given.R), d_bias = empty(like, {given.bias ? 4 * n : 0});
  const Tensor d_w = rnnkern::zeros(like, {batch, given.w.numel()}, dtype), sum_w = empty_of_sizes(like, given.w);
  const Tensor d_h = empty(like, {batch, n}), d_c = empty(like, {batch, n});
  const Tensor d_memory = empty_of_sizes(like, given.memory), zeros = rnnkern::zeros(like, {n}, dtype);
  const Tensor d_query = cached_empty(like, {rows, width}, dtype);
  const Tensor provisional = cached_empty(like, {width ? rows : 0, n}, dtype);
  const Tensor d_key = rnnkern::zeros(like, {width ? rows + old : 0, width}, dtype);
  const Tensor before = former_states<T>(given, out);
  if (rows) product(flat, before, transposed(given.R, 0, 1));
  if (batch) {
    Packer<T> packed;
    SabBackward<T> call{};
    fill(call, given, zeros, packed);
    call.R_back = packed(given.R);
    if (given.mlp()) {
      call.query_back = packed(given.Wq());
      call.key_back = packed(given.Wm());
    }
    call.grad_out = read<T>(grad_out);
    if (!grad_state.empty()) {
      call.grad_h = read<T>(grad_state[0]);
      call.grad_c = read<T>(grad_state[1]);
      call.grad_memory = read<T>(grad_state[2]);
    }
    call.out = read<T>(out);
    call.weights = read<T>(saved[0]);
    call.attended = read<int32_t>(saved[1]);
    call.sums = read<T>(saved[2]);
    call.all_c = read<T>(saved[3]);
    call.du = write<T>(du);
    call.d_h = write<T>(d_h);
    call.d_c = write<T>(d_c);
    call.d_memory = write<T>(d_memory);
    call.d_w = write<T>(d_w);
    call.d_query = write<T>(d_query);
    call.provisional = write<T>(provisional);
    call.d_key = write<T>(d_key);
    call.first_key = rows;
    run(kernels_in_use<SabKernels<T>>().backward, call, given, "backward");
  }
  product(dR, transposed(flat, 0, 1), before);
  if (given.bias) copy(d_bias, sum(flat, 0));
  sum_rows<T>(read<T>(d_w), batch, given.w.numel(), write<T>(sum_w));
  Tensors results = {du, dR, d_bias};
  if (given.mlp()) {
    const Tensor dW = empty_of_sizes(like, given.W), members = cached_empty(like, {rows + old, n}, dtype);
    copy(part(members, 0, 0, rows), part(shaped(out, {rows, 2 * n}), 1, 0, n));
    copy(part(members, 0, rows, old), shaped(given.memory, {old, n}));
    product(part(dW, 1, 0, n), transposed(d_query, 0, 1), provisional);
    product(part(dW, 1, n, n), transposed(d_key, 0, 1), members);
    results.push_back(dW);
  }
  for (const Tensor& x : {sum_w, d_h, d_c, d_memory}) results.push_back(x);
  return results;
}

// `attention` is (w) or (W, w), `state` is (h, c, memory, time). Returns [out, h, c, memory, time, weights, slots, and
// when training: sums (like out without its columns), c of every step].
Tensors sab_recurrence_cpu(Tensor u, Tensor R, OptionalTensor bias, Tensors attention, Tensors state,
                           OptionalTensor batch_sizes, OptionalTensor reset, int64_t steps, int64_t top_k,
                           int64_t attend_every, int64_t truncation, bool training) {
  const Arguments given(u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every, truncation);
  const int64_t n = given.sizes.size, batch = given.sizes.batch;
  return by_float_or_double(given.u, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor& like = given.u;
    Tensors results = {empty(like, sizes_with(like, 1, {2 * n})),
                       empty(like, {batch, n}),
                       empty(like, {batch, n}),
                       empty(like, {batch, given.sizes.slots, n}),
                       empty_int64(like, batch),
                       empty(like, sizes_with(like, 1, {top_k})),
                       empty(like, sizes_with(like, 1, {top_k}), ScalarType::Int)};
    if (training) {
      results.push_back(empty(like, sizes_with(like, 1, {})));
      results.push_back(cached_empty(like, sizes_with(like, 1, {n}), like.scalar_type()));
    }
    if (!batch) return results;
    const Tensor zeros = rnnkern::zeros(like, {n}, like.scalar_type());
    Packer<T> packed;
    SabForward<T> call{};
    fill(call, given, zeros, packed);
    call.R = packed(transposed(given.R, 0, 1));
    call.out = write<T>(results[0]);
    call.last_h = write<T>(results[1]);
    call.last_c = write<T>(results[2]);
    call.last_memory = write<T>(results[3]);
    call.last_time = write<int64_t>(results[4]);
    call.weights = write<T>(results[5]);
    call.attended = write<int32_t>(results[6]);
    call.sums = training ? write<T>(results[7]) : nullptr;
    call.all_c = training ? write<T>(results[8]) : nullptr;
    run(kernels_in_use<SabKernels<T>>().forward, call, given, "forward");
    return results;
  });
}

// Returns [du, dR, dbias, dattention..., dh, dc, dmemory]. `grad_state` has the gradients of h, c and memory, or is
// empty; `saved` is (weights, slots, sums, c).
Tensors sab_recurrence_backward_cpu(OptionalTensor grad_out, Tensors grad_state, Tensor u, Tensor R,
                                    OptionalTensor bias, Tensors attention, Tensors state, OptionalTensor batch_sizes,
                                    OptionalTensor reset, int64_t steps, int64_t top_k, int64_t attend_every,
                                    int64_t truncation, Tensor out, Tensors saved) {
  const Arguments given(u, R, bias, attention, state, batch_sizes, reset, steps, top_k, attend_every, truncation);
  const int64_t n = given.sizes.size, rows = given.layout.rows, batch = given.sizes.batch;
  STD_TORCH_CHECK(saved.size() == 4 && saved[0].numel() == rows * top_k && saved[1].numel() == rows * top_k &&
                      saved[1].scalar_type() == ScalarType::Int && saved[2].numel() == rows &&
                      saved[3].numel() == rows * n && out.numel() == rows * 2 * n &&
                      (!grad_out || grad_out->numel() == out.numel()),
                  "sab_recurrence_backward: `grad_out`, `out` and `saved` must be as the forward made them");
  for (Tensor& x : saved) x = dense(x);
  for (Tensor& x : grad_state) x = dense(x);
  out = dense(out);
  if (grad_out) grad_out = dense(*grad_out);
  for (const Tensor* x : {&saved[0], &saved[2], &saved[3], &out})
    STD_TORCH_CHECK(x->scalar_type() == given.u.scalar_type(), "sab_recurrence_backward: dtypes differ");
  STD_TORCH_CHECK(grad_state.empty() ||
                      (grad_state.size() == 3 && grad_state[0].numel() == batch * n &&
                       grad_state[1].numel() == batch * n && grad_state[2].numel() == batch * given.sizes.slots * n),
                  "sab_recurrence_backward: `grad_state` must be of h, c and memory");
  check_attended(given.sizes, read<int32_t>(saved[1]));
  return by_float_or_double(
      given.u, dtypes, [&](auto zero) { return backward<decltype(zero)>(given, grad_out, grad_state, out, saved); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("sab_recurrence", TORCH_BOX(&sab_recurrence_cpu));
  m.impl("sab_recurrence_backward", TORCH_BOX(&sab_recurrence_backward_cpu));
}

}  // namespace rnnkern
