// The recurrence's operators. Schemas are in registration.cpp, documentation in rnnkern/ops/_recurrence/recurrence.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Zoneout rates, one for each state tensor; nullopt means zeros.
using Rates = std::optional<std::vector<double>>;

// The properties of every built-in cell (cells/cell.h) as JSON, in the order of cells/list.h.
std::string recurrence_cells();

// Returns [h, *final state, *cell states, saved]: the last two only when training, and `saved` only if the gates are
// kept and the cell saves any. With `weight_ih`, `u` is the input x, and u = x W^T + bias_ih is never materialized.
Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, OptionalTensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates,
                       OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout, double dropout,
                       OptionalTensor seed, OptionalTensor keep, int64_t parts);

// Returns [du, dR, dbias, *dstate, *dparams], with `weight_ih` [dx, dR, dbias, *dstate, *dparams, dW, dbias_ih].
// Gradients that are not needed are empty tensors. With `needs_h` one more result follows, not on a CUDA device: the
// gradient of h of each step through all later steps, shaped like h.
Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                bool needs_u, bool needs_weight_ih, bool needs_bias_ih, Rates zoneout, double dropout,
                                OptionalTensor seed, OptionalTensor keep, bool needs_h, bool needs_params,
                                int64_t parts);

// The forward mode (rnnkern/ops/_recurrence/tangent.py): `h` and `saved`, with the gates, are results of the training
// forward. If h is projected, the only tensor of `params_tangent` is the tangent that is added to h, (S, rows, P).
// Returns [h_tangent, *tangents of the final state, log_r, lost].
Tensors recurrence_tangent_cpu(std::string cell, Tensor u, Tensor R, Tensors state, Tensors tangents,
                               OptionalTensor bias, OptionalTensors params, OptionalTensor batch_sizes,
                               OptionalTensor reset, bool reverse, Tensor h, Tensors saved, OptionalTensor u_tangent,
                               OptionalTensor r_tangent, OptionalTensor bias_tangent, OptionalTensors params_tangent,
                               int64_t every, bool sequence, Rates zoneout, double dropout, OptionalTensor seed,
                               OptionalTensor keep);

// Two recurrences of equal sizes at once: both directions of a layer over one input, or, if `stacked`, a layer and the
// layer above it, which reads its h. Lists contain the tensors of the first and then those of the second; results are
// those of `recurrence` and `recurrence_backward` for the first and then for the second. If stacked, the only gradient
// of the first h comes from the layer above.
Tensors recurrence_pair_cpu(std::string cell, bool stacked, Tensor u, Tensors R, Tensors state, OptionalTensors bias,
                            OptionalTensors params, OptionalTensor batch_sizes, OptionalTensors reset, bool training,
                            bool save_gates, Tensors weight_ih, OptionalTensors bias_ih, int64_t parts);
Tensors recurrence_pair_backward_cpu(std::string cell, bool stacked, OptionalTensor grad_h,
                                     OptionalTensor grad_h_second, Tensors grad_state, Tensor u, Tensors R,
                                     Tensors state, OptionalTensors bias, OptionalTensors params,
                                     OptionalTensor batch_sizes, OptionalTensors reset, Tensors h, Tensors saved,
                                     Tensors weight_ih, OptionalTensors bias_ih, bool needs_u, bool needs_R,
                                     bool needs_bias, bool needs_weight_ih, bool needs_bias_ih, int64_t parts);

// `recurrence` and its backward on a CUDA device. With 16-bit tensors, cell states and saved gates are float32. If
// `saved` has no gates, the backward recomputes them. `weight_ih` raises an error, because the caller projects the
// input.
Tensors recurrence_cuda(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias,
                        OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                        bool training, bool save_gates, OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout,
                        double dropout, OptionalTensor seed, OptionalTensor keep, int64_t parts);
Tensors recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                 Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                 OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                 bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                 bool needs_u, bool needs_weight_ih, bool needs_bias_ih, Rates zoneout, double dropout,
                                 OptionalTensor seed, OptionalTensor keep, bool needs_h, bool needs_params,
                                 int64_t parts);

// The launch plan of a call on a CUDA device, as JSON. Arguments: sizes (T, B, H, K); properties of the device
// (cuda/plan.h), of which the numbers of clusters may be omitted; whether there is zoneout or dropout; and whether TF32
// is allowed.
std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy, bool tf32);

}  // namespace rnnkern
