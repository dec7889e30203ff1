// The recurrence with layers of Givens rotations on a CUDA device: cosines and sines in the order of the lanes, then
// one warp per sequence; in the backward, a kernel that adds the warps' sums. Everything runs on the current stream and
// allocates through PyTorch; nothing waits for the device.
#include <algorithm>

#include "common/counters.h"
#include "cuda/current.h"
#include "cuda/driver.h"
#include "cuda/plans.h"
#include "orthogonal/cuda/givens_backward.cuh"
#include "orthogonal/cuda/givens_entries.cuh"
#include "orthogonal/cuda/givens_forward.cuh"
#include "orthogonal/givens.h"
#include "orthogonal/givens_check.h"

namespace rnnkern::givens {

using rnnkern::read, rnnkern::write;  // of tensors; givens_lanes.cuh has others

namespace {

// Calls f(parts, each) with compile-time numbers, for a packing that uses `each_for`.
template <class T, int parts, int each, class F>
auto with_sizes(const Packing& packing, F f) {
  if constexpr (2 * each <= most_each && fits<T>(2 * each * parts)) {
    if (packing.each > each) return with_sizes<T, parts, 2 * each>(packing, f);
  }
  return f(std::integral_constant<int, parts>(), std::integral_constant<int, each>());
}

template <class T, class F>
auto with_sizes(const Packing& packing, F f) {
  return packing.is_complex ? with_sizes<T, 2, 2>(packing, f) : with_sizes<T, 1, 2>(packing, f);
}

// The cosine or sine ("aten::cos", "aten::sin") of all elements, computed by ATen.
Tensor elementwise(const char* aten, const Tensor& x) {
  StableIValue stack[] = {torch::stable::detail::from(x)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(aten, "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

template <class T>
struct Driver : GivensCall {
  CurrentDevice current;
  void* stream;
  Packing packing{};
  Tensor table, sincos;  // table: offsets and lengths of packed rows, on the device

  template <class... Arguments>
  explicit Driver(const Arguments&... arguments) : GivensCall(arguments...), current(u), stream(current.stream()) {
    for (const OptionalTensor& x :
         {OptionalTensor(angles), phases, diagonal, OptionalTensor(bias), OptionalTensor(h0), reset})
      require_same_device(x);
    require_of_givens(sequences.steps < INT32_MAX / 2 && sizes.layers < INT32_MAX / 2, "a size is out of bounds");
    packing = {sizes, each_for<T>(sizes.size, parts()), phases.has_value()};
    STD_TORCH_CHECK(packing.each > 0, "givens_recurrence: no CUDA kernel takes N = ", sizes.size, " in this dtype");
  }

  void require_same_device(const OptionalTensor& x) const {
    require_of_givens(!x || (x->is_cuda() == u.is_cuda() && x->get_device_index() == u.get_device_index()),
                      "all tensors but `batch_sizes` must be on one device");
  }

  // Fills the fields that the kernels of both directions share.
  void prepare(Problem<T>& problem) {
    if (layout.packed()) {
      table = layout.on_device_of(u, "givens_recurrence", cuda::capturing(stream));
      sequences.rows = read<int64_t>(table);
      sequences.lengths = sequences.rows + sequences.steps + 1;
    }
    sincos = empty(u, {2 * packing.bias()});
    TurnProblem<T> turning{packing, {}, {}, at()};
    Tensors kept;
    const OptionalTensor from[] = {angles, phases, diagonal};
    for (int k = 0; k < 3; ++k) {
      if (!from[k]) continue;
      kept.push_back(elementwise("aten::cos", *from[k]));
      kept.push_back(elementwise("aten::sin", *from[k]));
      turning.cosines[k] = read<T>(kept[2 * k]);
      turning.sines[k] = read<T>(kept[2 * k + 1]);
    }
    cuda::launch_elements<TurnKernel<T>>(packing.bias(), turning, stream);
    problem.packing = packing;
    problem.sequences = sequences;
    problem.stages = int(packing.stages());
    problem.last_stage = int((sizes.layers + problem.stages - 1) % problem.stages);
    problem.sincos = at();
    problem.bias = read<T>(bias);
    problem.u = read<T>(u);
    problem.h0 = read<T>(h0);
  }

  SinCos<T>* at() const { return write<SinCos<T>>(sincos); }

  void tell(const char* direction) const {
    count(phases ? "givens_recurrence/cuda/complex" : "givens_recurrence/cuda/real", direction,
          sizeof(T) == 8 ? "float64" : "float32", "warp");
  }

  Tensors forward(const OptionalTensor& state) {
    const Tensors found = results(empty_of_sizes(u, u));
    if (is_empty(found, state)) return found;
    tell("forward");
    ForwardProblem<T> problem{};
    prepare(problem);
    problem.h = write<T>(found[0]);
    problem.last = write<T>(found[1]);
    with_sizes<T>(packing, [&](auto parts, auto each) {
      using Kernel = ForwardKernel<T, parts(), each()>;
      cuda::launch<Kernel>({.blocks = sequences.batch, .shared_bytes = Kernel::bytes()}, problem, stream);
    });
    return found;
  }

  Tensors backward(Tensor h, OptionalTensor grad_h, OptionalTensor grad_last) {
    make_dense(h, grad_h, grad_last);
    for (const OptionalTensor& x : {OptionalTensor(h), grad_h, grad_last}) require_same_device(x);
    const Tensors found = gradients(empty_of_sizes(u, u));
    if (is_empty(found, grad_last)) return found;
    tell("backward");
    BackwardProblem<T> problem{};
    prepare(problem);
    const int64_t blocks = std::min(sequences.batch, most_parts);
    const Tensor sums = empty(u, {blocks, packing.total()});
    problem.h = read<T>(h);
    problem.grad_h = read<T>(grad_h);
    problem.grad_last = read<T>(grad_last);
    problem.grad_u = write<T>(found[0]);
    problem.grad_h0 = write<T>(found[3]);
    problem.sums = write<T>(sums);
    problem.on_chip = sums_fit(blocks);
    with_sizes<T>(packing, [&](auto parts, auto each) {
      using Kernel = BackwardKernel<T, parts(), each()>;
      const int64_t bytes = Kernel::bytes(problem.on_chip ? packing.total() : 0);
      cuda::launch<Kernel>({.blocks = blocks, .shared_bytes = bytes}, problem, stream);
    });
    const auto to = [&](size_t place) { return place < found.size() ? write<T>(found[place]) : nullptr; };
    cuda::launch_elements<SumKernel<T>>(packing.total(), {packing, blocks, read<T>(sums), {to(1), to(4), to(5), to(2)}},
                                        stream);
    return found;
  }

  // Whether the sums of all blocks that run on a multiprocessor at once fit into its shared memory.
  bool sums_fit(int64_t blocks) const {
    const cuda::Facts facts = cuda::facts_of_current(stream);
    const int64_t together = (blocks + facts.multiprocessors - 1) / facts.multiprocessors;
    const int64_t bytes = with_sizes<T>(
        packing, [&](auto parts, auto each) { return BackwardKernel<T, parts(), each()>::bytes(packing.total()); });
    return together * bytes <= facts.shared_bytes;
  }
};

template <class T>
std::string programs(bool is_complex, int64_t size) {
  Packing packing{};
  packing.is_complex = is_complex;
  packing.each = each_for<T>(size, is_complex ? 2 : 1);
  if (packing.each == 0) return "[]";
  return with_sizes<T>(packing, [](auto parts, auto each) {
    return cuda::programs_of({&cuda::kernel<TurnKernel<T>>, &cuda::kernel<SumKernel<T>>,
                              &cuda::kernel<ForwardKernel<T, parts(), each()>>,
                              &cuda::kernel<BackwardKernel<T, parts(), each()>>});
  });
}

}  // namespace
}  // namespace rnnkern::givens

namespace rnnkern {

std::string givens_programs(std::string dtype, bool is_complex, int64_t size) {
  return scalar_type(dtype) == ScalarType::Double ? givens::programs<double>(is_complex, size)
                                                  : givens::programs<float>(is_complex, size);
}

Tensors givens_recurrence_cuda(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                               Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                               bool butterfly) {
  return by_dtype_of_givens(u, [&](auto zero) {
    return givens::Driver<decltype(zero)>(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly)
        .forward(h0);
  });
}

Tensors givens_recurrence_backward_cuda(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                        OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0,
                                        Tensor h, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                                        bool butterfly) {
  return by_dtype_of_givens(u, [&](auto zero) {
    return givens::Driver<decltype(zero)>(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly)
        .backward(h, grad_h, grad_last);
  });
}

}  // namespace rnnkern
