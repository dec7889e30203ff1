// The C++ types of PyTorch and the few ATen operators that drivers call. No other header refers to them directly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace rnnkern {

using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;
using OptionalTensors = std::optional<Tensors>;

// Parses "float32", "float64", "bfloat16" or "float16".
ScalarType scalar_type(const std::string& name);

// Reports a failed allocation with the message that the C shim of PyTorch 2.13 provides and that of 2.11 loses.
[[noreturn]] void fail_to_allocate(torch::headeronly::IntHeaderOnlyArrayRef sizes);

// An uninitialized contiguous tensor on the device of `like`, by default with its dtype. PyTorch's new_empty goes
// through the boxed dispatcher, which takes as long as a small kernel.
inline Tensor empty_of(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                       std::optional<ScalarType> dtype) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t k = sizes.size(); k-- > 1;) strides[k - 1] = strides[k] * (sizes[k] > 1 ? sizes[k] : 1);
  int32_t device;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle made;
  const AOTITorchError failed = aoti_torch_empty_strided(
      int64_t(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype.value_or(like.scalar_type()))), device,
      like.get_device_index(), &made);
  if (failed) fail_to_allocate(sizes);
  return Tensor(made);
}

inline Tensor empty(const Tensor& like, const std::vector<int64_t>& sizes, std::optional<ScalarType> dtype = {}) {
  return empty_of(like, {sizes.data(), sizes.size()}, dtype);
}

// An uninitialized tensor with the sizes of `x`.
inline Tensor empty_of_sizes(const Tensor& like, const Tensor& x, std::optional<ScalarType> dtype = {}) {
  return empty_of(like, x.sizes(), dtype);
}

// The sizes of `x` with the last `dropped` ones replaced by `last`.
inline std::vector<int64_t> sizes_with(const Tensor& x, int64_t dropped, std::initializer_list<int64_t> last) {
  const auto sizes = x.sizes();
  std::vector<int64_t> found(sizes.begin(), sizes.end() - dropped);
  found.insert(found.end(), last);
  return found;
}

inline Tensor empty_int64(const Tensor& like, int64_t size) { return empty_of(like, {&size, 1}, ScalarType::Long); }

inline Tensor zeros(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return torch::stable::new_zeros(like, {sizes.begin(), sizes.size()}, dtype);
}

inline Tensor shaped(const Tensor& x, std::initializer_list<int64_t> sizes) {
  return torch::stable::view(x, {sizes.begin(), sizes.size()});
}

inline Tensor part(Tensor x, int64_t dim, int64_t start, int64_t length) {
  return torch::stable::narrow(x, dim, start, length);
}

inline Tensor at_index(const Tensor& x, int64_t dim, int64_t index) { return torch::stable::select(x, dim, index); }

inline Tensor transposed(const Tensor& x, int64_t dim0, int64_t dim1) {
  return torch::stable::transpose(x, dim0, dim1);
}

inline void fill_zero(Tensor x) { torch::stable::zero_(x); }

// Converts to the dtype of `to`. Never synchronizes with the device.
inline void copy(Tensor to, const Tensor& from) { torch::stable::copy_(to, from, true); }

// Returns x itself if it is contiguous.
inline Tensor dense(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor made = empty_of_sizes(x, x);
  copy(made, x);
  return made;
}

// out = a b, for matrices or batches of matrices.
inline void product(const Tensor& out, const Tensor& a, const Tensor& b) {
  using torch::stable::detail::from;
  StableIValue stack[] = {from(a), from(b), from(out)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher(a.dim() == 2 ? "aten::mm" : "aten::bmm", "out", stack, TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor sum(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype = {}) {
  return torch::stable::sum(x, torch::headeronly::IntHeaderOnlyArrayRef(&dim, 1), false, dtype);
}

// Calls f(double()) or f(float()), depending on the dtype of x.
template <class F>
auto by_float_or_double(const Tensor& x, const char* must, F f) {
  if (x.scalar_type() == ScalarType::Double) return f(double());
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, must);
  return f(float());
}

// The value of torch.get_num_threads().
inline int64_t get_num_threads() { return torch::stable::get_num_threads(); }

template <class T>
const T* read(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

template <class T>
const T* read(const OptionalTensor& x) {
  return x ? read<T>(*x) : nullptr;
}

template <class T>
T* write(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

template <class T>
T* write(const OptionalTensor& x) {
  return x ? write<T>(*x) : nullptr;
}

}  // namespace rnnkern
