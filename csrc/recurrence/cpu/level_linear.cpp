// y = x W^T + b at one SIMD level. How rows and outputs are divided does not change the order in which Product adds, so
// each row of y is a function of that row of x alone.
#include "recurrence/cpu/includes.h"
#include "recurrence/cpu/linear.h"

#include "common/simd_target.h"

#include "recurrence/cpu/product.h"

namespace rnnkern {
namespace {

template <class T>
struct LinearPlan {
  Product<T> product;

  LinearPlan(const Linear<T>& p, Workspace<T>& workspace, ThreadContext me)
      : product(p.weight, 0, 1, false, p.at_once, workspace, nullptr, me) {}
};

template <class T>
void linear(const Linear<T>& p, ThreadContext me) {
  using V = Vec<T>;
  const Product<T> product = lay_out<LinearPlan<T>>(p, me).product;
  product.pack(me);
  if (p.by_rows) me.barrier();  // otherwise a thread has packed what it needs
  const int64_t inputs = p.weight.columns, outputs = p.weight.units, all = product.panels();
  const Range rows = p.by_rows ? me.share(p.rows) : Range{0, p.rows};
  const Range panels = p.by_rows ? Range{0, all} : me.share(all);
  const int64_t count = rows.end - rows.begin, chunks = p.at_once ? 1 : (count + chunk_rows - 1) / chunk_rows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    product.run(
        panels.begin, panels.end, rows.begin + count * chunk / chunks, rows.begin + count * (chunk + 1) / chunks,
        [&](int64_t i) { return p.x + i * inputs; },
        [&](int64_t i, const Panel<T>& q, const T* results) RNNKERN_INLINE_LAMBDA {
          T* const to = p.y + i * outputs + q.unit;
          for_vectors<V>(0, q.units, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
            V::load(results + unit).store(to + unit, lanes);
          });
        });
}

}  // namespace

template <class T, SimdLevel>
Kernel<Linear<T>> linear_at() {
  return {linear<T>, workspace_size<LinearPlan<T>, Linear<T>>};
}

template Kernel<Linear<float>> linear_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>();
template Kernel<Linear<double>> linear_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
