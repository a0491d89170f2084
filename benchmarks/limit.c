/* What W1 and W3 cost in plain C: a file is read, decoded, and a random box of it resized to 224 with antialiasing, mirrored,
 * normalised and written as f32 planes. `limit LIST SECONDS THREADS MODE` with MODE full, region or scaled prints JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

enum { S = 224, MOST_FILE = 32 << 20, BATCH = 128 };
static const float MEAN[3] = {0.485f * 255, 0.456f * 255, 0.406f * 255}, STD[3] = {0.229f * 255, 0.224f * 255, 0.225f * 255};
static char **paths;
static int count;
static double seconds;

typedef struct { int top, left, rows, columns; } Box;
typedef struct { int first[S], taps[S], most; float *weights; } Filter;
typedef struct { int number, mode; long done; } Worker;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double uniform(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (*state >> 11) * (1.0 / 9007199254740992.0);
}

static Box random_box(uint64_t *state, int height, int width) {
    for (int k = 0; k < 10; k++) {
        double area = (double)height * width * (0.08 + 0.92 * uniform(state));
        double aspect = exp(log(0.75) + uniform(state) * (log(4.0 / 3) - log(0.75)));
        int w = (int)lround(sqrt(area * aspect)), h = (int)lround(sqrt(area / aspect));
        if (w > 0 && w <= width && h > 0 && h <= height)
            return (Box){(int)(uniform(state) * (height - h + 1)), (int)(uniform(state) * (width - w + 1)), h, w};
    }
    int side = height < width ? height : width;
    return (Box){(height - side) / 2, (width - side) / 2, side, side};
}

static void make_filter(Filter *f, float start, float length, int mirrored) {
    float scale = length / S, reach = scale < 1 ? 1 : scale;
    f->most = (int)ceilf(reach) * 2 + 1;
    f->weights = calloc((size_t)S * f->most, sizeof(float));
    for (int j = 0; j < S; j++) {
        float center = ((mirrored ? S - 1 - j : j) + 0.5f) * scale, sum = 0;
        int a = (int)(center - reach + 0.5f), b = (int)(center + reach + 0.5f);
        a = a < 0 ? 0 : a, b = b > (int)length ? (int)length : b;
        for (int i = a; i < b; i++) {
            float w = 1 - fabsf((i - center + 0.5f) / reach);
            sum += f->weights[j * f->most + i - a] = w < 0 ? 0 : w;
        }
        for (int i = 0; i < b - a; i++) f->weights[j * f->most + i] /= sum;
        f->first[j] = a + (int)start, f->taps[j] = b - a;
    }
}

/* Rows first, into planes; then down the columns, with the normalisation at the end. */
static void resize(const uint8_t *image, int stride, float top, float left, float tall, float wide, int mirrored, float *out) {
    Filter across, down;
    make_filter(&across, left, wide, mirrored), make_filter(&down, top, tall, 0);
    int first = (int)top, rows = (int)(top + tall) - first;
    float *lines = malloc((size_t)rows * 3 * S * sizeof(float)), sums[3 * S];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < S; j++) {
            const uint8_t *p = image + (size_t)(r + first) * stride + across.first[j] * 3;
            const float *w = across.weights + j * across.most;
            float a = 0, b = 0, c = 0;
            for (int i = 0; i < across.taps[j]; i++) a += w[i] * p[3 * i], b += w[i] * p[3 * i + 1], c += w[i] * p[3 * i + 2];
            float *line = lines + (size_t)r * 3 * S + j;
            line[0] = a, line[S] = b, line[2 * S] = c;
        }
    for (int i = 0; i < S; i++) {
        memset(sums, 0, sizeof sums);
        for (int t = 0; t < down.taps[i]; t++) {
            const float *line = lines + (size_t)(down.first[i] - first + t) * 3 * S;
            float w = down.weights[i * down.most + t];
            for (int j = 0; j < 3 * S; j++) sums[j] += w * line[j];
        }
        for (int c = 0; c < 3; c++)
            for (int j = 0; j < S; j++) out[(size_t)c * S * S + i * S + j] = (sums[c * S + j] - MEAN[c]) / STD[c];
    }
    free(lines), free(across.weights), free(down.weights);
}

static void one(const uint8_t *data, size_t size, int mode, uint64_t *state, uint8_t *pixels, float *out) {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    c.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, data, size);
    jpeg_read_header(&c, TRUE);
    Box box = random_box(state, c.image_height, c.image_width);
    unsigned shrink = 1;
    while (mode == 2 && shrink < 8 && box.rows >= S * 2 * (int)shrink && box.columns >= S * 2 * (int)shrink) shrink *= 2;
    c.out_color_space = JCS_RGB, c.scale_num = 1, c.scale_denom = shrink;
    jpeg_start_decompress(&c);
    float top = (float)box.top / shrink, left = (float)box.left / shrink;
    float tall = fmaxf(1, (float)box.rows / shrink), wide = fmaxf(1, (float)box.columns / shrink);
    int begin = 0, end = c.output_height;
    JDIMENSION x = 0, w = c.output_width;
    if (mode > 0) {
        x = (JDIMENSION)left, w = (JDIMENSION)ceilf(left + wide) - x;
        if (x + w > c.output_width) w = c.output_width - x;
        jpeg_crop_scanline(&c, &x, &w);
        begin = (int)top, end = (int)ceilf(top + tall) < end ? (int)ceilf(top + tall) : end;
        if (begin > 0) jpeg_skip_scanlines(&c, begin);
    }
    for (uint8_t *p = pixels; (int)c.output_scanline < end; p += (size_t)w * 3) jpeg_read_scanlines(&c, &p, 1);
    jpeg_abort_decompress(&c);
    jpeg_destroy_decompress(&c);
    tall = fminf(tall, end - top), wide = fminf(wide, w - (left - x));
    resize(pixels, w * 3, top - begin, left - x, tall, wide, uniform(state) < 0.5, out);
}

static void *work(void *given) {
    Worker *worker = given;
    uint64_t state = 88172645463325252ull + worker->number * 7919;
    uint8_t *file = malloc(MOST_FILE), *pixels = malloc(200u << 20);
    float *out = malloc((size_t)BATCH * 3 * S * S * sizeof(float));
    double start = now(CLOCK_MONOTONIC);
    for (unsigned k = worker->number; now(CLOCK_MONOTONIC) - start < seconds; k += 2, worker->done++) {
        int fd = open(paths[k * 2654435761u % count], O_RDONLY);
        ssize_t size = read(fd, file, MOST_FILE);
        close(fd);
        if (size > 0) one(file, size, worker->mode, &state, pixels, out + worker->done % BATCH * 3 * S * S);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    FILE *list = fopen(argv[1], "r");
    char line[4096];
    paths = malloc(sizeof *paths * 1000000);
    while (list && count < 1000000 && fgets(line, sizeof line, list)) line[strcspn(line, "\n")] = 0, paths[count++] = strdup(line);
    if (!count) return 1;
    seconds = atof(argv[2]);
    int threads = atoi(argv[3]), mode = !strcmp(argv[4], "full") ? 0 : !strcmp(argv[4], "region") ? 1 : 2;
    Worker *workers = calloc(threads, sizeof *workers);
    pthread_t *ids = calloc(threads, sizeof *ids);
    double start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < threads; i++) workers[i] = (Worker){i, mode, 0}, pthread_create(&ids[i], NULL, work, &workers[i]);
    long done = 0;
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL), done += workers[i].done;
    printf("{\"records\": %ld, \"seconds\": %.4f, \"cpu\": %.4f, \"first\": 0, \"pss\": 0}\n", done, now(CLOCK_MONOTONIC) - start,
           now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}
