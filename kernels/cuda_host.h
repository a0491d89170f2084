// Runs CUDA C on the host: the threads of a grid one after the other, forwards or, where `backwards` is set, last first.
// Only for kernels whose threads never wait for one another, which is all that the compiler prints.
#include <math.h>
#include <string.h>

#define __device__
#define __global__
#define __forceinline__ inline

struct dim3_ { unsigned x, y, z; };
static thread_local dim3_ gridDim, blockDim, blockIdx, threadIdx;

static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
template <class To, class From> static inline To pipec_bits(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline int __float_as_int(float x) { return pipec_bits<int>(x); }
static inline float __int_as_float(int x) { return pipec_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return pipec_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return pipec_bits<double>(x); }

typedef void (*pipec_kernel)(long long, long long*, long long*, long long*);

extern "C" __attribute__((visibility("default"))) void pipec_launch(
    pipec_kernel kernel, unsigned gx, unsigned gy, unsigned bx, int backwards,
    long long n, long long* table, long long* status, long long* arena) {
    gridDim = {gx, gy, 1};
    blockDim = {bx, 1, 1};
    unsigned long long all = (unsigned long long)gx * gy * bx;
    for (unsigned long long t = 0; t < all; t++) {
        unsigned long long k = backwards ? all - 1 - t : t;
        threadIdx = {(unsigned)(k % bx), 0, 0};
        blockIdx = {(unsigned)(k / bx % gx), (unsigned)(k / bx / gx), 0};
        kernel(n, table, status, arena);
    }
}
