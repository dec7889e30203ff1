// The recurrence's operators; schemas in registration.cpp, meaning in rnnkern/ops/_recurrence/recurrence.py.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Of zoneout, one for each of the state's tensors; none is as good as zeros.
using Rates = std::optional<std::vector<double>>;

// The facts of every cell (cells/cell.h) as JSON, in the order of cells/list.h.
std::string recurrence_cells();

// [h, *final state, *cell states, saved]; the last two groups when training, and `saved` when the gates are to be kept
// and the cell saves any. With `weight_ih`, `u` is the input x, and u = x W^T + bias_ih is never there as a whole.
Tensors recurrence_cpu(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias, OptionalTensors params,
                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool training, bool save_gates,
                       OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout, double dropout,
                       OptionalTensor seed);

// [du, dR, dbias, *dstate, *dparams], with `weight_ih` [dx, dR, dbias, *dstate, *dparams, dW, dbias_ih]; empty where
// they are not needed.
Tensors recurrence_backward_cpu(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                bool needs_u, bool needs_weight_ih, bool needs_bias_ih, Rates zoneout, double dropout,
                                OptionalTensor seed);

// Two recurrences of equal sizes at once: both directions of a layer, over one input, or, `stacked`, a layer and the
// one above it, which reads its h. Lists hold the first one's tensors and then as many of the second; results are those
// of `recurrence` and `recurrence_backward` for the one and then for the other. Stacked the first one's h has no
// gradient but what comes from above.
Tensors recurrence_pair_cpu(std::string cell, bool stacked, Tensor u, Tensors R, Tensors state, OptionalTensors bias,
                            OptionalTensors params, OptionalTensor batch_sizes, OptionalTensors reset, bool training,
                            bool save_gates, Tensors weight_ih, OptionalTensors bias_ih);
Tensors recurrence_pair_backward_cpu(std::string cell, bool stacked, OptionalTensor grad_h,
                                     OptionalTensor grad_h_second, Tensors grad_state, Tensor u, Tensors R,
                                     Tensors state, OptionalTensors bias, OptionalTensors params,
                                     OptionalTensor batch_sizes, OptionalTensors reset, Tensors h, Tensors saved,
                                     Tensors weight_ih, OptionalTensors bias_ih, bool needs_u, bool needs_R,
                                     bool needs_bias, bool needs_weight_ih, bool needs_bias_ih);

// The same as the first two on a CUDA device. Cell states and saved gates are float32 where tensors are stored in 16
// bits; `saved` without gates has them computed again. `weight_ih` is refused: the caller projects.
Tensors recurrence_cuda(std::string cell, Tensor u, Tensor R, Tensors state, OptionalTensor bias,
                        OptionalTensors params, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                        bool training, bool save_gates, OptionalTensor weight_ih, OptionalTensor bias_ih, Rates zoneout,
                        double dropout, OptionalTensor seed);
Tensors recurrence_backward_cuda(std::string cell, OptionalTensor grad_h, Tensors grad_state, Tensor u, Tensor R,
                                 Tensors state, OptionalTensor bias, Tensors params, OptionalTensor batch_sizes,
                                 OptionalTensor reset, bool reverse, OptionalTensor grad_scale, Tensor h, Tensors saved,
                                 bool needs_R, bool needs_bias, OptionalTensor weight_ih, OptionalTensor bias_ih,
                                 bool needs_u, bool needs_weight_ih, bool needs_bias_ih, Rates zoneout, double dropout,
                                 OptionalTensor seed);

// The launch plan of a call on a CUDA device, as JSON: sizes (T, B, H, K), facts as above, of which those of clusters
// may be left out where there are none, whether there is zoneout or dropout, whether TF32 is allowed, and rows to go by
// in place of those of measured_table.h, as measured.h has them.
std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy, bool tf32, std::string measured);

}  // namespace rnnkern
