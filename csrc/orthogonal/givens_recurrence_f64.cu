#include "orthogonal/givens_cuda_launch.h"

template struct rnnkern::givens::Kernels<double>;
