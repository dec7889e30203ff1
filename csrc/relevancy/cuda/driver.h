// Shared by the CUDA drivers of both directions: the checked arguments, in the form that kernels take.
#pragma once

#include <type_traits>

#include "cuda/driver.h"
#include "relevancy/cuda/plan.h"

namespace rnnkern::relevancy {

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

template <class T>
struct Driver : cuda::Driver, MemorySizes {
  static constexpr ScalarType dtype = std::is_same_v<T, double> ? ScalarType::Double : ScalarType::Float;

  int cell_id;
  CellInfo cell;
  const KernelTable& kernels;
  RowLayout layout;
  Rows rows{};                         // as in `layout`, on the device
  int64_t hidden, total, first_slots;  // total: number of rows
  T mix;
  bool dot;
  Tensor V, W_a, U_a, v, s0, buffer, buffer_scores, buffer_ids, relevant, scores, ids, time;
  OptionalTensor c0, reset, given;
  Tensors params;
  Tensor stacked;  // V over W_a, ((G+1)*n, n)

  // `x` is an argument that has the rows.
  Driver(const Arguments& given_, const char* name, const Tensor& x)
      : cuda::Driver(given_.state[0]),
        cell_id(find_cell(given_.cell)),
        cell(cell_list[cell_id]),
        kernels(table_of<T>(cell_id)) {
    const Tensors& state = given_.state;
    const ScalarType of_caller = scalar_type(given_.dtype);
    STD_TORCH_CHECK((of_caller == ScalarType::Double) == (dtype == ScalarType::Double),
                    "relevancy_recurrence: `dtype` is not that of the tensors");
    STD_TORCH_CHECK(given_.weights.size() == 4 && state.size() == size_t(7 + cell.states),
                    "relevancy_recurrence: wrong number of tensors in `weights` or `state`");
    STD_TORCH_CHECK(state[0].dim() == 2 && state[cell.states].dim() == 3 && state[cell.states + 3].dim() == 3,
                    "relevancy_recurrence: `state` is not a whole one");
    layout = RowLayout("relevancy_recurrence", name, x, state[0].size(0), given_.batch_sizes);
    total = layout.rows;
    const int64_t steps = layout.steps, batch = layout.batch;
    hidden = state[0].size(1);
    first_slots = state[cell.states].size(1);
    relevant_size = state[cell.states + 3].size(1);
    buffer_size = given_.buffer_size;
    STD_TORCH_CHECK(hidden > 0 && buffer_size > 0 && first_slots <= buffer_size && steps < INT32_MAX / 2 &&
                        first_slots + relevant_size < INT32_MAX / 2,
                    "relevancy_recurrence: a size is out of bounds");
    slots = buffer_size < first_slots + steps ? buffer_size : first_slots + steps;
    mix = T(given_.mix);
    dot = given_.dot;

    const int64_t n = hidden;
    V = sized("V", given_.weights[0], cell.gates * n * n);
    W_a = sized("W_a", given_.weights[1], n * n);
    U_a = sized("U_a", given_.weights[2], n * n);
    v = sized("v", given_.weights[3], n);
    s0 = sized("s", state[0], batch * n);
    if (cell.states > 1) c0 = sized("c", state[1], batch * n);
    const Tensor* rest = state.data() + cell.states;
    buffer = sized("buffer", rest[0], batch * first_slots * n);
    buffer_scores = sized("buffer_scores", rest[1], batch * first_slots);
    buffer_ids = sized("buffer_ids", rest[2], batch * first_slots, ScalarType::Long);
    relevant = sized("relevant", rest[3], batch * relevant_size * n);
    scores = sized("scores", rest[4], batch * relevant_size);
    ids = sized("ids", rest[5], batch * relevant_size, ScalarType::Long);
    time = sized("time", rest[6], batch, ScalarType::Long);
    if (given_.reset) reset = sized("reset", *given_.reset, steps * batch, ScalarType::Bool);
    if (given_.scores) given = sized("scores", *given_.scores, steps * batch);
    const Tensors all_params = given_.params.value_or(Tensors());
    STD_TORCH_CHECK(all_params.size() == size_t(cell.params), "relevancy_recurrence: wrong number of `params`");
    for (const Tensor& x : all_params) params.push_back(sized("params", x, n));

    rows = {steps, batch, n, nullptr, nullptr, read<bool>(reset)};
    set_rows(layout, s0, "relevancy_recurrence", rows.offsets, rows.lengths);
    stacked = empty(V, {(cell.gates + 1) * n, n});
    copy(part(stacked, 0, 0, cell.gates * n), V);
    copy(part(stacked, 0, cell.gates * n, n), W_a);
    plan = plan_relevancy(
        {cuda::facts_of_current(stream), cell_id, of_caller, {steps, batch, n, buffer_size, relevant_size, slots}});
  }

  // Checks the dtype and size of x, and makes it contiguous.
  Tensor sized(const char* name, const Tensor& x, int64_t elements, ScalarType wanted = dtype) const {
    STD_TORCH_CHECK(x.scalar_type() == wanted && x.numel() == elements, "relevancy_recurrence: `", name,
                    "` is of another dtype or size than the call needs");
    return dense(x);
  }

  // Runs all steps in one kernel that keeps the weights; `transposed` says how it takes packed weights.
  template <class Problem>
  void start_resident(const Resident& resident, Problem& problem, bool transposed) const {
    problem.V = read<T>(V);
    problem.W_a = read<T>(W_a);
    problem.U_a = read<T>(U_a);
    Tensor packed;
    if (resident.pack) {
      packed = made({resident.packed_floats()});
      problem.packed = write<float>(packed);
      const Pack pack{hidden, transposed, problem.V, problem.W_a, problem.U_a, cell.gates, problem.packed};
      cuda::start(*resident.pack, {resident.pack_blocks}, &pack, stream);
    }
    start(resident, problem, layout.batch);
  }

  // Whether no event leaves the buffer. Then alpha, which would grow with T^2, is recomputed instead of saved.
  bool keeps_all() const { return slots == first_slots + rows.count; }

  static Tensor copied(const Tensor& from) {
    const Tensor to = empty_of_sizes(from, from);
    copy(to, from);
    return to;
  }
  Tensor made(std::initializer_list<int64_t> sizes, ScalarType type = dtype) const { return empty(s0, sizes, type); }
  Tensor cleared(std::initializer_list<int64_t> sizes) const { return zeros(s0, sizes, dtype); }
  // An empty tensor (rows, columns), in the caller's shape.
  Tensor rows_of(int64_t columns, ScalarType type = dtype) const {
    if (layout.packed()) return made({total, columns}, type);
    return made({rows.count, rows.batch, columns}, type);
  }
};

}  // namespace rnnkern::relevancy
