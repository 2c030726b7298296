// The interaction of a DLRM, one block a row: out is (rows, dim + pairs).
//
// All vectors of the row stand in shared memory, each with one number of padding, so that threads
// with neighbouring pairs read different banks. Any number of threads gives the same result.
extern "C" __global__ void interact(
    const float* dense, const float* pooled, float* out, int features, int dim) {
  extern __shared__ float vectors[];  // (features + 1, dim + 1)
  const int count = features + 1, stride = dim + 1;
  const long long row = blockIdx.x;
  float* to = out + row * (dim + static_cast<long long>(count) * features / 2);

  for (int k = threadIdx.x; k < dim; k += blockDim.x) {
    to[k] = vectors[k] = dense[row * dim + k];
  }
  const float* from = pooled + row * features * dim;
  for (int k = threadIdx.x; k < features * dim; k += blockDim.x) {
    vectors[(k / dim + 1) * stride + k % dim] = from[k];
  }
  __syncthreads();

  for (int pair = threadIdx.x; pair < count * features / 2; pair += blockDim.x) {
    int i = 0, left = pair;
    while (left >= features - i) {
      left -= features - i;
      ++i;
    }
    const float* a = vectors + i * stride;
    const float* b = vectors + (i + 1 + left) * stride;
    float sum = 0.0f;
    for (int k = 0; k < dim; ++k) {
      sum += a[k] * b[k];
    }
    to[dim + pair] = sum;
  }
}
