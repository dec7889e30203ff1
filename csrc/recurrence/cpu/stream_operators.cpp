// Streams: a call computes the next step of one or more stacked layers. The weights are packed once, for all streams of
// the layers; each stream has its own state and workspace.
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
  int64_t workspace;  // elements
};

// A pack and a stream are tensors of the arithmetic's type that begin with this head. A pack goes on with its layers
// and what they point to, a stream with the states, layer by layer and without gaps (rnnkern/ops/_recurrence/stream.py
// reads and writes them there), its own copy of the layers, and their workspaces.
struct Head {
  static constexpr uint64_t of_pack = 0x6D61657274736B71, of_stream = 0x6D61657274736B72;
  uint64_t kind;
  const void* self;  // pointers are to the tensor's own memory and the pack, so a copy is neither
  const void* pack;  // of a stream
  void* layers;      // StreamLayer<T>[count]
  int64_t count, batch, inputs, width;
  int team;
  ScalarType dtype;  // of input and output
};

constexpr int64_t head_bytes = 128;
static_assert(sizeof(Head) <= head_bytes);

// Hands out the memory of a tensor. With a null base it only computes the size.
struct Memory {
  uintptr_t base;
  int64_t used = head_bytes;

  template <class S>
  S* take(int64_t count, int64_t alignment = 64) {
    used = (used + alignment - 1) / alignment * alignment + int64_t(sizeof(S)) * count;
    return reinterpret_cast<S*>(base + used - int64_t(sizeof(S)) * count);
  }
};

// Allocates what lay_out(memory) takes, lets it fill the memory, and writes the head.
template <class T, class LayOut>
Tensor made_by(LayOut lay_out, Head head, const Tensor& like) {
  Memory sizes{0};
  lay_out(sizes);
  const Tensor made = empty(like, {(sizes.used + 63) / int64_t(sizeof(T))}, arithmetic<T>);
  Memory memory{reinterpret_cast<uintptr_t>(write<void>(made))};
  head.layers = lay_out(memory);
  head.self = reinterpret_cast<void*>(memory.base);
  *reinterpret_cast<Head*>(memory.base) = head;
  return made;
}

// A tensor's head, after checks that it is what it should be.
const Head& head_of(const Tensor& x, uint64_t kind, const char* name, const char* maker) {
  const ScalarType dtype = x.scalar_type();
  const bool fits = (dtype == ScalarType::Float || dtype == ScalarType::Double) && x.is_contiguous() &&
                    x.numel() * int64_t(x.element_size()) >= head_bytes;
  const Head* const head = read<Head>(x);
  STD_TORCH_CHECK(fits && head->kind == kind && head->self == head, "recurrence: `", name, "` must be what ", maker,
                  "() returned, not a copy of it");
  return *head;
}

template <class T>
StreamLayer<T>* layers_of(const Head& head) {
  return static_cast<StreamLayer<T>*>(head.layers);
}

template <class T>
int64_t state_size(const Forward<T>& p, int s) {
  return p.steps.batch * (s ? p.weights.hidden : p.weights.width);
}

template <class T>
Tensor make_pack(const std::vector<Call>& calls, const Head& head) {
  return made_by<T>(
      [&](Memory& memory) {
        auto* const layers = memory.take<StreamLayer<T>>(head.count);
        for (const Call& call : calls) {
          StreamLayer<T> layer{};
          Forward<T>& p = layer.problem;
          set_common<T>(p, call);
          p.split_hidden = true;
          p.layout_team = head.team;
          p.h = {nullptr, storage(call.dtype)};
          auto keep = [&](const T*& values, int64_t count) {
            if (!values) return;
            T* const kept = memory.take<T>(count);
            if (memory.base) std::memcpy(kept, values, sizeof(T) * count);
            values = kept;
          };
          const Kernels<T> all = kernels<T>(call);
          p.packs = memory.take<T>(all.packs(p, head.team));
          layer.kernel = all.forward;
          layer.workspace = layer.kernel.workspace(p, head.team);
          if (memory.base) {  // one step packs; its results go nowhere
            const Tensor workspace = empty(call.u, {layer.workspace}, arithmetic<T>);
            const Tensor h = empty(call.u, {head.batch, call.width});
            p.workspace = write<T>(workspace);
            p.h = write_rows<T>(h);
            for (int s = 0; s < call.cell.states; ++s)
              p.final_state[s] = const_cast<T*>(p.state[s] = read<T>(call.state[s]));
            in_team(1, p, layer.kernel.run);
            p.packed = true;
          }
          keep(p.weights.R.bias, call.cell.recurrent * call.hidden);
          for (size_t i = 0; i < call.params.size() && !call.cell.projected; ++i)
            keep(p.weights.params[i], call.params[i].numel());
          if (memory.base) layers[&call - calls.data()] = layer;
        }
        return layers;
      },
      head, calls[0].u);
}

template <class T>
Tensor make_stream(Head head, const Tensor& pack) {
  const StreamLayer<T>* const packed = layers_of<T>(head);
  head.kind = Head::of_stream;
  head.pack = head.self;
  const Tensor stream = made_by<T>(
      [&](Memory& memory) {
        std::vector<StreamLayer<T>> layers(packed, packed + head.count);
        for (auto& [p, kernel, workspace] : layers)
          for (int s = 0; s < p.cell.states; ++s)
            p.state[s] = p.final_state[s] = memory.take<T>(state_size(p, s), sizeof(T));
        auto* const made = memory.take<StreamLayer<T>>(head.count);
        Rows<T> below;
        for (auto& [p, kernel, workspace] : layers) {
          if (below) p.x = below;
          p.workspace = memory.take<T>(workspace);
          p.h = below = {memory.take<T>(head.batch * p.weights.width), p.h.storage};
        }
        if (memory.base) std::copy(layers.begin(), layers.end(), made);
        return made;
      },
      head, pack);
  for (int64_t l = 0; l < head.count; ++l) {
    const Forward<T>& p = layers_of<T>(*read<Head>(stream))[l].problem;
    for (int s = 0; s < p.cell.states; ++s) std::memset(p.final_state[s], 0, sizeof(T) * state_size(p, s));
  }
  return stream;
}

// Computes the next steps, x (steps, batch, inputs) -> y (steps, batch, width).
template <class T>
void run_steps(const Head& head, Rows<T> x, Rows<T> y, int64_t steps) {
  StreamLayer<T>* const layers = layers_of<T>(head);
  const int threads = head.team == 1 ? 1 : at_most_all(head.team);
  for (int64_t t = 0; t < steps; ++t) {
    layers[0].problem.x = x.from(t * head.batch * head.inputs);
    layers[head.count - 1].problem.h = y.from(t * head.batch * head.width);
    for (int64_t l = 0; l < head.count; ++l) in_team(threads, layers[l].problem, layers[l].kernel.run);
  }
}

Tensor recurrence_pack_cpu(std::string cell, Tensor x, Tensors R, Tensors state, OptionalTensors bias,
                           OptionalTensors params, Tensors weight_ih, OptionalTensors bias_ih, Rates zoneout,
                           int64_t parts) {
  const size_t count = R.size();
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == 1 && x.size(1) > 0, "recurrence_pack: `x` must be (1, B, I), B > 0");
  STD_TORCH_CHECK(count > 0 && weight_ih.size() == count, "recurrence_pack: `R` and `weight_ih` need one per layer");
  auto of_layer = [&](const Tensors& all, size_t l, const char* name) {
    STD_TORCH_CHECK(all.size() % count == 0, "recurrence_pack: `", name, "` needs equally many for each layer");
    const size_t each = all.size() / count;
    return Tensors(all.begin() + l * each, all.begin() + (l + 1) * each);
  };
  auto only = [&](const OptionalTensors& all, size_t l, const char* name) {
    if (!all || all->empty()) return OptionalTensor();
    STD_TORCH_CHECK(all->size() == count, "recurrence_pack: `", name, "` needs one per layer");
    return OptionalTensor((*all)[l]);
  };
  std::vector<Call> calls;
  Head head{Head::of_pack, nullptr, nullptr, nullptr, int64_t(count), x.size(1), x.size(2), 0, 1, x.scalar_type()};
  for (size_t l = 0; l < count; ++l) {
    const Tensor u = l ? empty(x, {1, head.batch, calls.back().width}) : dense(x);
    Tensors states;  // copies, because the step that packs writes to them
    for (const Tensor& s : of_layer(state, l, "state")) copy(states.emplace_back(empty_of_sizes(s, s)), s);
    calls.emplace_back(cell, u, R[l], states, only(bias, l, "bias"), of_layer(params.value_or(Tensors()), l, "params"),
                       OptionalTensor(), OptionalTensor(), false, weight_ih[l], only(bias_ih, l, "bias_ih"),
                       simd_vector_bytes());
    STD_TORCH_CHECK(calls[l].steps.batch == head.batch, "recurrence_pack: `state` must have B = ", head.batch, " rows");
    calls[l].set_noise(zoneout, 0, {});
    prepare(calls[l], "forward", parts);
    head.team = std::max(head.team, team_size(calls[l]));
  }
  head.width = calls.back().width;
  return by_arithmetic(calls[0], [&](auto zero) { return make_pack<decltype(zero)>(calls, head); });
}

Tensor recurrence_stream_cpu(Tensor pack) {
  const Head& head = head_of(pack, Head::of_pack, "pack", "recurrence_pack");
  return head.dtype == ScalarType::Double ? make_stream<double>(head, pack) : make_stream<float>(head, pack);
}

// x is (B, I), or (T, B, I): several steps.
Tensor recurrence_stream_step_cpu(Tensor stream, Tensor pack, Tensor x) {
  const Head& head = head_of(stream, Head::of_stream, "stream", "recurrence_stream");
  STD_TORCH_CHECK(head.pack == read<void>(pack), "recurrence_stream_step: `pack` must be that of the stream");
  const int64_t rank = x.dim();
  STD_TORCH_CHECK((rank == 2 || rank == 3) && x.size(rank - 2) == head.batch && x.size(rank - 1) == head.inputs,
                  "recurrence_stream_step: `x` must be (B, I) = (", head.batch, ", ", head.inputs, "), or (T, B, I)");
  Call::check_dtype("x", x, head.dtype);
  const Tensor rows = dense(x);
  const int64_t steps = rank == 3 ? x.size(0) : 1, sizes[] = {steps, head.batch, head.width};
  const Tensor y = empty_of(x, {sizes + 3 - rank, size_t(rank)}, head.dtype);
  if (head.dtype == ScalarType::Double)
    run_steps<double>(head, read_rows<double>(rows), write_rows<double>(y), steps);
  else
    run_steps<float>(head, read_rows<float>(rows), write_rows<float>(y), steps);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("recurrence_pack", TORCH_BOX(&recurrence_pack_cpu));
  m.impl("recurrence_stream", TORCH_BOX(&recurrence_stream_cpu));
  m.impl("recurrence_stream_step", TORCH_BOX(&recurrence_stream_step_cpu));
}

}  // namespace rnnkern
