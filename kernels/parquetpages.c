/* Data pages of Parquet columns with single values, decoded into rows: the columns of a field lie beside each other in the
 * result, as kernels read them. Texts become numbers of the dictionary's entries. Also MurmurHash64A of many texts.
 *
 * Nothing that pages say is believed before it is checked. What isn't understood, damage too, is answered with None or
 * False: the caller has another reader, which says what is wrong. The interpreter's lock is released.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian machines"
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))
#ifndef TILE
#define TILE 512      /* rows of all columns decoded in turn */
#endif
#define SLACK 32
#define DEEP 16      /* structures within structures in a page's header */
#define IDS 16

/* --- headers of pages: Thrift's compact protocol ------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
    int bad;
} In;

typedef struct {
    int64_t numbers[IDS];          /* of integer and boolean fields, by their ids */
    int64_t inner[IDS][IDS];       /* of the fields of structures */
    int has[IDS];
} Header;

static uint64_t varint(In *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->at >= in->end) break;
        uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return value;
    }
    in->bad = 1;
    return 0;
}

static int64_t zigzag(In *in) {
    uint64_t value = varint(in);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static void pass(In *in, uint64_t size) {
    if (size > (uint64_t)(in->end - in->at)) in->bad = 1;
    else in->at += size;
}

static void skip(In *in, int type, int deep);

static int field(In *in, int64_t *id) {
    if (in->at >= in->end) { in->bad = 1; return 0; }
    uint8_t byte = *in->at++;
    if (byte == 0) return 0;
    *id = byte >> 4 ? *id + (byte >> 4) : zigzag(in);
    return byte & 0x0F;
}

static void skip(In *in, int type, int deep) {
    if (deep > DEEP) { in->bad = 1; return; }
    switch (type) {
    case 1: case 2: return;
    case 3: pass(in, 1); return;
    case 4: case 5: case 6: varint(in); return;
    case 7: pass(in, 8); return;
    case 8: pass(in, varint(in)); return;
    case 12: {
        int64_t id = 0;
        for (int inner; !in->bad && (inner = field(in, &id));) skip(in, inner, deep + 1);
        return;
    }
    default: in->bad = 1;   /* lists and maps: no page's header has any */
    }
}

static void number(In *in, int type, int64_t id, int64_t *numbers, int deep) {
    int known = id >= 0 && id < IDS;
    if (type == 1 || type == 2) {
        if (known) numbers[id] = type == 1;
    } else if (type == 5 || type == 6) {
        int64_t value = zigzag(in);
        if (known) numbers[id] = value;
    } else {
        skip(in, type, deep);
    }
}

static int header(In *in, Header *h) {
    memset(h, 0, sizeof *h);
    h->inner[8][7] = 1;   /* is_compressed, true where nothing is said */
    int64_t id = 0;
    for (int type; !in->bad && (type = field(in, &id));) {
        if (id < 0 || id >= IDS) { skip(in, type, 1); continue; }
        h->has[id] = 1;
        if (type != 12) { number(in, type, id, h->numbers, 1); continue; }
        int64_t part = 0;
        for (int inner; !in->bad && (inner = field(in, &part));) number(in, inner, part, h->inner[id], 2);
    }
    return !in->bad;
}

enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };

/* One page as (kind, where its bytes begin, how many, how many unpacked, values, encoding, bytes of levels, packed). */
static PyObject *page(const Header *h, int64_t at) {
    int64_t kind = h->numbers[1], unpacked = h->numbers[2], stored = h->numbers[3];
    const int64_t *of = h->inner[kind == 0 ? 5 : kind == 2 ? 7 : 8];
    int64_t encoding, levels = 0, packed = 1;
    switch (kind) {
    case 0:
        encoding = of[2];
        if (!h->has[5] || of[3] != RLE) return NULL;
        break;
    case 2:
        encoding = of[2];
        if (!h->has[7] || (encoding != PLAIN && encoding != PLAIN_DICTIONARY)) return NULL;
        break;
    case 3:
        encoding = of[4];
        levels = of[5];
        packed = of[7];
        if (!h->has[8] || of[6] != 0 || levels < 0 || levels > stored || levels > unpacked) return NULL;
        break;
    default: return NULL;
    }
    if (kind != 2 && encoding != PLAIN && encoding != PLAIN_DICTIONARY && encoding != RLE_DICTIONARY) return NULL;
    if (of[1] < 0) return NULL;
    return Py_BuildValue("(LLLLLLLL)", (long long)kind, (long long)at, (long long)stored, (long long)unpacked,
                         (long long)of[1], (long long)(encoding == PLAIN), (long long)levels, (long long)packed);
}

static PyObject *pages(PyObject *self, PyObject *args) {
    Py_buffer data;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    const uint8_t *start = data.buf, *end = start + data.len;
    In in = {start, end, 0};
    PyObject *list = PyList_New(0);
    int fine = list != NULL;
    while (fine && in.at < end) {
        Header h;
        PyObject *made = NULL;
        if (header(&in, &h) && h.numbers[2] >= 0 && h.numbers[3] >= 0 && h.numbers[3] <= end - in.at)
            made = page(&h, in.at - start);
        fine = made != NULL && PyList_Append(list, made) == 0;
        Py_XDECREF(made);
        in.at += fine ? h.numbers[3] : 0;
    }
    PyBuffer_Release(&data);
    if (fine) return list;
    Py_XDECREF(list);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- runs: Parquet's hybrid of repeated values and packed bits ------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;       /* what follows the open run */
    const uint8_t *bits;           /* of the open run, where it is packed; NULL where it repeats `value` */
    int64_t place, left;           /* in the open run: values taken, values left */
    uint32_t value;
    int width;
} Runs;

static int open_run(Runs *r) {
    In in = {r->at, r->end, 0};
    uint64_t head = varint(&in);
    if (in.bad || head >> 1 == 0 || head >> 33) return 0;
    r->place = 0;
    uint64_t size = head & 1 ? (head >> 1) * (uint64_t)r->width : (uint64_t)(r->width + 7) / 8;
    if (size > (uint64_t)(in.end - in.at)) return 0;
    r->left = (int64_t)(head & 1 ? (head >> 1) * 8 : head >> 1);
    r->bits = head & 1 ? in.at : NULL;
    if (!r->bits) {
        r->value = 0;
        memcpy(&r->value, in.at, size);
    }
    r->at = in.at + size;
    return 1;
}

INLINE void unpack(const uint8_t *bits, uint32_t *out, int64_t groups, int width) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << width) - 1);
    for (int64_t g = 0; g < groups; g++, bits += width, out += 8)
        for (int i = 0; i < 8; i++) {
            uint64_t word;
            memcpy(&word, bits + (i * width >> 3), 8);
            out[i] = (uint32_t)(word >> (i * width & 7)) & mask;
        }
}

#define CASE(w) case w: unpack(bits, out, groups, w); break;
FAST static void unpacked(const uint8_t *bits, uint32_t *out, int64_t groups, int width) {
    switch (width) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    CASE(15) CASE(16) CASE(17) CASE(18) CASE(19) CASE(20) CASE(21) CASE(22) CASE(23) CASE(24) CASE(25) CASE(26) CASE(27)
    CASE(28) CASE(29) CASE(30) CASE(31) CASE(32)
    default: memset(out, 0, (size_t)groups * 32);
    }
}

static uint32_t one(const Runs *r, int64_t place) {
    int64_t bit = place * r->width;
    const uint8_t *from = r->bits + (bit >> 3);
    uint64_t word = 0;
    int64_t there = r->end - from;
    if (there >= 8) memcpy(&word, from, 8);
    else memcpy(&word, from, (size_t)there);
    return (uint32_t)((word >> (bit & 7)) & ((UINT64_C(1) << r->width) - 1));
}

static void take_packed(const Runs *r, uint32_t *out, int64_t n) {
    int64_t i = 0, place = r->place;
    while (i < n && (place + i) & 7) { out[i] = one(r, place + i); i++; }
    const uint8_t *from = r->bits + ((place + i) >> 3) * r->width;
    int64_t groups = (n - i) >> 3, safe = r->width ? (r->end - from - 8) / r->width : groups;   /* groups read 8 bytes beyond */
    if (groups > safe) groups = safe > 0 ? safe : 0;
    unpacked(from, out + i, groups, r->width);
    for (i += groups * 8; i < n; i++) out[i] = one(r, place + i);
}

static int take(Runs *r, uint32_t *out, int64_t n) {
    while (n) {
        if (!r->left && !open_run(r)) return 0;
        int64_t some = n < r->left ? n : r->left;
        if (r->bits) take_packed(r, out, some);
        else for (int64_t i = 0; i < some; i++) out[i] = r->value;
        out += some, n -= some, r->place += some, r->left -= some;
    }
    return 1;
}

/* --- columns --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t texts, width, nullable;
    int64_t dictionary, entries;          /* numbers: where its values lie; how many there are */
    int64_t out, out_step, gone, gone_step;
    int64_t page, pages;                  /* the first of its pages in their table */
    int64_t base, plain;                  /* texts: the numbers of the dictionary's first entry, and of the first one beside it */
    int64_t nulls;                        /* answered */
} Column;

typedef struct {
    int64_t levels, levels_size;          /* -1 where they lie before the values, with their size */
    int64_t values, values_size, count, plain;
} Page;

typedef struct {
    const Page *page, *last;
    int64_t left;                         /* rows of the open page */
    Runs levels, values;
    const uint8_t *plain, *end;           /* what is left of a plain page */
    int64_t texts;                        /* taken from plain pages */
} Reader;

static int open_page(Reader *r, const Column *c) {
    if (r->page == r->last) return 0;
    const Page *p = r->page++;
    const uint8_t *at = (const uint8_t *)(intptr_t)p->values, *end = at + p->values_size;
    r->left = p->count;
    r->levels.left = r->values.left = 0;
    if (c->nullable && p->levels_size < 0) {
        uint32_t size;
        if (end - at < 4) return 0;
        memcpy(&size, at, 4);
        if (size > (uint64_t)(end - at - 4)) return 0;
        r->levels.at = at + 4;
        at = r->levels.end = at + 4 + size;
    } else if (c->nullable) {
        r->levels.at = (const uint8_t *)(intptr_t)p->levels;
        r->levels.end = r->levels.at + p->levels_size;
    }
    r->levels.width = 1;
    r->plain = p->plain ? at : NULL;
    r->end = end;
    if (!p->plain) {
        r->values.width = at < end ? *at++ : 0;
        if (r->values.width > 32) return 0;
        r->values.at = at;
        r->values.end = end;
    }
    return 1;
}

/* Eight bits as eight bytes, 1 or 0. */
static uint64_t eight(uint8_t bits) {
    uint64_t each = (bits * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
    return (each + UINT64_C(0x7F7F7F7F7F7F7F7F)) >> 7 & UINT64_C(0x0101010101010101);
}

/* As open_run, for one bit: most runs say all in two bytes. */
INLINE int open_levels(Runs *r) {
    if (r->end - r->at < 2 || r->at[0] < 2 || r->at[0] > 0x7F) return open_run(r);
    int64_t size = r->at[0] >> 1, packed = r->at[0] & 1;
    if (packed && size > r->end - r->at - 1) return 0;
    r->place = 0;
    r->left = packed ? size * 8 : size;
    r->bits = packed ? r->at + 1 : NULL;
    r->value = r->at[1];
    r->at += packed ? 1 + size : 2;
    return 1;
}

/* Which of n rows are there, 1 or 0 each, with up to SLACK bytes of anything behind them; their number, -1 for damage.
 * Where few are missing runs are short, so nothing here is called for each of them. */
static int64_t take_levels(Runs *r, uint8_t *there, int64_t n) {
    int64_t sum = 0;
    while (n) {
        if (!r->left && !open_levels(r)) return -1;
        int64_t some = n < r->left ? n : r->left;
        if (!r->bits) {
            if (r->value > 1) return -1;
            for (int64_t i = 0; i < some; i += SLACK) memset(there + i, (int)r->value, SLACK);
            sum += r->value ? some : 0;
        } else {
            for (int64_t i = 0, place = r->place; i < some;) {
                int64_t from = place & 7, here = 8 - from < some - i ? 8 - from : some - i;
                uint64_t each = eight((uint8_t)(r->bits[place >> 3] >> from));
                memcpy(there + i, &each, 8);
                for (int64_t k = here; k < 8; k++) each &= ~(UINT64_C(0xFF) << 8 * k);
                sum += (int64_t)((each * UINT64_C(0x0101010101010101)) >> 56);
                i += here, place += here;
            }
        }
        there += some, n -= some, r->place += some, r->left -= some;
    }
    return sum;
}

#define SPREAD(T, VALUE, WHERE) do { \
    const int64_t step = c->out_step; \
    char *out = (char *)(intptr_t)c->out + row * step; \
    if (m == n) for (int64_t i = 0; i < n; i++, out += step) { T v = (T)(VALUE(i)); memcpy(out, &v, sizeof v); } \
    else for (int64_t i = 0, k = 0; i < n; i++, out += step) { \
        T v = (T)WHERE((T)(VALUE(k)), (T)there[i]); memcpy(out, &v, sizeof v); k += there[i]; } \
} while (0)

#define CODE(k) (base + (int64_t)places[k])
#define LOOKED4(k) (table4[places[k]])
#define LOOKED8(k) (table8[places[k]])
#define OR_ZERO(v, there) ((v) & (0 - (there)))        /* no branch: gaps are anywhere */
#define OR_NONE(v, there) ((v) | ((there) - 1))

/* n rows of a column of which m are there, from `row` on. `places` holds m numbers of entries, and one more, 0. */
FAST static void spread_places(const Column *c, int64_t row, int64_t n, int64_t m, const uint8_t *there, const uint32_t *places,
                               int64_t base) {
    const uint32_t *table4 = (const uint32_t *)(intptr_t)c->dictionary;
    const uint64_t *table8 = (const uint64_t *)(intptr_t)c->dictionary;
    if (c->texts) SPREAD(uint32_t, CODE, OR_NONE);
    else if (c->width == 4) SPREAD(uint32_t, LOOKED4, OR_ZERO);
    else SPREAD(uint64_t, LOOKED8, OR_ZERO);
}

static void spread_plain(const Column *c, int64_t row, int64_t n, const uint8_t *there, const uint8_t *from) {
    char *out = (char *)(intptr_t)c->out + row * c->out_step;
    for (int64_t i = 0; i < n; i++, out += c->out_step) {
        memset(out, 0, (size_t)c->width);
        if (there[i]) { memcpy(out, from, (size_t)c->width); from += c->width; }
    }
}

static int plain_rows(Reader *r, Column *c, int64_t row, int64_t n, int64_t m, const uint8_t *there, uint32_t *places) {
    if (!c->texts) {
        if (r->end - r->plain < m * c->width) return 0;
        spread_plain(c, row, n, there, r->plain);
        r->plain += m * c->width;
        return 1;
    }
    for (int64_t k = 0; k < m; k++) {
        uint32_t size;
        if (r->end - r->plain < 4) return 0;
        memcpy(&size, r->plain, 4);
        if (size > (uint64_t)(r->end - r->plain - 4)) return 0;
        r->plain += 4 + size;
        places[k] = (uint32_t)k;
    }
    places[m] = 0;
    spread_places(c, row, n, m, there, places, c->plain + r->texts);
    r->texts += m;
    return 1;
}

FAST static uint32_t greatest(const uint32_t *places, int64_t m) {
    uint32_t most = 0;
    for (int64_t i = 0; i < m; i++) most = places[i] > most ? places[i] : most;
    return most;
}

static int rows_of(Reader *r, Column *c, int64_t row, int64_t n) {
    uint8_t there[TILE + SLACK];
    uint32_t places[TILE + 1];
    int64_t m = n;
    if (c->nullable) {
        m = take_levels(&r->levels, there, n);
        if (m < 0) return 0;
    } else {
        memset(there, 1, (size_t)n);
    }
    c->nulls += n - m;
    if (c->gone && m < n) {                 /* masks are zeros to begin with */
        const int64_t step = c->gone_step;
        char *gone = (char *)(intptr_t)c->gone + row * step;
        for (int64_t i = 0; i < n; i++, gone += step) *gone = (char)(there[i] ^ 1);
    }
    if (r->plain) return plain_rows(r, c, row, n, m, there, places);
    if (m && (!take(&r->values, places, m) || greatest(places, m) >= (uint64_t)c->entries)) return 0;
    places[m] = 0;
    if (m || c->texts) {
        spread_places(c, row, n, m, there, places, c->base);
        return 1;
    }
    spread_plain(c, row, n, there, NULL);   /* all are missing, and there may be no dictionary */
    return 1;
}

static int decode_all(Column *columns, int64_t count, const Page *pages, int64_t rows) {
    Reader *readers = calloc((size_t)(count ? count : 1), sizeof *readers);
    int fine = readers != NULL;
    for (int64_t i = 0; fine && i < count; i++) {
        readers[i].page = pages + columns[i].page;
        readers[i].last = readers[i].page + columns[i].pages;
    }
    for (int64_t row = 0; fine && row < rows; row += TILE)
        for (int64_t i = 0; fine && i < count; i++) {
            int64_t end = row + TILE < rows ? row + TILE : rows;
            for (int64_t at = row; fine && at < end;) {
                Reader *r = readers + i;
                while (fine && !r->left) fine = open_page(r, columns + i);
                int64_t some = end - at < r->left ? end - at : r->left;
                fine = fine && rows_of(r, columns + i, at, some);
                r->left -= some;
                at += some;
            }
        }
    free(readers);
    return fine;
}

static PyObject *decode(PyObject *self, PyObject *args) {
    Py_buffer columns, pages;
    long long rows;
    int fine = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*L", &columns, &pages, &rows)) return NULL;
    int right = columns.len % sizeof(Column) == 0 && pages.len % sizeof(Page) == 0 && rows >= 0;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        fine = decode_all(columns.buf, (int64_t)(columns.len / (Py_ssize_t)sizeof(Column)), pages.buf, rows);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&columns);
    PyBuffer_Release(&pages);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the tables of columns and pages don't fit");
        return NULL;
    }
    return PyBool_FromLong(fine);
}

/* --- texts ----------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t at, size, most, count; } Part;   /* most: -1 where all that is there is taken; count: answered */

static int64_t collect(Part *parts, int64_t many, int32_t *ends, int64_t room, char *out, int64_t bytes) {
    int64_t texts = 0, to = 0;
    for (int64_t p = 0; p < many; p++) {
        const uint8_t *at = (const uint8_t *)(intptr_t)parts[p].at, *end = at + parts[p].size;
        int64_t count = 0;
        for (; parts[p].most < 0 ? at < end : count < parts[p].most; count++) {
            uint32_t size;
            if (end - at < 4 || texts >= room) return -1;
            memcpy(&size, at, 4);
            at += 4;
            if (size > (uint64_t)(end - at) || size > (uint64_t)(bytes - to) || to + size > INT32_MAX) return -1;
            if (size <= 16 && end - at >= 16 && bytes - to >= 16) memcpy(out + to, at, 16);
            else memcpy(out + to, at, size);
            at += size;
            to += size;
            ends[++texts] = (int32_t)to;
        }
        parts[p].count = count;
    }
    return texts;
}

static PyObject *texts(PyObject *self, PyObject *args) {
    Py_buffer parts, ends, out;
    int64_t found = -1;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*w*w*", &parts, &ends, &out)) return NULL;
    int right = parts.len % sizeof(Part) == 0 && ends.len >= 4 && ends.len % 4 == 0;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        *(int32_t *)ends.buf = 0;
        found = collect(parts.buf, (int64_t)(parts.len / (Py_ssize_t)sizeof(Part)), ends.buf, ends.len / 4 - 1, out.buf, out.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&parts);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&out);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the table of parts doesn't fit");
        return NULL;
    }
    return PyLong_FromLongLong(found);
}

FAST static void number_all(const int32_t *codes, int64_t first, int64_t *cells, uint8_t *gone, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        cells[i] = codes[i] + first;
        gone[i] = codes[i] < 0;
    }
}

static PyObject *numbers(PyObject *self, PyObject *args) {
    Py_buffer codes, cells, gone;
    long long first;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Lw*w*", &codes, &first, &cells, &gone)) return NULL;
    int right = codes.len == gone.len * 4 && cells.len == gone.len * 8;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        number_all(codes.buf, first, cells.buf, gone.buf, gone.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&codes);
    PyBuffer_Release(&cells);
    PyBuffer_Release(&gone);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the arrays have unlike sizes");
        return NULL;
    }
    Py_RETURN_NONE;
}

static uint64_t murmur(const uint8_t *at, int64_t size) {
    const uint64_t m = UINT64_C(0xC6A4A7935BD1E995);
    uint64_t h = (uint64_t)size * m, k;
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&k, at, 8);
        k *= m;
        h = (h ^ (k ^ k >> 47) * m) * m;
    }
    if (size) {
        k = 0;
        memcpy(&k, at, (size_t)size);
        h = (h ^ k) * m;
    }
    h = (h ^ h >> 47) * m;
    return h ^ h >> 47;
}

static PyObject *digests(PyObject *self, PyObject *args) {
    Py_buffer data, ends, out;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*", &data, &ends, &out)) return NULL;
    const int64_t *e = ends.buf;
    int64_t count = (int64_t)(out.len / 8);
    int right = ends.len == out.len + 8 && out.len % 8 == 0;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; right && i < count; i++) {
            right = e[i] >= 0 && e[i] <= e[i + 1] && e[i + 1] <= data.len;
            if (right) ((uint64_t *)out.buf)[i] = murmur((const uint8_t *)data.buf + e[i], e[i + 1] - e[i]);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&out);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the ends don't fit the data");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pages", pages, METH_VARARGS, "pages(data) -> list of (kind, at, stored, unpacked, count, plain, levels, packed) | None"},
    {"decode", decode, METH_VARARGS, "decode(columns, pages, rows) -> bool: are all outputs filled"},
    {"texts", texts, METH_VARARGS, "texts(parts, ends, out) -> how many, -1 for damage"},
    {"numbers", numbers, METH_VARARGS, "numbers(codes, first, cells, gone): codes + first, and which are below 0"},
    {"digests", digests, METH_VARARGS, "digests(data, ends, out): MurmurHash64A (seed 0) of each text"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_parquetpages", "Data pages of Parquet decoded into rows.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__parquetpages(void) { return PyModule_Create(&module); }
