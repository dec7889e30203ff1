// The forward mode of the recurrence at one SIMD level.
#include "recurrence/cpu/includes.h"
#include "recurrence/tangent.h"

#include "common/simd_target.h"

#include "recurrence/cpu/tangent.h"

namespace rnnkern {

template <class T, SimdLevel>
Kernel<Tangent<T>> tangent_at() {
  return {[](const Tangent<T>& p, ThreadContext me) { TangentPass<T>(p, me).run(); }, tangent_workspace<T>};
}

template Kernel<Tangent<float>> tangent_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template Kernel<Tangent<double>> tangent_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
