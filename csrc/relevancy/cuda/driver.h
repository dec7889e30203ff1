// Shared by the CUDA drivers of both directions: the checked arguments, in the form that kernels take.
#pragma once

#include <type_traits>

#include "cuda/driver.h"
#include "relevancy/cuda/plan.h"

namespace rnnkern::relevancy {

// `Checked` is Call or BackwardCall.
template <class T, class Checked>
struct Driver : cuda::Driver, Checked, MemorySizes {
  static constexpr ScalarType dtype = std::is_same_v<T, double> ? ScalarType::Double : ScalarType::Float;
  using Checked::cell, Checked::cell_id, Checked::first, Checked::layout, Checked::sizes;

  const KernelTable& kernels;
  Rows rows;                                                                            // as in `layout`, on the device
  int64_t hidden = sizes.hidden, total = layout.rows, first_slots = sizes.first_slots;  // total: number of rows
  Tensor stacked;                                                                       // V over W_a, ((G+1)*n, n)

  // `x` is an argument that has the rows.
  template <class... Given>
  Driver(const Tensor& x, const Arguments& given, const Given&... more)
      : cuda::Driver(x),
        Checked(given, x, more...),
        MemorySizes{sizes.slots, sizes.relevant, sizes.buffer_size},
        kernels(table_of<T>(cell_id)),
        rows{sizes.steps, sizes.batch, sizes.hidden, nullptr, nullptr, sizes.reset} {
    const ScalarType of_caller = scalar_type(given.dtype);
    require((of_caller == ScalarType::Double) == (dtype == ScalarType::Double), "`dtype`");
    require(!sizes.joined() && sizes.heads == 1, "`weights`");
    require(sizes.steps < INT32_MAX / 2 && first_slots + relevant_size < INT32_MAX / 2, "a size");
    set_rows(layout, x, "relevancy_recurrence", rows.offsets, rows.lengths);
    const int64_t n = hidden;
    stacked = made({(cell.gates + 1) * n, n});
    copy(part(stacked, 0, 0, cell.gates * n), Checked::V);
    copy(part(stacked, 0, cell.gates * n, n), Checked::W_a);
    plan = plan_relevancy({cuda::facts_of_current(stream),
                           cell_id,
                           of_caller,
                           {sizes.steps, sizes.batch, n, buffer_size, relevant_size, slots}});
  }

  // Runs all steps in one kernel that keeps the weights; `transposed` says how it takes packed weights.
  template <class Problem>
  void start_resident(const Resident& resident, Problem& problem, bool transposed) const {
    problem.V = read<T>(Checked::V);
    problem.W_a = read<T>(Checked::W_a);
    problem.U_a = read<T>(Checked::U_a);
    Tensor packed;
    if (resident.pack) {
      packed = made({resident.packed_floats()});
      problem.packed = write<float>(packed);
      const Pack pack{hidden, transposed, problem.V, problem.W_a, problem.U_a, cell.gates, problem.packed};
      cuda::start(*resident.pack, {resident.pack_blocks}, &pack, stream);
    }
    start(resident, problem, layout.batch);
  }

  Tensor made(std::initializer_list<int64_t> sizes, ScalarType type = dtype) const {
    return empty(first.s, sizes, type);
  }
  Tensor cleared(std::initializer_list<int64_t> sizes) const { return zeros(first.s, sizes, dtype); }
};

}  // namespace rnnkern::relevancy
