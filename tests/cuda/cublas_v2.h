/* cublas_v2.h - the part of cuBLAS that tests/bench/cuda.cu calls, as plain loops for the shim, so that the benchmark's
 * code runs without a device. As in cuBLAS, matrices are stored by columns. Sums are in double. */
#ifndef CUBLAS_V2_H
#define CUBLAS_V2_H
typedef int cublasStatus_t;
typedef void *cublasHandle_t;
enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 };
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum { CUDA_R_32F, CUDA_R_16BF = 14 } cudaDataType;
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };

inline cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    return *handle = NULL, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

inline double cublas_element(const void *x, cudaDataType type, int64_t i)
{
    float f;
    if (type == CUDA_R_32F)
        return ((const float *)x)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Computes c (m,n) = alpha op(a) (m,k) op(b) (k,n); beta must be 0. */
inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t a_as, cublasOperation_t b_as,
                                   int m, int n, int k, const float *alpha, const void *a,
                                   cudaDataType a_type, int a_line, const void *b,
                                   cudaDataType b_type, int b_line, const float *beta, void *c,
                                   cudaDataType c_type, int c_line, int compute, int algorithm)
{
    if (a_line < (a_as == CUBLAS_OP_N ? m : k) || b_line < (b_as == CUBLAS_OP_N ? k : n) ||
        c_line < m || *beta != 0 || compute != CUBLAS_COMPUTE_32F ||
        algorithm != CUBLAS_GEMM_DEFAULT)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += cublas_element(a, a_type,
                                      a_as == CUBLAS_OP_N ? l * a_line + i : i * a_line + l) *
                       cublas_element(b, b_type,
                                      b_as == CUBLAS_OP_N ? j * b_line + l : l * b_line + j);
            const float f = (float)(*alpha * sum);
            if (c_type == CUDA_R_32F)
                ((float *)c)[j * c_line + i] = f;
            else
                ((uint16_t *)c)[j * c_line + i] = gckpti_to_bf16(f);
        }
    return CUBLAS_STATUS_SUCCESS;
}
#endif
