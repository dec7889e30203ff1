// The forward mode of the recurrence on a CPU: the checks needed for memory safety, allocation, and one team of threads
// for the whole sequence.
#include "recurrence/tangent.h"
#include "recurrence/cpu/call.h"
#include "recurrence/cpu/team.h"

namespace rnnkern {
namespace {

// The optional arguments and those that the call itself does not have.
struct Given {
  Tensors tangents;
  Tensor h;
  Tensors saved;
  OptionalTensor u_tangent, r_tangent;
  Tensors params_tangent;
  int64_t every;
  bool sequence;
};

// All arguments of `call` are converted.
template <class T>
Tensors tangent(const Call& call, const Given& given) {
  constexpr ScalarType wide = arithmetic<T>;
  const CellInfo& cell = call.cell;
  const int64_t batch = call.steps.batch, count = given.tangents[0].size(0), every = given.every;
  const int64_t columns = cell.gates * call.hidden, recurrent = cell.recurrent * call.hidden;
  Tangent<T> p{};
  p.cell = cell;
  p.strips = strips<T>(call);
  p.steps = call.steps;
  p.weights = call.weights<T>();
  p.reset = read<bool>(call.reset);
  p.noise = call.noise;
  p.keep = call.weights_of_old<T>();
  p.count = count;
  p.every = every;

  Tensors kept;  // contiguous copies, kept until the end
  auto keep = [&](const char* name, const OptionalTensor& x, int64_t elements) -> const T* {
    if (!x) return nullptr;
    kept.push_back(widened(call, call.sized(name, *x, elements)));
    return read<T>(kept.back());
  };
  auto keep_saved = [&](const Tensor& x, int64_t elements) {
    kept.push_back(call.sized("saved", x, elements, wide));
    return read<T>(kept.back());
  };
  p.h = keep("h", given.h, call.rows * call.width);
  const bool has_candidates = call.keeps_candidates();
  STD_TORCH_CHECK(given.saved.size() == size_t(cell.states - 1 + (cell.saved > 0) + has_candidates),
                  "recurrence_tangent: wrong `saved`; it must have the gates");
  for (int s = 1; s < cell.states; ++s) p.states[s] = keep_saved(given.saved[s - 1], call.rows * call.hidden);
  if (cell.saved > 0) p.saved = keep_saved(given.saved[cell.states - 1], call.rows * cell.saved * call.hidden);
  if (has_candidates) p.candidates = keep_saved(given.saved.back(), call.rows * call.hidden);
  p.u_tangent = keep("u_tangent", given.u_tangent, count * call.rows * columns);
  p.r_tangent = keep("r_tangent", given.r_tangent, count * call.rows * recurrent);
  STD_TORCH_CHECK(given.params_tangent.empty() || given.params_tangent.size() == call.params.size(),
                  "recurrence_tangent: wrong `params_tangent`");
  for (size_t i = 0; i < given.params_tangent.size(); ++i) {
    const int64_t elements = cell.projected ? call.rows * call.width : call.params[i].numel();
    (cell.projected ? p.projected_tangent : p.params_tangent[i]) =
        keep("params_tangent", given.params_tangent[i], count * elements);
  }

  std::vector<int64_t> sizes = call.sizes_like_u(call.width);
  sizes.insert(sizes.begin(), count);
  Tensors outputs{given.sequence ? empty(call.u, sizes, wide) : empty(call.u, {0}, wide)};
  if (given.sequence) p.h_tangent = write<T>(outputs[0]);
  STD_TORCH_CHECK(given.tangents.size() == size_t(cell.states), "recurrence_tangent: wrong number of `tangents`");
  for (int s = 0; s < cell.states; ++s) {
    p.state[s] = read<T>(call.state[s]);
    const int64_t row = s ? call.hidden : call.width;
    p.initial[s] = keep("tangents", given.tangents[s], count * batch * row);
    outputs.push_back(empty(call.u, {count, batch, row}, wide));
    p.final[s] = write<T>(outputs.back());
  }
  const int64_t blocks = every > 0 ? (call.steps.count + every - 1) / every : 0;
  const Tensor log_r =
      every > 0 ? empty(call.u, {blocks, batch, count}, ScalarType::Double) : empty(call.u, {0}, ScalarType::Double);
  const Tensor lost = empty(call.u, {batch, count}, ScalarType::Long);
  p.log_r = write<double>(log_r);
  p.lost = write<int64_t>(lost);

  const auto kernel = at_level_in_use([]<SimdLevel level>() { return tangent_at<T, level>(); });
  const int threads = at_most_all(1 + count * batch * row_work(call) / 32768);
  run(kernel, p, threads, wide == ScalarType::Double ? log_r : kept.front());
  for (Tensor& x : outputs) x = narrowed(call, x);
  outputs.push_back(log_r);
  outputs.push_back(lost);
  return outputs;
}

// The forward mode (rnnkern/ops/_recurrence/tangent.py): `h` and `saved`, with the gates, are results of the training
// forward. If h is projected, the only tensor of `params_tangent` is the tangent that is added to h, (S, rows, P).
// Returns [h_tangent, *tangents of the final state, log_r, lost].
Tensors recurrence_tangent_cpu(std::string cell, Tensor u, Tensor R, Tensors state, Tensors tangents,
                               OptionalTensor bias, OptionalTensors params, OptionalTensor batch_sizes,
                               OptionalTensor reset, bool reverse, Tensor h, Tensors saved, OptionalTensor u_tangent,
                               OptionalTensor r_tangent, OptionalTensors params_tangent, int64_t every, bool sequence,
                               Rates zoneout, double dropout, OptionalTensor seed, OptionalTensor keep) {
  Call call(cell, u, R, state, bias, params.value_or(Tensors()), batch_sizes, reset, reverse, {}, {},
            simd_vector_bytes());
  call.set_noise(zoneout, dropout, seed);
  call.set_keep(keep);
  STD_TORCH_CHECK(!tangents.empty() && tangents[0].dim() == 3 && every >= 0 && !(every > 0 && sequence),
                  "recurrence_tangent: wrong `tangents`, `every` or `sequence`");
  rnnkern::count_kernel("recurrence/cpu", "tangent", call.cell.name);
  const Given given{tangents, h, saved, u_tangent, r_tangent, params_tangent.value_or(Tensors()), every, sequence};
  widen(call);
  return by_arithmetic(call, [&](auto zero) { return tangent<decltype(zero)>(call, given); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) { m.impl("recurrence_tangent", TORCH_BOX(&recurrence_tangent_cpu)); }

}  // namespace rnnkern
