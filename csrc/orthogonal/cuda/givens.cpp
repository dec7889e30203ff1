// The recurrence with layers of Givens rotations on a CUDA device: cosines and sines in the order of the lanes, then
// one warp per sequence; in the backward, a kernel that adds the warps' sums.
#include <algorithm>

#include "cuda/driver.h"
#include "cuda/library.h"
#include "orthogonal/cuda/givens_backward.cuh"
#include "orthogonal/cuda/givens_entries.cuh"
#include "orthogonal/cuda/givens_forward.cuh"
#include "orthogonal/givens_check.h"

namespace rnnkern::givens {

using rnnkern::read, rnnkern::write;  // of tensors; givens_lanes.cuh has others

namespace {

using cuda::Resident, cuda::Residents;

using LaneSizes = cuda::Sizes<2, 4, 8, 16, 32>;  // numbers per lane

// The kernels for N numbers, or none if no lane can hold its share; the backward keeps this many sums in shared memory.
template <class T, int parts>
Residents kernels_of(int64_t numbers, int64_t sums) {
  return LaneSizes::least((numbers + warp_size - 1) / warp_size, [&](auto each) -> Residents {
    if constexpr (fits<T>(each() * parts)) {
      using Forward = ForwardKernel<T, parts, each()>;
      using Backward = BackwardKernel<T, parts, each()>;
      return {{&cuda::kernel<Forward>, Forward::Rows::bytes(), 1, 1},
              {&cuda::kernel<Backward>, Backward::Rows::bytes(sums), 1, 1}};
    }
    return {};
  });
}

template <class T>
Residents kernels_of(int64_t numbers, bool is_complex, int64_t sums = 0) {
  return is_complex ? kernels_of<T, 2>(numbers, sums) : kernels_of<T, 1>(numbers, sums);
}

// The cosine or sine ("aten::cos", "aten::sin") of all elements, computed by ATen.
Tensor elementwise(const char* aten, const Tensor& x) {
  StableIValue stack[] = {torch::stable::detail::from(x)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(aten, "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

template <class T>
struct Driver : GivensCall, cuda::Driver {
  Packing packing{};
  Tensor sincos;

  template <class... Arguments>
  explicit Driver(const Arguments&... arguments) : GivensCall(arguments...), cuda::Driver(u) {
    for (const OptionalTensor& x :
         {OptionalTensor(angles), phases, diagonal, OptionalTensor(bias), OptionalTensor(h0), reset})
      require_same_device(x);
    require_of_givens(sequences.steps < INT32_MAX / 2 && sizes.layers < INT32_MAX / 2, "a size is out of bounds");
    plan.kernels = kernels_of<T>(sizes.size, phases.has_value());
    packing = {sizes, plan.kernels.padded, phases.has_value()};
    STD_TORCH_CHECK(plan.kernels, "givens_recurrence: no CUDA kernel takes N = ", sizes.size, " in this dtype");
  }

  void require_same_device(const OptionalTensor& x) const {
    require_of_givens(!x || (x->is_cuda() == u.is_cuda() && x->get_device_index() == u.get_device_index()),
                      "all tensors but `batch_sizes` must be on one device");
  }

  // What the kernels of both directions read.
  Problem<T> prepare() {
    set_rows(layout, u, "givens_recurrence", sequences.rows, sequences.lengths);
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
    const int stages = int(packing.stages()), last_stage = int((sizes.layers + stages - 1) % stages);
    return {packing, sequences, stages, last_stage, at(), read<T>(bias), read<T>(u), read<T>(h0)};
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
    const ForwardProblem<T> problem{prepare(), write<T>(found[0]), write<T>(found[1])};
    start(plan.kernels.forward, problem, sequences.batch);
    return found;
  }

  Tensors backward(Tensor h, OptionalTensor grad_h, OptionalTensor grad_last) {
    make_dense(h, grad_h, grad_last);
    for (const OptionalTensor& x : {OptionalTensor(h), grad_h, grad_last}) require_same_device(x);
    const Tensors found = gradients(empty_of_sizes(u, u));
    if (is_empty(found, grad_last)) return found;
    tell("backward");
    const int64_t blocks = std::min(sequences.batch, most_parts);
    const Tensor sums = empty(u, {blocks, packing.total()});
    const Resident on_chip = kernels_of<T>(sizes.size, packing.is_complex, packing.total()).backward;
    const bool fits = fits_beside_others(on_chip.shared_bytes, blocks);
    const BackwardProblem<T> problem{prepare(),          read<T>(h),         read<T>(grad_h), read<T>(grad_last),
                                     write<T>(found[0]), write<T>(found[3]), write<T>(sums),  fits};
    start(fits ? on_chip : plan.kernels.backward, problem, blocks);
    const auto to = [&](size_t place) { return place < found.size() ? write<T>(found[place]) : nullptr; };
    cuda::launch_elements<SumKernel<T>>(packing.total(), {packing, blocks, read<T>(sums), {to(1), to(4), to(5), to(2)}},
                                        stream);
    return found;
  }

  // Whether all blocks that run on a multiprocessor at once get this much shared memory.
  bool fits_beside_others(int64_t bytes, int64_t blocks) const {
    const cuda::Facts facts = cuda::facts_of_current(stream);
    return (blocks + facts.multiprocessors - 1) / facts.multiprocessors * bytes <= facts.shared_bytes;
  }
};

template <class T>
std::string programs(bool is_complex, int64_t size) {
  const Residents kernels = kernels_of<T>(size, is_complex);
  if (!kernels) return "[]";
  return cuda::programs_of(
      {&cuda::kernel<TurnKernel<T>>, &cuda::kernel<SumKernel<T>>, kernels.forward.kernel, kernels.backward.kernel});
}

// The CUDA kernels that a recurrence of N numbers of a dtype starts, as JSON: [[header, type], ...], or [] if there is
// no kernel.
std::string givens_programs(std::string dtype, bool is_complex, int64_t size) {
  return scalar_type(dtype) == ScalarType::Double ? programs<double>(is_complex, size)
                                                  : programs<float>(is_complex, size);
}

// Like givens_recurrence_cpu (orthogonal/cpu/givens_operators.cpp).
Tensors givens_recurrence_cuda(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                               Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                               bool butterfly) {
  return by_dtype_of_givens(u, [&](auto zero) {
    return Driver<decltype(zero)>(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly)
        .forward(h0);
  });
}

// Like givens_recurrence_backward_cpu.
Tensors givens_recurrence_backward_cuda(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                        OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0,
                                        Tensor h, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                                        bool butterfly) {
  return by_dtype_of_givens(u, [&](auto zero) {
    return Driver<decltype(zero)>(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly)
        .backward(h, grad_h, grad_last);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("givens_programs", TORCH_BOX(&givens_programs));
}

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, RNNKERN_CUDA_KEY, m) {
  m.impl("givens_recurrence", TORCH_BOX(&givens_recurrence_cuda));
  m.impl("givens_recurrence_backward", TORCH_BOX(&givens_recurrence_backward_cuda));
}

}  // namespace rnnkern::givens
