// Where the CUDA drivers register their operators: for CUDA tensors in rnnkern or, in a test's build, which defines
// RNNKERN_LIBRARY, for CPU tensors in a library of its own.
#pragma once

#ifdef RNNKERN_LIBRARY
#define RNNKERN_CUDA_KEY CPU
#else
#define RNNKERN_LIBRARY rnnkern
#define RNNKERN_CUDA_KEY CUDA
#endif
