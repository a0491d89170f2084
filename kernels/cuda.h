// The names that kernel texts use in CUDA C, for the GPU and, after `cuda_host.h`, for the host. The same bits as
// `compiler.instructions`: no fused multiply-add, integers wrap around, conversions to integers stay inside the range.
#if __CUDA_FTZ
#error "compile with --ftz=false: f32 keeps numbers that are too small for its full precision"
#endif
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
#define FN static __device__ __forceinline__

// --- integers, modulo 2**64 ---
FN i64 add(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
FN i64 sub(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
FN i64 mul(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
FN i64 shl(i64 x, i64 n) { return i64(u64(x) << (n & 63)); }
FN i64 shr(i64 x, i64 n) { return x >> (n & 63); }
FN i64 ushr(i64 x, i64 n) { return i64(u64(x) >> (n & 63)); }
FN i64 mulhi(i64 x, i64 y) { return i64(__umul64hi(u64(x), u64(y))); }
FN i64 min_i64(i64 x, i64 y) { return x < y ? x : y; }
FN i64 max_i64(i64 x, i64 y) { return x > y ? x : y; }
FN i64 abs_i64(i64 x) { return x < 0 ? sub(0, x) : x; }

// Rounded down. Division by 0 divides by 1: proofs exclude it where the result is used.
FN i64 floordiv_i64(i64 x, i64 y) {
    if (y == -1) return sub(0, x);   // the least i64 divided by -1 doesn't fit
    i64 d = y == 0 ? 1 : y, q = x / d, r = x % d;
    return r != 0 && (r ^ d) < 0 ? q - 1 : q;
}
FN i64 mod_i64(i64 x, i64 y) {
    if (y == -1) return 0;
    i64 d = y == 0 ? 1 : y, r = x % d;
    return r != 0 && (r ^ d) < 0 ? r + d : r;
}

// --- floats; not a number in the first argument stays ---
FN f32 min_f32(f32 x, f32 y) { return x != x ? x : x < y ? x : y; }
FN f64 min_f64(f64 x, f64 y) { return x != x ? x : x < y ? x : y; }
FN f32 max_f32(f32 x, f32 y) { return x != x ? x : x > y ? x : y; }
FN f64 max_f64(f64 x, f64 y) { return x != x ? x : x > y ? x : y; }
FN f32 abs_f32(f32 x) { return fabsf(x); }
FN f64 abs_f64(f64 x) { return fabs(x); }
FN f32 floor_f32(f32 x) { return floorf(x); }
FN f64 floor_f64(f64 x) { return floor(x); }
FN f32 ceil_f32(f32 x) { return ceilf(x); }
FN f64 ceil_f64(f64 x) { return ceil(x); }
FN f32 rint_f32(f32 x) { return rintf(x); }
FN f64 rint_f64(f64 x) { return rint(x); }
FN f32 sqrt_f32(f32 x) { return sqrtf(x); }
FN f64 sqrt_f64(f64 x) { return sqrt(x); }
FN f32 floordiv_f32(f32 x, f32 y) { return floorf(x / y); }
FN f64 floordiv_f64(f64 x, f64 y) { return floor(x / y); }
FN f32 mod_f32(f32 x, f32 y) { return x - floorf(x / y) * y; }
FN f64 mod_f64(f64 x, f64 y) { return x - floor(x / y) * y; }

// --- the same bits ---
FN i64 f32_bits(f32 x) { return i64(u32(__float_as_int(x))); }
FN f32 f32_of_bits(i64 x) { return __int_as_float(i32(u32(u64(x)))); }
FN i64 f64_bits(f64 x) { return __double_as_longlong(x); }
FN f64 f64_of_bits(i64 x) { return __longlong_as_double(x); }

// --- floats to integers: towards 0, inside the range, 0 for not a number. `above` is the first power of two outside ---
#define TO_INTEGER(F, I, V, least, most, above) \
    FN V F##_to_##I(F x) { return x != x ? V(0) : x >= F(above) ? V(most) : x <= F(least) ? V(least) : V(I(x)); }
#define TO_INTEGERS(F) \
    TO_INTEGER(F, u8, u8, 0, 255, 256.0) \
    TO_INTEGER(F, i8, i8, -128, 127, 128.0) \
    TO_INTEGER(F, u16, u16, 0, 65535, 65536.0) \
    TO_INTEGER(F, i16, i16, -32768, 32767, 32768.0) \
    TO_INTEGER(F, u32, u32, 0, 4294967295u, 4294967296.0) \
    TO_INTEGER(F, i32, i32, -2147483647 - 1, 2147483647, 2147483648.0) \
    TO_INTEGER(F, u64, i64, 0, 18446744073709551615ull, 18446744073709551616.0) \
    TO_INTEGER(F, i64, i64, -9223372036854775807ll - 1, 9223372036854775807ll, 9223372036854775808.0)
TO_INTEGERS(f32)
TO_INTEGERS(f64)

// --- integers to narrower ones, inside the range ---
#define SATURATE(I, least, most) FN I saturate_##I(i64 x) { return I(x < least ? least : x > most ? most : x); }
SATURATE(u8, 0, 255)
SATURATE(i8, -128, 127)
SATURATE(u16, 0, 65535)
SATURATE(i16, -32768, 32767)
SATURATE(u32, 0, 4294967295ll)
SATURATE(i32, -2147483648ll, 2147483647ll)
FN i64 saturate_u64(i64 x) { return x < 0 ? 0 : x; }
FN i64 u64_to_i64(i64 x) { return x < 0 ? 9223372036854775807ll : x; }

// --- halves, as bits ---
FN u16 f32_to_f16(f32 x) {
    u32 v = u32(f32_bits(x)), sign = (v >> 16) & 0x8000u, a = v & 0x7fffffffu, h;
    if (a > 0x7f800000u) {
        u32 payload = (a & 0x7fffffu) >> 13;
        h = 0x7c00u | (payload ? payload : 1u);
    } else if (a >= 0x477ff000u) {
        h = 0x7c00u;
    } else if (a < 0x38800000u) {   // adding 0.5 rounds what stays into the low bits
        h = u32(f32_bits(f32_of_bits(a) + 0.5f)) - 0x3f000000u;
    } else {
        h = (a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13;
    }
    return u16(h | sign);
}
FN f32 f16_to_f32(u16 h) {
    u32 sign = (u32(h) & 0x8000u) << 16, a = (u32(h) & 0x7fffu) << 13;
    if (a >= 0x0f800000u) return f32_of_bits((a + 0x70000000u) | sign);
    if (a >= 0x00800000u) return f32_of_bits((a + 0x38000000u) | sign);
    f32 small = f32_of_bits(a + 0x38800000u) - f32_of_bits(0x38800000u);
    return f32_of_bits(f32_bits(small) | sign);
}
FN u16 f32_to_bf16(f32 x) {
    u32 v = u32(f32_bits(x));
    if (x != x) return u16(((v >> 16) & 0x8000u) | 0x7fc0u);
    return u16((v + 0x7fffu + ((v >> 16) & 1u)) >> 16);
}
FN f32 bf16_to_f32(u16 h) { return f32_of_bits(i64(h) << 16); }

// --- loops that all threads of a record share ---
FN i64 extent(i64 start, i64 stop) { return stop > start ? stop - start : 0; }
// The last digit of `rest` in base `n`; `rest` keeps the others.
FN i64 digit(i64& rest, i64 n) {
    if (((rest | n) >> 32) == 0) {   // 64-bit division takes many times as long
        u32 all = u32(rest), q = all / u32(n);
        rest = q;
        return all - q * u32(n);
    }
    i64 last = rest % n;
    rest = rest / n;
    return last;
}
