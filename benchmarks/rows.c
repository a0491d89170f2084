/* What W4 and W5 cost in plain C, for one batch: rows are gathered out of memory, changed and written. */
#include <stdint.h>

static const float MEAN[3] = {125.3f, 123.0f, 113.9f}, STD[3] = {63.0f, 62.1f, 66.7f};

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* `count` images u8[32][32][3], each shifted by up to 4 pixels, mirrored half of the time, normalised: f16[3][32][32]. */
void cifar(const uint8_t *images, const uint8_t *labels, long total, long count, uint64_t *state, _Float16 *out, int64_t *label) {
    for (long b = 0; b < count; b++) {
        uint64_t r = next(state);
        long at = (long)(r % (uint64_t)total);
        const uint8_t *image = images + at * 3072;
        int dy = (int)((r >> 40) % 9) - 4, dx = (int)((r >> 48) % 9) - 4, flip = (int)(r >> 60) & 1;
        label[b] = labels[at];
        for (int c = 0; c < 3; c++) {
            _Float16 gap = (_Float16)((0 - MEAN[c]) / STD[c]);
            for (int y = 0; y < 32; y++) {
                _Float16 *row = out + ((b * 3 + c) * 32 + y) * 32;
                int from = y + dy, low = dx < 0 ? -dx : 0, high = dx > 0 ? 32 - dx : 32;
                if (from < 0 || from >= 32) {
                    for (int x = 0; x < 32; x++) row[x] = gap;
                    continue;
                }
                float line[32];
                const uint8_t *pixels = image + from * 96 + c;
                for (int x = 0; x < 32; x++) line[x] = (float)pixels[3 * x];
                if (flip) for (int x = 0; x < 16; x++) { float t = line[x]; line[x] = line[31 - x]; line[31 - x] = t; }
                for (int x = 0; x < low; x++) row[x] = gap;
                for (int x = low; x < high; x++) row[x] = (_Float16)((line[x + dx] - MEAN[c]) / STD[c]);
                for (int x = high; x < 32; x++) row[x] = gap;
            }
        }
    }
}

/* `count` windows of `length` tokens and the same shifted by one, widened to i64. */
void tokens(const uint16_t *ids, long windows, long length, long count, uint64_t *state, int64_t *input, int64_t *target) {
    for (long b = 0; b < count; b++) {
        const uint16_t *from = ids + (long)(next(state) % (uint64_t)windows) * length;
        for (long j = 0; j < length; j++) input[b * length + j] = from[j];
        for (long j = 0; j < length; j++) target[b * length + j] = from[j + 1];
    }
}
