// The operator around the pointwise stage. On a CPU it runs the cells' scalar code, which is what a CUDA device runs.
#include "recurrence/pointwise.h"

#include "common/counters.h"
#include "common/cuda.h"
#include "recurrence/cells.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

template <class Cell, class T>
void pointwise_cpu(const Pointwise<T>& p) {
  for (int64_t index = 0; index < p.batch * p.hidden; ++index) pointwise_unit<Cell>(p, index);
}

template <class T>
void run(const Pointwise<T>& problem, int place, const Tensor& u) {
  if (u.is_cuda()) {
#if defined(RNNKERN_WITH_CUDA)
    const CurrentDevice device(u);
    const int error = pointwise_cuda(problem, place, device.stream());
    STD_TORCH_CHECK(error == 0, "recurrence_pointwise: the kernel did not start: ", cuda_error_name(error));
#endif
    return;
  }
#define RNNKERN_POINTWISE(Cell) pointwise_cpu<Cell, T>,
  constexpr void (*kernels[])(const Pointwise<T>&) = {RNNKERN_CELLS(RNNKERN_POINTWISE)};
  kernels[place](problem);
}

}  // namespace

Tensors recurrence_pointwise(std::string cell, Tensor u, Tensor r, Tensors state, Tensors params, bool prepare) {
  const int place = find_cell(cell);
  STD_TORCH_CHECK(place >= 0, "recurrence_pointwise: the cell `", cell, "` has no kernel");
  const CellInfo& facts = cell_list[place];
  STD_TORCH_CHECK(state.size() == size_t(facts.states) && params.size() == size_t(facts.params),
                  "recurrence_pointwise: wrong number of tensors in `state` or `params`");
  STD_TORCH_CHECK(!prepare || facts.two_products(), "recurrence_pointwise: `", cell, "` has nothing to prepare");
  STD_TORCH_CHECK(state[0].dim() == 2, "recurrence_pointwise: `state[0]` must be (B, H)");
  const int64_t batch = state[0].size(0), hidden = state[0].size(1);
  count("recurrence/" + std::string(u.is_cuda() ? "cuda" : "cpu") + "/pointwise/" + cell);
  return by_dtype("recurrence_pointwise", u, [&](auto zero) {
    using T = decltype(zero);
    Tensors kept, outputs;
    auto keep = [&](const char* name, const Tensor& x, int64_t elements) {
      STD_TORCH_CHECK(x.numel() == elements && x.scalar_type() == u.scalar_type() && x.is_cuda() == u.is_cuda(),
                      "recurrence_pointwise: `", name, "` does not fit the other arguments");
      kept.push_back(dense(x));
      return read<T>(kept.back());
    };
    auto output = [&] {
      outputs.push_back(empty(u, {batch, hidden}));
      return write<T>(outputs.back());
    };
    Pointwise<T> p{
        batch, hidden, keep("u", u, batch * facts.gates * hidden), keep("r", r, batch * facts.gates * hidden), {}, {},
        {},    nullptr};
    for (int s = 0; s < facts.states; ++s) p.state[s] = keep("state", state[s], batch * hidden);
    for (int i = 0; i < facts.params; ++i) p.params[i] = keep("params", params[i], hidden);
    if (prepare) {
      p.operand = output();
    } else {
      for (int s = 0; s < facts.states; ++s) p.next[s] = output();
    }
    run(p, place, u);
    return outputs;
  });
}

}  // namespace rnnkern
