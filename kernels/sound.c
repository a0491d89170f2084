/* Power spectra of overlapping frames of a wave, waves at another rate, and sums of few frequencies: sixteen frames, or sixteen periods of the two
 * rates, lie side by side in a vector, so that no sum goes across lanes and each value is computed by the same operations on
 * every machine (no fused ones: -ffp-contract=off).
 *
 * Spectra: a real transform of N through a complex one of N / 2 by Stockham's passes of radix 2 to 5. Sizes are checked
 * before anything is read; the interpreter's lock is released.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define WIDE 2         /* vectors of periods that are resampled at once */
#define FRAMES 64      /* whose samples are turned at once: they stay in the cache */
#define STAGES 24
#define LARGEST (1 << 20)   /* of a window */

typedef float V __attribute__((vector_size(4 * LANES)));
typedef float U __attribute__((vector_size(4 * LANES), aligned(4), may_alias));   /* anywhere in memory */

/* --- rows and columns ---------------------------------------------------------------------------------------------- */

/* Sixteen vectors as rows become columns: a perfect shuffle of all elements turns their index by one bit, four by four. */
INLINE void turn(V *a) {
    V b[LANES];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < LANES / 2; i++) {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        for (int i = 0; i < LANES; i++) a[i] = b[i];
    }
}

/* out[i * apart + j] = wave[first + j * step + i] for 16 values of j and `rows` of i, zero where there is no such sample. */
INLINE void columns(const float *wave, int64_t size, int64_t first, int64_t step, int64_t rows, float *out, int64_t apart) {
    int64_t i = 0;
    if (first >= 0)
        for (; i + LANES <= rows && first + (LANES - 1) * step + i + LANES <= size; i += LANES) {
            V a[LANES];
            for (int j = 0; j < LANES; j++) a[j] = *(const U *)(wave + first + j * step + i);
            turn(a);
            for (int j = 0; j < LANES; j++) *(U *)(out + (i + j) * apart) = a[j];
        }
    for (; i < rows; i++)
        for (int j = 0; j < LANES; j++) {
            int64_t at = first + j * step + i;
            out[i * apart + j] = at >= 0 && at < size ? wave[at] : 0;
        }
}

/* out[j * apart + i] = lanes[i * between][j] for 16 values of j, `rows` of i, as far as out[end]. */
INLINE void back(const V *lanes, int64_t between, int64_t rows, float *out, int64_t apart, int64_t end) {
    int64_t i = 0;
    for (; i + LANES <= rows && (LANES - 1) * apart + i + LANES <= end; i += LANES) {
        V a[LANES];
        for (int k = 0; k < LANES; k++) a[k] = lanes[(i + k) * between];
        turn(a);
        for (int j = 0; j < LANES; j++) *(U *)(out + j * apart + i) = a[j];
    }
    for (; i < rows; i++)
        for (int j = 0; j < LANES && j * apart + i < end; j++) out[j * apart + i] = lanes[i * between][j];
}

/* --- spectra ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t win, hop, count;
    const float *window, *twiddles, *last;   /* half the window; of all passes; of the last step */
    int stages;
    const int32_t *radices;
} Plan;

typedef struct {
    const float *columns, *window;
    const int64_t *offsets;
    const V *z;
} From;

INLINE void take(const int first, const From *f, int64_t i, V *re, V *im) {
    if (first) {
        *re = *(const U *)(f->columns + f->offsets[2 * i]) * f->window[2 * i];
        *im = *(const U *)(f->columns + f->offsets[2 * i + 1]) * f->window[2 * i + 1];
    } else {
        *re = f->z[2 * i];
        *im = f->z[2 * i + 1];
    }
}

/* The transform of r values. */
INLINE void butterfly(const int r, const V *a, const V *b, V *c, V *d) {
    if (r == 2) {
        c[0] = a[0] + a[1], d[0] = b[0] + b[1];
        c[1] = a[0] - a[1], d[1] = b[0] - b[1];
    } else if (r == 3) {
        const float sine = 0.866025403784438647f;
        V t = a[1] + a[2], u = b[1] + b[2], v = (a[1] - a[2]) * sine, w = (b[1] - b[2]) * sine;
        V m = a[0] - t * 0.5f, n = b[0] - u * 0.5f;
        c[0] = a[0] + t, d[0] = b[0] + u;
        c[1] = m + w, d[1] = n - v;
        c[2] = m - w, d[2] = n + v;
    } else if (r == 4) {
        V p = a[0] + a[2], q = a[0] - a[2], s = a[1] + a[3], t = a[1] - a[3];
        V e = b[0] + b[2], f = b[0] - b[2], g = b[1] + b[3], h = b[1] - b[3];
        c[0] = p + s, d[0] = e + g;
        c[1] = q + h, d[1] = f - t;
        c[2] = p - s, d[2] = e - g;
        c[3] = q - h, d[3] = f + t;
    } else {
        const float c1 = 0.309016994374947424f, c2 = -0.809016994374947424f;
        const float s1 = 0.951056516295153572f, s2 = 0.587785252292473129f;
        V t = a[1] + a[4], u = a[2] + a[3], v = a[1] - a[4], w = a[2] - a[3];
        V e = b[1] + b[4], f = b[2] + b[3], g = b[1] - b[4], h = b[2] - b[3];
        V m = a[0] + (t * c1 + u * c2), n = b[0] + (e * c1 + f * c2), p = v * s1 + w * s2, q = g * s1 + h * s2;
        c[0] = a[0] + (t + u), d[0] = b[0] + (e + f);
        c[1] = m + q, d[1] = n - p;
        c[4] = m - q, d[4] = n + p;
        m = a[0] + (t * c2 + u * c1), n = b[0] + (e * c2 + f * c1), p = v * s2 - w * s1, q = g * s2 - h * s1;
        c[2] = m + q, d[2] = n - p;
        c[3] = m - q, d[3] = n + p;
    }
}

/* One pass: `n` values are left to transform, in `s` interleaved rows. */
INLINE void pass(const int r, const int first, const From *f, int64_t n, int64_t s, const float *w, V *out) {
    int64_t m = n / r;
    for (int64_t p = 0; p < m; p++, w += 2 * (r - 1))
        for (int64_t q = 0; q < s; q++) {
            V a[5], b[5], c[5], d[5], *to = out + 2 * (q + s * r * p);
            for (int j = 0; j < r; j++) take(first, f, q + s * (p + j * m), a + j, b + j);
            butterfly(r, a, b, c, d);
            to[0] = c[0], to[1] = d[0];
            for (int j = 1; j < r; j++) {
                to[2 * s * j] = p ? c[j] * w[2 * j - 2] - d[j] * w[2 * j - 1] : c[j];
                to[2 * s * j + 1] = p ? c[j] * w[2 * j - 1] + d[j] * w[2 * j - 2] : d[j];
            }
        }
}

INLINE void any_pass(const int first, int r, const From *f, int64_t n, int64_t s, const float *w, V *out) {
    if (r == 2) pass(2, first, f, n, s, w, out);
    else if (r == 3) pass(3, first, f, n, s, w, out);
    else if (r == 4) pass(4, first, f, n, s, w, out);
    else pass(5, first, f, n, s, w, out);
}

/* Powers of the real transform: frequencies k and half - k out of the complex one's. */
INLINE void squares(const V *z, int64_t half, const float *w, V *power) {
    V sum = z[0] + z[1], difference = z[0] - z[1];
    power[0] = sum * sum * 4.0f, power[half] = difference * difference * 4.0f;   /* the window was halved */
    for (int64_t k = 1; 2 * k <= half; k++) {
        V a = z[2 * k], b = z[2 * k + 1], c = z[2 * (half - k)], d = z[2 * (half - k) + 1];
        V even = a + c, odd = b + d, even_im = b - d, odd_im = c - a;
        V turned = odd * w[2 * k] - odd_im * w[2 * k + 1], turned_im = odd * w[2 * k + 1] + odd_im * w[2 * k];
        V re = even + turned, im = even_im + turned_im;
        power[k] = re * re + im * im;
        re = even - turned, im = even_im - turned_im;
        power[half - k] = re * re + im * im;
    }
}

/* `work`: three times win + 2 vectors. */
FAST static void power_all(const Plan *plan, const float *wave, int64_t size, float *turned, int64_t apart, int64_t *offsets,
                           V *work, float *out) {
    int64_t win = plan->win, hop = plan->hop, half = win / 2, bins = half + 1, rows = hop < win ? hop : win;
    for (int64_t n = 0, row = 0, step = 0; n < win; n++) {
        offsets[n] = row * apart + step;
        if (++row == hop) row = 0, step++;
    }
    for (int64_t t = 0; t < plan->count; t += LANES) {
        if (t % FRAMES == 0)
            for (int64_t k = 0; k < apart; k += LANES) columns(wave, size, (t + k) * hop, hop, rows, turned + k, apart);
        V *z = work, *other = work + win;
        const float *w = plan->twiddles;
        From from = {turned + t % FRAMES, plan->window, offsets, NULL};
        for (int64_t k = 0, n = half, s = 1; k < plan->stages; k++) {
            int r = plan->radices[k];
            if (k) any_pass(0, r, &from, n, s, w, other);
            else any_pass(1, r, &from, n, s, w, other);
            n /= r, s *= r, w += 2 * (r - 1) * n;
            from.z = other, other = z, z = (V *)from.z;
        }
        squares(z, half, plan->last, work + 2 * win);
        back(work + 2 * win, 1, bins, out + t * bins, bins, (plan->count - t) * bins);
    }
}

/* What the factors need of tables, -1 where they are no factors of half the window. */
static int64_t planned(Plan *plan) {
    int64_t n = plan->win / 2, size = 0;
    if (plan->stages < 1 || plan->stages > STAGES) return -1;
    for (int k = 0; k < plan->stages; k++) {
        int64_t r = plan->radices[k];
        if (r < 2 || r > 5 || n % r) return -1;
        n /= r;
        size += 2 * (r - 1) * n;
    }
    plan->twiddles = plan->window + plan->win;
    plan->last = plan->twiddles + size;
    return n == 1 ? plan->win + size + 2 * (plan->win / 4 + 1) : -1;
}

static void *aligned(void *memory) { return (void *)(((uintptr_t)memory + 63) & ~(uintptr_t)63); }

static PyObject *finish(int right, int memory) {
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the arrays have unlike sizes");
        return NULL;
    }
    if (!memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *powers(PyObject *self, PyObject *args) {
    Py_buffer wave, out, tables, radices;
    long long win, hop;
    int memory = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*LLy*y*", &wave, &out, &win, &hop, &tables, &radices)) return NULL;
    Plan plan = {win, hop, 0, tables.buf, NULL, NULL, (int)(radices.len < 4096 ? radices.len / 4 : 0), radices.buf};
    int64_t size = wave.len / 4, bins = win / 2 + 1;
    int right = win >= 4 && win % 2 == 0 && win <= LARGEST && hop > 0 && hop < (1LL << 40) && size < INT64_MAX / 8
        && planned(&plan) * 4 == tables.len && out.len % (4 * bins) == 0;
    if (right) {
        plan.count = out.len / (4 * bins);
        right = plan.count > 0 && size >= win && (size - win) / hop >= plan.count - 1;
    }
    if (right) {
        int64_t steps = (plan.count < FRAMES ? plan.count : FRAMES) + (win - 1) / hop, apart = (steps / LANES + 2 | 1) * LANES;   /* odd: rows share no sets */
        size_t turned = (size_t)((hop < win ? hop : win) * apart) * 4, work = (size_t)(3 * win + 2) * sizeof(V);
        Py_BEGIN_ALLOW_THREADS
        char *all = malloc(work + turned + (size_t)win * 8 + 64);
        memory = all != NULL;
        if (memory) {
            char *at = aligned(all);
            power_all(&plan, wave.buf, size, (float *)(at + work), apart, (int64_t *)(at + work + turned), (V *)at, out.buf);
        }
        free(all);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&wave);
    PyBuffer_Release(&out);
    PyBuffer_Release(&tables);
    PyBuffer_Release(&radices);
    return finish(right, memory);
}

/* --- resampling ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t stride, before, rows, phases, taps;   /* samples of a period, before the wave, of one lane; values of a period */
    const float *weights;                         /* [phases, taps] */
    const int64_t *starts;                        /* of each phase within a lane */
} Filter;

FAST static void resample_all(const Filter *f, const float *wave, int64_t size, V *lanes, float *out, int64_t count) {
    int64_t taps = f->taps;
    for (int64_t q = 0; q * f->phases < count; q += WIDE * LANES) {
        for (int u = 0; u < WIDE; u++)
            columns(wave, size, (q + u * LANES) * f->stride - f->before, f->stride, f->rows, (float *)(lanes + u), WIDE * LANES);
        for (int64_t p = 0; p < f->phases; p += LANES) {
            V made[WIDE * LANES];
            int some = f->phases - p < LANES ? (int)(f->phases - p) : LANES;
            for (int i = 0; i < some; i++) {
                const float *w = f->weights + (p + i) * taps;
                const V *x = lanes + f->starts[p + i] * WIDE;
                V sums[WIDE] = {{0}};
                for (int64_t t = 0; t < taps; t++, x += WIDE)
                    for (int u = 0; u < WIDE; u++) sums[u] += x[u] * w[t];
                for (int u = 0; u < WIDE; u++) made[i * WIDE + u] = sums[u];
            }
            for (int u = 0; u < WIDE; u++) {
                int64_t at = (q + u * LANES) * f->phases + p;
                if (at < count) back(made + u, WIDE, some, out + at, f->phases, count - at);
            }
        }
    }
}

static PyObject *resample(PyObject *self, PyObject *args) {
    Py_buffer wave, out, weights, starts;
    long long stride, before;
    int memory = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*LLy*y*", &wave, &out, &stride, &before, &weights, &starts)) return NULL;
    Filter f = {stride, before, 0, starts.len / 8, 0, weights.buf, starts.buf};
    int right = f.phases > 0 && starts.len % 8 == 0 && stride > 0 && stride < (1 << 30) && before >= 0 && before < (1 << 30)
        && weights.len % (4 * f.phases) == 0 && weights.len > 0;
    if (right) f.taps = weights.len / 4 / f.phases;
    for (int64_t p = 0; right && p < f.phases; p++) {
        right = f.starts[p] >= 0 && f.starts[p] < (1 << 30);
        if (right && f.starts[p] + f.taps > f.rows) f.rows = f.starts[p] + f.taps;
    }
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        char *all = malloc((size_t)f.rows * WIDE * sizeof(V) + 64);
        memory = all != NULL;
        if (memory) resample_all(&f, wave.buf, wave.len / 4, aligned(all), out.buf, out.len / 4);
        free(all);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&wave);
    PyBuffer_Release(&out);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&starts);
    return finish(right, memory);
}

/* --- products with weights that are mostly zero --------------------------------------------------------------------- */

/* First weight of each row that isn't zero and the one after the last; the number of those between. */
static int64_t find_bands(const float *w, int64_t m, int64_t k, int64_t *bands) {
    int64_t between = 0;
    for (int64_t j = 0; j < m; j++, w += k, bands += 2) {
        bands[0] = 0, bands[1] = k;
        while (bands[0] < k && w[bands[0]] == 0) bands[0]++;
        while (bands[1] > bands[0] && w[bands[1] - 1] == 0) bands[1]--;
        between += bands[1] - bands[0];
    }
    return between;
}

/* out[t, j] = sum of x[t, i] * w[j, i] over the band of j; 0 where a value of x isn't finite, which zeros don't silence. */
FAST static int banded(const float *x, int64_t rows, int64_t k, const float *w, int64_t m, const int64_t *bands, V *lanes,
                       float *out) {
    V *made = lanes + k;
    for (int64_t t = 0; t < rows; t += LANES) {
        V silent = {0};
        columns(x, rows * k, t * k, k, k, (float *)lanes, LANES);
        for (int64_t i = 0; i < k; i++) silent += lanes[i] * 0.0f;
        for (int l = 0; l < LANES; l++)
            if (silent[l] != 0) return 0;
        for (int64_t j = 0; j < m; j++) {
            V sum = {0};
            for (int64_t i = bands[2 * j]; i < bands[2 * j + 1]; i++) sum += lanes[i] * w[j * k + i];
            made[j] = sum;
        }
        back(made, 1, m, out + t * m, m, (rows - t) * m);
    }
    return 1;
}

static PyObject *products(PyObject *self, PyObject *args) {
    Py_buffer x, weights, out;
    long long k;
    int memory = 0, made = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*L", &x, &weights, &out, &k)) return NULL;
    int right = k > 0 && k <= LARGEST && x.len % (4 * k) == 0 && weights.len % (4 * k) == 0;
    int64_t rows = right ? x.len / 4 / k : 0, m = right ? weights.len / 4 / k : 0;
    right = right && m <= LARGEST && out.len == rows * m * 4;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        size_t work = (size_t)(k + m) * sizeof(V);
        char *all = malloc(work + (size_t)m * 16 + 64);
        memory = all != NULL;
        if (memory) {
            int64_t *bands = (int64_t *)((char *)aligned(all) + work);
            made = find_bands(weights.buf, m, k, bands) <= m * k / 8
                && banded(x.buf, rows, k, weights.buf, m, bands, aligned(all), out.buf);
        }
        free(all);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    PyObject *none = finish(right, memory);
    if (none == NULL) return NULL;
    Py_DECREF(none);
    return PyBool_FromLong(made);
}

static PyMethodDef methods[] = {
    {"powers", powers, METH_VARARGS, "powers(wave, out, win, hop, tables, radices): out[t, k] = power of frequency k in frame t"},
    {"resample", resample, METH_VARARGS, "resample(wave, out, stride, before, weights, starts): period by period"},
    {"products", products, METH_VARARGS, "products(x, weights, out, k) -> bool: were most weights zero, and all of x finite"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sound", "Power spectra, resampling, sums over bands.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sound(void) { return PyModule_Create(&module); }
