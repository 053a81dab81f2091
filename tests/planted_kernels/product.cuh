// The product that each planted kernel beside this file gets wrong in its own way.
#pragma once
#include "portable.cuh"

// alpha * (row `row` of A) @ (column `col` of B), over the first `depth` terms.
__device__ inline float product(int depth, float alpha, const float* A, long long lda,
                                const float* B, long long ldb, long long row, long long col) {
    float sum = 0.0f;
    for (int k = 0; k < depth; ++k) sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);
    return alpha * sum;
}
