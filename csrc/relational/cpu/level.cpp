// similarity at one SIMD level.
#include "cpu/level_includes.h"
#include "relational/cpu/problem.h"

#include "common/simd_target.h"

#include "relational/cpu/backward.h"
#include "relational/cpu/forward.h"

namespace rnnkern {

template <class T>
template <SimdLevel>
SimilarityKernels<T> SimilarityKernels<T>::at() {
  return {{similarity_forward<T>, workspace_size<SimilarityForwardWorkspace<T>>},
          {similarity_backward<T>, workspace_size<SimilarityBackwardWorkspace<T>>}};
}

template SimilarityKernels<float> SimilarityKernels<float>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();
template SimilarityKernels<double> SimilarityKernels<double>::at<SimdLevel::RNNKERN_SIMD_LEVEL>();

}  // namespace rnnkern
