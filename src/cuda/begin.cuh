/* gradckpt_cuda.cu - a CUDA device as a backend of gradckpt.h.  MIT licence.
 *
 *     nvcc -O3 -std=c++17 -fmad=false -arch=native -c gradckpt_cuda.cu (H100, H200: -arch=sm_90a)
 *
 * and link the object, the CUDA runtime and that of C++ (-lcudart -lstdc++) to the program; nothing
 * else is needed but CUDA 12 or newer. Then
 *
 *     const char *error;
 *     desc.backend = gckpt_cuda_backend(0, &error);      in gckpt_plan_desc and gckpt_exec_desc
 *
 * A plan is as on the processor, except for its workspace, and gives the same bits: kernels follow
 * the numeric specification (docs/numerics.md) step by step. This file includes gradckpt.h with its
 * implementation, and takes formulas, attributes and layouts from it, so that each exists once.
 * -fmad=false keeps the compiler from fusing a product and an addition where the source has no fma.
 *
 * Contents (grep -n '>>[a-z]' gradckpt_cuda.cu):                                             lines
@contents@
 */
#ifdef _MSC_VER
#error "gradckpt_cuda.cu needs gcc or clang as nvcc's host compiler, not MSVC: use Linux or WSL2"
#endif
#ifndef GCKPT_CUDA_SHIM /* tests include cuda_shim.h first, which runs kernels on the processor */
#include <cuda.h> /* types of tensor maps; libcuda is not linked */
#include <cuda_runtime.h>
/* Launches a kernel and returns this launch's own error, unlike <<< >>> and cudaGetLastError. */
template <class... P, class... A>
cudaError_t gckpti_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                          cudaStream_t stream, const A &...a)
{
    const cudaLaunchConfig_t config = { grid, block, shared, stream, NULL, 0 };
    return cudaLaunchKernelEx(&config, kernel, a...);
}
#define LAUNCH                     gckpti_launch
#define SHARED(type, name, dims)   __shared__ type name dims
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#pragma nv_diag_suppress 1675, 177
#define GCKPTI_DEVICE __host__ __device__
#define GCKPTI_FMA    3
#define GCKPTI_SQRT   3
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gradckpt_cuda.cu takes sm_80 or newer: nvcc -arch=sm_80 (native: a device that is here)"
#endif
#endif
#ifndef GCKPTI_DEVICE
#define GCKPTI_DEVICE
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>
#define GCKPT_STATIC
#define GCKPT_NO_FAST
#define GCKPT_NO_STDIO
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#if defined(GCKPT_NO_ATTENTION) || defined(GCKPT_NO_LINEAR_LOSS)
#error "gradckpt_cuda.cu needs these parts: remove GCKPT_NO_ATTENTION and GCKPT_NO_LINEAR_LOSS"
#endif

namespace {
