// A recurrence through layers of rotations on a CPU: what is checked for the sake of memory, what is allocated, and in
// which order the layers are gone through.
#include <algorithm>

#include "orthogonal/givens.h"
#include "orthogonal/givens_call.h"

namespace rnnkern {
namespace {

constexpr int64_t reals_in_cache = 128;  // of each lane: one tile of values and one of gradients beside it

void require(bool holds, const char* what) { STD_TORCH_CHECK(holds, "givens_recurrence: ", what); }

// An order in which a piece of the state stays in the cache for as many layers as it can. Of neighbours, a layer's
// piece begins one place before that of the layer before, for which it waits; of butterflies, pieces are those that
// layers of close pairs stay within.
std::vector<GivensPiece> pieces_of(const GivensSizes& sizes, int64_t length) {
  std::vector<GivensPiece> found;
  const auto add = [&](int64_t layer, int64_t first) {
    const int64_t last = std::min(first + length / 2, layer_of(sizes, layer).pairs);
    first = std::max<int64_t>(first, 0);
    if (first < last) found.push_back({layer, first, last});
  };
  if (!sizes.butterfly) {
    for (int64_t begin = 0; begin < sizes.size + sizes.layers; begin += length)
      for (int64_t layer = 0; layer < sizes.layers; ++layer) add(layer, (begin - layer - layer % 2) / 2);
    return found;
  }
  const auto reach = [&](int64_t layer) { return 2 * layer_of(sizes, layer).stride; };
  for (int64_t layer = 0, next; layer < sizes.layers; layer = next) {
    next = layer + 1;
    while (next < sizes.layers && reach(next) > reach(next - 1) && reach(next) <= length) ++next;
    for (int64_t first = 0; first < sizes.pairs(); first += length / 2)
      for (int64_t k = layer; k < next; ++k) add(k, first);
  }
  return found;
}

// A call's tensors, dense, of one dtype and of sizes that belong together.
struct Call {
  Tensor u, angles, bias, h0;
  OptionalTensor phases, diagonal, reset;
  std::vector<int64_t> rows, lengths;
  std::vector<GivensPiece> pieces;
  GivensSizes sizes;
  GivensSequences sequences{};

  Call(const Tensor& u_, const Tensor& angles_, const OptionalTensor& phases_, const OptionalTensor& diagonal_,
       const Tensor& bias_, const Tensor& h0_, const OptionalTensor& batch_sizes, const OptionalTensor& reset_,
       bool reverse, bool butterfly)
      : u(dense(u_)), angles(dense(angles_)), bias(dense(bias_)), h0(dense(h0_)), reset(reset_) {
    const int64_t rank = batch_sizes ? 2 : 3;
    require(u.dim() == rank, "`u` must be (T, B, C), or (rows, C) beside `batch_sizes`");
    require(bias.dim() == 1 && angles.dim() == 2 && angles.size(1) == bias.size(0) / 2,
            "`bias` must be (N,) and `angles` (L, N / 2)");
    require(!phases_ == !diagonal_, "`phases` and `diagonal` must both be there or both be missing");
    const int64_t numbers = bias.size(0), parts = phases_ ? 2 : 1, batch = h0.size(0);
    require(u.size(rank - 1) == parts * numbers, "`u` must have N columns, or 2 N beside `phases`");
    require(h0.dim() == 2 && h0.size(1) == parts * numbers && (batch_sizes || u.size(1) == batch),
            "`h0` must be (B, C) for the B and the C of `u`");
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
    const int64_t steps = batch_sizes ? batch_sizes->numel() : u.size(0);
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch),
            "`reset` must be (T, B) bool");
    if (reset) reset = dense(*reset);
    if (batch_sizes) read_lengths(*batch_sizes, batch);
    sizes = {.count = 1,
             .vectors = batch,
             .size = numbers,
             .layers = angles.size(0),
             .columns = false,
             .butterfly = butterfly};
    sequences = {.steps = steps,
                 .batch = batch,
                 .reals = parts * numbers,
                 .rows = batch_sizes ? rows.data() : nullptr,
                 .lengths = batch_sizes ? lengths.data() : nullptr,
                 .reset = reset ? read<bool>(*reset) : nullptr,
                 .reverse = reverse};
    pieces = pieces_of(sizes, reals_in_cache / parts);
  }
  Call(const Call&) = delete;

  void read_lengths(const Tensor& batch_sizes, int64_t batch) {
    require(batch_sizes.scalar_type() == ScalarType::Long, "`batch_sizes` must be int64");
    const Tensor values = dense(batch_sizes);
    int64_t before = batch, sum = 0;
    lengths.assign(batch, batch_sizes.numel());
    for (int64_t t = 0; t < batch_sizes.numel(); ++t) {
      const int64_t now = read<int64_t>(values)[t];
      require(0 <= now && now <= before, "`batch_sizes` must never grow, begin with at most B and not be negative");
      rows.push_back(sum);
      for (int64_t b = now; b < before; ++b) lengths[b] = t;
      sum += before = now;
    }
    require(sum == u.size(0), "`batch_sizes` must sum to the rows of `u`");
  }

  template <class Problem, class T>
  Problem problem() const {
    Problem made{};
    made.sizes = sizes;
    made.sequences = sequences;
    made.pieces = pieces.data();
    made.piece_count = int64_t(pieces.size());
    made.angles = read<T>(angles);
    made.phases = phases ? read<T>(*phases) : nullptr;
    made.diagonal = diagonal ? read<T>(*diagonal) : nullptr;
    made.bias = read<T>(bias);
    made.u = read<T>(u);
    made.h0 = read<T>(h0);
    return made;
  }

  // Of the rows of `u`, kept for the next call.
  Tensor rows_like_u() const {
    const auto of_u = u.sizes();
    return reusable(u, {of_u.begin(), of_u.end()}, u.scalar_type());
  }

  int64_t rotations() const { return u.numel() / std::max<int64_t>(1, sizes.size) * sizes.angles(); }
};

template <class F>
auto by_dtype(const Tensor& u, F f) {
  return by_float_or_double(u, "givens_recurrence: `u` must be float32 or float64", f);
}

const char* family(const Call& call) {
  return call.phases ? "givens_recurrence/cpu/complex" : "givens_recurrence/cpu/real";
}

void begin_with(const Tensor& to, const OptionalTensor& from) {
  if (from)
    copy(to, *from);
  else
    fill_zero(to);
}

}  // namespace

Tensors givens_recurrence_cpu(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                              Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                              bool butterfly) {
  const Call call(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly);
  return by_dtype(call.u, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {call.rows_like_u(), empty_of_sizes(h0, h0)};
    if (!u.numel()) {
      begin_with(results[1], h0);
      return results;
    }
    count_givens_kernel(family(call), "forward", call.u);
    auto problem = call.problem<GivensRecurrenceForward<T>, T>();
    problem.h = write<T>(results[0]);
    problem.last = write<T>(results[1]);
    run_givens(givens_kernels_in_use<T>().recurrence_forward, problem, call.rotations(), call.u);
    return results;
  });
}

Tensors givens_recurrence_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                       OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0, Tensor h,
                                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool butterfly) {
  const Call call(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly);
  const auto like = [&](const OptionalTensor& x, const Tensor& wanted) {
    return !x || (x->numel() == wanted.numel() && x->scalar_type() == wanted.scalar_type());
  };
  require(like(h, u) && like(grad_h, u) && like(grad_last, h0),
          "`h` and `grad_h` must be like `u`, `grad_last` like `h0`");
  h = dense(h);
  if (grad_h) grad_h = dense(*grad_h);
  if (grad_last) grad_last = dense(*grad_last);
  return by_dtype(call.u, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {call.rows_like_u(), empty_of_sizes(angles, angles), empty_of_sizes(bias, bias),
                       empty_of_sizes(h0, h0)};
    if (phases) {
      results.push_back(empty_of_sizes(*phases, *phases));
      results.push_back(empty_of_sizes(*diagonal, *diagonal));
    }
    if (!u.numel()) {
      for (const Tensor& x : results) fill_zero(x);
      begin_with(results[3], grad_last);
      return results;
    }
    count_givens_kernel(family(call), "backward", call.u);
    auto problem = call.problem<GivensRecurrenceBackward<T>, T>();
    problem.h = read<T>(h);
    problem.grad_h = grad_h ? read<T>(*grad_h) : nullptr;
    problem.grad_last = grad_last ? read<T>(*grad_last) : nullptr;
    problem.grad_u = write<T>(results[0]);
    problem.grad_angles = write<T>(results[1]);
    problem.grad_bias = write<T>(results[2]);
    problem.grad_h0 = write<T>(results[3]);
    problem.grad_phases = phases ? write<T>(results[4]) : nullptr;
    problem.grad_diagonal = phases ? write<T>(results[5]) : nullptr;
    run_givens(givens_kernels_in_use<T>().recurrence_backward, problem, call.rotations(), call.u);
    return results;
  });
}

}  // namespace rnnkern
