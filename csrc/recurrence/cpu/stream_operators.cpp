// Streams: a call computes the next step of one or more stacked layers, whose weights are already packed and whose state
// stays in the memory of the kernel.
#include <algorithm>
#include <cstring>

#include "recurrence/cpu/call.h"
#include "recurrence/cpu/team.h"

namespace rnnkern {
namespace {

template <class T>
struct StreamLayer {
  Forward<T> problem;
  Kernel<Forward<T>> kernel;
};

// A stream is one tensor of the arithmetic's type, which begins with this head. The states follow, layer by layer and
// without gaps (rnnkern/nn/stream.py reads and writes them there), then all that the layers point to.
struct StreamHead {
  static constexpr uint64_t known = 0x6D61657274736B72;
  uint64_t kind;
  const void* self;  // pointers are to the tensor's own memory, so a copy is not a stream
  void* layers;      // StreamLayer<T>[count]
  int64_t count, batch, inputs, width;
  int team;
  ScalarType dtype;  // of input and output
};

constexpr int64_t head_bytes = 128;
static_assert(sizeof(StreamHead) <= head_bytes);

// Lays out a stream at `base` and returns its size in bytes. With a null base it only computes the size.
template <class T>
int64_t lay_out(uintptr_t base, const std::vector<Call>& calls, const StreamHead& head) {
  int64_t used = head_bytes;
  auto take = [&](int64_t bytes, int64_t alignment = 64) {
    used = (used + alignment - 1) / alignment * alignment + bytes;
    return reinterpret_cast<void*>(base + used - bytes);
  };
  std::vector<T*> states;
  for (const Call& call : calls)
    for (int s = 0; s < call.cell.states; ++s)
      states.push_back(static_cast<T*>(take(sizeof(T) * head.batch * (s ? call.hidden : call.width), 1)));
  StreamLayer<T>* const layers = static_cast<StreamLayer<T>*>(take(sizeof(StreamLayer<T>) * calls.size()));
  T* const* state = states.data();
  Rows<T> below;
  for (size_t l = 0; l < calls.size(); ++l) {
    const Call& call = calls[l];
    StreamLayer<T> layer{};
    Forward<T>& p = layer.problem;
    set_common<T>(p, call);
    p.split_hidden = true;
    p.layout_team = head.team;
    for (int s = 0; s < call.cell.states; ++s) p.state[s] = p.final_state[s] = *state++;
    auto keep = [&](const T*& values, int64_t elements) {
      if (!values) return;
      void* const kept = take(sizeof(T) * elements);
      if (base) std::memcpy(kept, values, sizeof(T) * elements);
      values = static_cast<const T*>(kept);
    };
    keep(p.weights.R.bias, call.cell.recurrent * call.hidden);
    for (size_t i = 0; i < call.params.size() && !call.cell.projected; ++i)
      keep(p.weights.params[i], call.params[i].numel());
    if (l) p.x = below;
    const int64_t bytes = call.steps.batch * call.width * int64_t(call.u.element_size());
    p.h = below = {take(l + 1 < calls.size() ? bytes : 0), storage(call.dtype)};
    layer.kernel = kernels<T>(call).forward;
    p.workspace = static_cast<T*>(take(sizeof(T) * layer.kernel.workspace(p, head.team)));
    if (base) layers[l] = layer;
  }
  if (base) {
    StreamHead* const made = reinterpret_cast<StreamHead*>(base);
    *made = head;
    made->self = made;
    made->layers = layers;
  }
  return used;
}

// Computes steps x (steps, batch, inputs) -> y (steps, batch, width).
template <class T>
void run_steps(const StreamHead& head, Rows<T> x, Rows<T> y, int64_t steps) {
  StreamLayer<T>* const layers = static_cast<StreamLayer<T>*>(head.layers);
  const int threads = head.team == 1 ? 1 : at_most_all(head.team);
  for (int64_t t = 0; t < steps; ++t) {
    layers[0].problem.x = x.from(t * head.batch * head.inputs);
    layers[head.count - 1].problem.h = y.from(t * head.batch * head.width);
    for (int64_t l = 0; l < head.count; ++l) in_team(threads, layers[l].problem, layers[l].kernel.run);
  }
}

template <class T>
Tensor make_stream(std::vector<Call>& calls, const StreamHead& head) {
  const Call& first = calls.front();
  const Tensor stream = empty(first.u, {(lay_out<T>(0, calls, head) + 63) / int64_t(sizeof(T))}, arithmetic<T>);
  const uintptr_t base = reinterpret_cast<uintptr_t>(write<void>(stream));
  lay_out<T>(base, calls, head);
  // The first step packs the weights. Its results are discarded.
  StreamHead& made = *reinterpret_cast<StreamHead*>(base);
  const Tensor x = zeros(first.u, {head.batch, head.inputs}, first.dtype);
  const Tensor y = empty(first.u, {head.batch, head.width});
  run_steps<T>(made, read_rows<T>(x), write_rows<T>(y), 1);
  StreamLayer<T>* const layers = static_cast<StreamLayer<T>*>(made.layers);
  for (size_t l = 0; l < calls.size(); ++l) {
    Forward<T>& p = layers[l].problem;
    p.packed = true;
    for (int s = 0; s < calls[l].cell.states; ++s)
      std::memset(p.final_state[s], 0, sizeof(T) * head.batch * (s ? calls[l].hidden : calls[l].width));
  }
  return stream;
}

Tensor recurrence_stream_cpu(std::string cell, Tensor x, Tensors R, Tensors state, OptionalTensors bias,
                             OptionalTensors params, Tensors weight_ih, OptionalTensors bias_ih, Rates zoneout,
                             int64_t parts) {
  const size_t count = R.size();
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.size(1) > 0, "recurrence_stream: `x` must be (1, B, I), B > 0");
  STD_TORCH_CHECK(count > 0 && weight_ih.size() == count, "recurrence_stream: `R` and `weight_ih` need one per layer");
  auto of_layer = [&](const Tensors& all, size_t l, const char* name) {
    STD_TORCH_CHECK(all.size() % count == 0, "recurrence_stream: `", name, "` needs equally many for each layer");
    const size_t each = all.size() / count;
    return Tensors(all.begin() + l * each, all.begin() + (l + 1) * each);
  };
  auto only = [&](const OptionalTensors& all, size_t l, const char* name) {
    if (!all || all->empty()) return OptionalTensor();
    STD_TORCH_CHECK(all->size() == count, "recurrence_stream: `", name, "` needs one per layer");
    return OptionalTensor((*all)[l]);
  };
  std::vector<Call> calls;
  for (size_t l = 0; l < count; ++l) {
    const Tensor u = l ? empty(x, {1, x.size(1), calls.back().width}) : dense(x);
    calls.emplace_back(cell, u, R[l], of_layer(state, l, "state"), only(bias, l, "bias"),
                       of_layer(params.value_or(Tensors()), l, "params"), OptionalTensor(), OptionalTensor(), false,
                       weight_ih[l], only(bias_ih, l, "bias_ih"), simd_vector_bytes());
    calls.back().set_noise(zoneout, 0, {});
    prepare(calls.back(), "forward", parts);
  }
  StreamHead head{StreamHead::known, nullptr, nullptr, int64_t(count), x.size(1), x.size(2), calls.back().width, 1,
                  calls[0].dtype};
  for (const Call& call : calls) head.team = std::max(head.team, team_size(call));
  return by_arithmetic(calls[0], [&](auto zero) { return make_stream<decltype(zero)>(calls, head); });
}

// x is (B, I), or (T, B, I): several steps.
Tensor recurrence_stream_step_cpu(Tensor stream, Tensor x) {
  const bool wide = stream.scalar_type() == ScalarType::Double;
  const StreamHead& head = *read<StreamHead>(stream);
  STD_TORCH_CHECK((wide || stream.scalar_type() == ScalarType::Float) && stream.is_contiguous() &&
                      stream.numel() * int64_t(stream.element_size()) >= head_bytes &&
                      head.kind == StreamHead::known && head.self == &head,
                  "recurrence_stream_step: `stream` must be what recurrence_stream() returned, not a copy of it");
  const int64_t rank = x.dim();
  STD_TORCH_CHECK(
      (rank == 2 || rank == 3) && x.size(rank - 2) == head.batch && x.size(rank - 1) == head.inputs,
      "recurrence_stream_step: `x` must be (B, I) = (", head.batch, ", ", head.inputs, "), or (T, B, I)");
  STD_TORCH_CHECK(x.scalar_type() == head.dtype, "recurrence_stream_step: `x` must have the dtype of the weights");
  const Tensor rows = dense(x);
  int64_t sizes[] = {rank == 3 ? x.size(0) : head.batch, rank == 3 ? head.batch : head.width, head.width};
  const Tensor y = empty_of(x, {sizes, size_t(rank)}, head.dtype);
  const int64_t steps = rank == 3 ? sizes[0] : 1;
  wide ? run_steps<double>(head, read_rows<double>(rows), write_rows<double>(y), steps)
       : run_steps<float>(head, read_rows<float>(rows), write_rows<float>(y), steps);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("recurrence_stream", TORCH_BOX(&recurrence_stream_cpu));
  m.impl("recurrence_stream_step", TORCH_BOX(&recurrence_stream_step_cpu));
}

}  // namespace rnnkern
