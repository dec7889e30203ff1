// sab_recurrence on a CPU: the checks needed for memory safety, allocation, and the products over all rows.
#include <cstring>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/cpu/sab_problem.h"
#include "relevancy/sab.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "sab_recurrence: `u` must be float32 or float64";

// The arguments, contiguous and checked, and the layout of rows.
struct Arguments {
  Tensor u, R, bias, W, w, h, c, memory, time, reset;
  bool has_bias, has_reset, mlp;
  int64_t batch, size, width, rows, old_slots, top_k, every, truncation;
  RowLayout layout;

  Arguments(const Tensor& u_, const Tensor& R_, const OptionalTensor& bias_, const Tensors& attention,
            const Tensors& state, const OptionalTensor& batch_sizes, const OptionalTensor& reset_, int64_t top_k,
            int64_t every, int64_t truncation)
      : u(dense(u_)),
        R(dense(R_)),
        has_bias(bias_),
        has_reset(reset_),
        top_k(top_k),
        every(every),
        truncation(truncation) {
    STD_TORCH_CHECK((attention.size() == 1 || attention.size() == 2) && state.size() == 4 && top_k > 0 && every > 0 &&
                        truncation > 0,
                    "sab_recurrence: `attention` must be (w) or (W, w), `state` (h, c, memory, time), and `top_k`, "
                    "`attend_every` and `truncation` positive");
    mlp = attention.size() == 2;
    w = dense(attention.back());
    W = mlp ? dense(attention[0]) : w;
    h = dense(state[0]);
    c = dense(state[1]);
    memory = dense(state[2]);
    time = dense(state[3]);
    bias = has_bias ? dense(*bias_) : w;
    reset = has_reset ? dense(*reset_) : w;
    STD_TORCH_CHECK(h.dim() == 2 && memory.dim() == 3,
                    "sab_recurrence: `h` or `memory` has another number of dimensions");
    layout = RowLayout("sab_recurrence", "u", u, h.size(0), batch_sizes);
    batch = layout.batch;
    size = h.size(1);
    width = mlp ? w.numel() : 0;
    old_slots = memory.size(1);
    rows = layout.rows;
    for (const Tensor* x : {&R, &w, &W, &h, &c, &memory})
      STD_TORCH_CHECK(x->scalar_type() == u.scalar_type(), "sab_recurrence: all must be of the dtype of `u`");
    STD_TORCH_CHECK(!has_bias || (bias.scalar_type() == u.scalar_type() && bias.numel() == 4 * size),
                    "sab_recurrence: `bias` must be (4*n,)");
    STD_TORCH_CHECK(u.size(-1) == 4 * size && R.numel() == 4 * size * size && c.numel() == batch * size &&
                        memory.numel() == batch * old_slots * size &&
                        (mlp ? W.numel() == width * 2 * size : w.numel() == 2 * size),
                    "sab_recurrence: sizes do not belong together");
    STD_TORCH_CHECK(time.scalar_type() == ScalarType::Long && time.numel() == batch,
                    "sab_recurrence: `time` must be (B,) int64");
    STD_TORCH_CHECK(!has_reset || (reset.scalar_type() == ScalarType::Bool && reset.numel() == layout.steps * batch),
                    "sab_recurrence: `reset` must be (T, B) bool");
  }

  bool resets(int64_t t, int64_t b) const { return has_reset && read<bool>(reset)[t * batch + b]; }

  // The number of slots of the memory after this call, if earlier calls had `steps` steps. Checks that all fit.
  int64_t check_slots(int64_t steps) const {
    const int64_t slots = 1 + (steps + layout.steps) / every;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t before = read<int64_t>(time)[b];
      STD_TORCH_CHECK(before >= 0 && before / every < old_slots && (before + layout.length(b)) / every < slots,
                      "sab_recurrence: `time` has more memories than there are slots");
    }
    return slots;
  }

  // Checks that only slots that held a memory were attended to.
  void check_attended(const Tensor& attended) const {
    for (int64_t b = 0; b < batch; ++b) {
      int64_t before = read<int64_t>(time)[b];
      for (int64_t t = 0; t < layout.length(b); ++t, ++before) {
        if (resets(t, b)) before = 0;
        const int64_t held = 1 + before / every;
        const int32_t* const slots = read<int32_t>(attended) + (layout.first_row(t) + b) * top_k;
        for (int64_t i = 0; i < (held < top_k ? held : top_k); ++i)
          STD_TORCH_CHECK(slots[i] >= 0 && slots[i] < held, "sab_recurrence_backward: `saved` is not the forward's");
      }
    }
  }

  template <class T>
  void fill(SabCall<T>& call, const Tensor& zeros) const {
    call.batch = batch;
    call.size = size;
    call.width = width;
    call.top_k = top_k;
    call.every = every;
    call.truncation = truncation;
    call.old_slots = old_slots;
    call.steps = layout.steps;
    call.offsets = layout.offsets;
    call.lengths = layout.lengths;
    call.time = read<int64_t>(time);
    call.reset = has_reset ? read<bool>(reset) : nullptr;
    call.u = read<T>(u);
    call.bias = has_bias ? read<T>(bias) : nullptr;
    call.h = read<T>(h);
    call.c = read<T>(c);
    call.memory = read<T>(memory);
    call.w = read<T>(w);
    call.zeros = read<T>(zeros);
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

constexpr int64_t worth_sharing = 131072;  // multiplications per thread

template <class Call>
void run(KernelOfParts<Call> kernel, const Call& call, const Arguments& given) {
  const int64_t worth = 1 + given.rows * given.size * 4 * given.size / worth_sharing;
  const int threads = at_most_all(worth < given.batch ? worth : given.batch);
  run_parts(kernel, call, given.batch, true, threads, given.u);
}

void count_kernel(const char* direction, const Arguments& given) {
  rnnkern::count_kernel("sab_recurrence/cpu", direction, given.mlp ? "mlp" : "separable");
}

// h of the step before that of each row.
template <class T>
Tensor former_states(const Arguments& given, const Tensor& out) {
  const int64_t n = given.size;
  const Tensor made = cached_empty(given.u, {given.rows, n}, given.u.scalar_type());
  for (int64_t b = 0; b < given.batch; ++b) {
    for (int64_t t = 0; t < given.layout.length(b); ++t) {
      T* const to = write<T>(made) + (given.layout.first_row(t) + b) * n;
      if (given.resets(t, b))
        std::memset(to, 0, sizeof(T) * n);
      else
        std::memcpy(to, t ? read<T>(out) + (given.layout.first_row(t - 1) + b) * 2 * n : read<T>(given.h) + b * n,
                    sizeof(T) * n);
    }
  }
  return made;
}

// Sums over samples in a fixed order, so that the result does not depend on the number of threads.
template <class T>
void sum_samples(const Tensor& of_each, const Tensor& sum) {
  fill_zero(sum);
  const int64_t batch = of_each.size(0), size = of_each.size(1);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t j = 0; j < size; ++j) write<T>(sum)[j] += read<T>(of_each)[b * size + j];
}

}  // namespace

Tensors sab_recurrence_cpu(Tensor u, Tensor R, OptionalTensor bias, Tensors attention, Tensors state,
                           OptionalTensor batch_sizes, OptionalTensor reset, int64_t steps, int64_t top_k,
                           int64_t attend_every, int64_t truncation, bool training) {
  const Arguments given(u, R, bias, attention, state, batch_sizes, reset, top_k, attend_every, truncation);
  const int64_t n = given.size, slots = given.check_slots(steps);
  return by_float_or_double(given.u, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor& like = given.u;
    Tensors results = {empty(like, sizes_with(like, 1, {2 * n})),
                       empty(like, {given.batch, n}),
                       empty(like, {given.batch, n}),
                       empty(like, {given.batch, slots, n}),
                       empty_int64(like, given.batch),
                       empty(like, sizes_with(like, 1, {top_k})),
                       empty(like, sizes_with(like, 1, {top_k}), ScalarType::Int)};
    if (training) {
      results.push_back(empty(like, sizes_with(like, 1, {})));
      results.push_back(cached_empty(like, sizes_with(like, 1, {n}), like.scalar_type()));
    }
    if (!given.batch) return results;
    count_kernel("forward", given);
    const Tensor zeros = rnnkern::zeros(like, {n}, like.scalar_type());
    Packer<T> packed;
    SabForward<T> call{};
    given.fill(call, zeros);
    call.slots = slots;
    call.R = packed(transposed(given.R, 0, 1));
    if (given.mlp) {
      call.query = packed(transposed(part(given.W, 1, 0, n), 0, 1));
      call.key = packed(transposed(part(given.W, 1, n, n), 0, 1));
    }
    call.out = write<T>(results[0]);
    call.last_h = write<T>(results[1]);
    call.last_c = write<T>(results[2]);
    call.last_memory = write<T>(results[3]);
    call.last_time = write<int64_t>(results[4]);
    call.weights = write<T>(results[5]);
    call.attended = write<int32_t>(results[6]);
    call.sums = training ? write<T>(results[7]) : nullptr;
    call.all_c = training ? write<T>(results[8]) : nullptr;
    run(kernels_in_use<SabKernels<T>>().forward, call, given);
    return results;
  });
}

Tensors sab_recurrence_backward_cpu(OptionalTensor grad_out, Tensors grad_state, Tensor u, Tensor R,
                                    OptionalTensor bias, Tensors attention, Tensors state, OptionalTensor batch_sizes,
                                    OptionalTensor reset, int64_t steps, int64_t top_k, int64_t attend_every,
                                    int64_t truncation, Tensor out, Tensors saved) {
  const Arguments given(u, R, bias, attention, state, batch_sizes, reset, top_k, attend_every, truncation);
  const int64_t n = given.size, rows = given.rows, width = given.width, batch = given.batch;
  const int64_t slots = given.check_slots(steps);
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
  STD_TORCH_CHECK(
      grad_state.empty() || (grad_state.size() == 3 && grad_state[0].numel() == batch * n &&
                             grad_state[1].numel() == batch * n && grad_state[2].numel() == batch * slots * n),
      "sab_recurrence_backward: `grad_state` must be of h, c and memory");
  given.check_attended(saved[1]);
  return by_float_or_double(given.u, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor& like = given.u;
    const auto dtype = like.scalar_type();
    const Tensor du = empty_of_sizes(like, given.u), flat = shaped(du, {rows, 4 * n}),
                 dR = empty_of_sizes(like, given.R);
    const Tensor before = former_states<T>(given, out), d_bias = empty(like, {given.has_bias ? 4 * n : 0});
    const Tensor d_w = zeros(like, {batch, given.w.numel()}, dtype), sum_w = empty_of_sizes(like, given.w);
    const Tensor d_h = empty(like, {batch, n}), d_c = empty(like, {batch, n});
    const Tensor d_memory = empty_of_sizes(like, given.memory), zeros = rnnkern::zeros(like, {n}, dtype);
    const Tensor d_query = cached_empty(like, {rows, width}, dtype),
                 provisional = cached_empty(like, {width ? rows : 0, n}, dtype);
    const Tensor d_key = rnnkern::zeros(like, {width ? rows + batch * given.old_slots : 0, width}, dtype);
    if (rows) product(flat, before, transposed(given.R, 0, 1));
    if (batch) {
      count_kernel("backward", given);
      Packer<T> packed;
      SabBackward<T> call{};
      given.fill(call, zeros);
      call.slots = slots;
      call.R_back = packed(given.R);
      if (given.mlp) {
        const Tensor Wq = part(given.W, 1, 0, n), Wm = part(given.W, 1, n, n);
        call.query = packed(transposed(Wq, 0, 1));
        call.key = packed(transposed(Wm, 0, 1));
        call.query_back = packed(Wq);
        call.key_back = packed(Wm);
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
      run(kernels_in_use<SabKernels<T>>().backward, call, given);
    }
    product(dR, transposed(flat, 0, 1), before);
    if (given.has_bias) copy(d_bias, sum(flat, 0));
    sum_samples<T>(d_w, sum_w);
    Tensors results = {du, dR, d_bias};
    if (given.mlp) {
      const int64_t old = batch * given.old_slots;
      const Tensor dW = empty_of_sizes(like, given.W), members = cached_empty(like, {rows + old, n}, dtype);
      copy(part(members, 0, 0, rows), part(shaped(out, {rows, 2 * n}), 1, 0, n));
      copy(part(members, 0, rows, old), shaped(given.memory, {old, n}));
      product(part(dW, 1, 0, n), transposed(d_query, 0, 1), provisional);
      product(part(dW, 1, n, n), transposed(d_key, 0, 1), members);
      results.push_back(dW);
    }
    for (const Tensor& x : {sum_w, d_h, d_c, d_memory}) results.push_back(x);
    return results;
  });
}

}  // namespace rnnkern
