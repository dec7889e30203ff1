// The recurrence's operators; schemas in registration.cpp, meaning in rnnkern/ops/recurrence.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// The facts of every cell (cells/cell.h) as JSON, in the order of cells/list.h.
std::string recurrence_cells();

// [h, *final state, *cell states, saved]; the last two groups when training, and `saved` when the gates are to be kept
// and the cell saves any.
Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, Tensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates);

// [du, dR, dbias, *dstate, *dparams]; dR and dbias empty where they are not needed.
Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias);

// One step without its product: the new state, or when `prepare` the operand of the second product. r is (B, G*H).
Tensors recurrence_pointwise(std::string cell, Tensor u, Tensor r, Tensors state, Tensors params, bool prepare);

}  // namespace rnnkern
