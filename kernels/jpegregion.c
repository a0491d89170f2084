/* Part of a JPEG decoded, by libjpeg-turbo's crop and skip calls: only rows and columns that are wanted go through the
 * transform and the colour conversion. Bytes in, pixels into the caller's buffer, the interpreter's lock released.
 *
 * Answers 1 where the pixels are those of the whole image decoded and cut, and 0 where that can't be promised: any
 * damage that is met, several scans, four colours, uncommon sampling. The caller decodes the whole image then.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed"
#endif
#define LINES 16   /* read at once */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

typedef struct {
    struct jpeg_error_mgr manager;
    jmp_buf back;
} Errors;

typedef struct {
    long width, height;                /* what the caller read in the header */
    long top, left, rows, columns;     /* the window, in pixels of the shrunk image */
    long channels, shrink;
} Wish;

static void leave(j_common_ptr info) { longjmp(((Errors *)info->err)->back, 1); }

static void stay_silent(j_common_ptr info) { (void)info; }

/* Is the first marker after the scan's data the end of the image? Only then has the file nothing else to complain of. */
static int ends_after_scan(const unsigned char *at, size_t left) {
    const unsigned char *end = at + left;
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at))) != NULL) {
        while (at < end && *at == 0xFF) at++;
        if (at == end) return 0;
        if (*at == 0xD9) return 1;
        if (*at != 0x00 && (*at < 0xD0 || *at > 0xD7)) return 0;
    }
    return 0;
}

/* Files for which the decoder's parts are known to give the same pixels as the whole. */
static int is_plain(j_decompress_ptr c, const Wish *w) {
    const jpeg_component_info *i = c->comp_info;
    if (c->image_width != (JDIMENSION)w->width || c->image_height != (JDIMENSION)w->height) return 0;
    if (c->data_precision != 8 || c->progressive_mode || c->arith_code || jpeg_has_multiple_scans(c)) return 0;
    if (c->num_components == 1) return c->jpeg_color_space == JCS_GRAYSCALE;
    if (c->num_components != 3 || (c->jpeg_color_space != JCS_YCbCr && c->jpeg_color_space != JCS_RGB)) return 0;
    return i[0].h_samp_factor <= 2 && i[0].v_samp_factor <= 2 && i[1].h_samp_factor == 1 && i[1].v_samp_factor == 1
        && i[2].h_samp_factor == 1 && i[2].v_samp_factor == 1;
}

static void read_window(j_decompress_ptr c, const Wish *w, unsigned char *out) {
    /* Chroma is interpolated from its neighbours, so two more columns on either side are decoded, and cut off. */
    JDIMENSION left = (JDIMENSION)(w->left > 2 ? w->left - 2 : 0), end = (JDIMENSION)(w->left + w->columns + 2);
    JDIMENSION wide, skipped;
    size_t length = (size_t)w->columns * (size_t)w->channels;
    JSAMPARRAY lines;

    if (end > c->output_width) end = c->output_width;
    wide = end - left;
    if (wide < c->output_width) jpeg_crop_scanline(c, &left, &wide);   /* moves `left` to where a block begins */
    skipped = (JDIMENSION)w->left - left;
    /* At aligned addresses libjpeg-turbo's vector code writes past the caches, from where we would have to read it back. */
    lines = (*c->mem->alloc_sarray)((j_common_ptr)c, JPOOL_IMAGE, c->output_width * (JDIMENSION)w->channels + 1, LINES);
    for (int k = 0; k < LINES; k++) lines[k]++;
    if (w->top > 0) jpeg_skip_scanlines(c, (JDIMENSION)w->top);
    for (long y = 0, count; y < w->rows; y += count) {
        count = jpeg_read_scanlines(c, lines, (JDIMENSION)(w->rows - y < LINES ? w->rows - y : LINES));
        for (long k = 0; k < count; k++, out += length) memcpy(out, lines[k] + (size_t)skipped * (size_t)w->channels, length);
    }
}

static int decode(const unsigned char *data, size_t size, const Wish *w, unsigned char *out) {
    struct jpeg_decompress_struct c;
    Errors errors;
    volatile int done = 0;

    c.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = leave;
    errors.manager.output_message = stay_silent;
    if (setjmp(errors.back) == 0) {
        jpeg_create_decompress(&c);
        jpeg_mem_src(&c, data, (unsigned long)size);
        jpeg_read_header(&c, TRUE);
        if (is_plain(&c, w) && ends_after_scan(c.src->next_input_byte, c.src->bytes_in_buffer)) {
            c.out_color_space = w->channels == 1 ? JCS_GRAYSCALE : w->channels == 3 ? JCS_RGB : JCS_EXT_RGBA;
            c.scale_num = 1;
            c.scale_denom = (unsigned)w->shrink;
            jpeg_start_decompress(&c);
            if (w->top + w->rows <= (long)c.output_height && w->left + w->columns <= (long)c.output_width) {
                read_window(&c, w, out);
                done = errors.manager.num_warnings == 0;
            }
        }
    }
    jpeg_destroy_decompress(&c);
    return done;
}

static PyObject *decode_window(PyObject *self, PyObject *args) {
    Py_buffer data, out;
    Wish w;
    int done = 0;
    (void)self;

    if (!PyArg_ParseTuple(args, "y*w*llllllll", &data, &out, &w.height, &w.width, &w.top, &w.left, &w.rows, &w.columns,
                          &w.channels, &w.shrink))
        return NULL;
    int right = w.height > 0 && w.width > 0 && w.top >= 0 && w.left >= 0 && w.rows > 0 && w.columns > 0
        && w.rows <= w.height && w.columns <= w.width && w.top <= w.height - w.rows && w.left <= w.width - w.columns
        && (w.channels == 1 || w.channels == 3 || w.channels == 4)
        && (w.shrink == 1 || w.shrink == 2 || w.shrink == 4 || w.shrink == 8)
        && out.len == (Py_ssize_t)w.rows * w.columns * w.channels;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        done = decode(data.buf, (size_t)data.len, &w, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the window doesn't fit the image or the buffer");
        return NULL;
    }
    return PyBool_FromLong(done);
}

static PyMethodDef methods[] = {
    {"decode_window", decode_window, METH_VARARGS,
     "decode_window(data, out, height, width, top, left, rows, columns, channels, shrink) -> bool: is `out` filled"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_jpegregion", "Part of a JPEG decoded, by libjpeg-turbo.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__jpegregion(void) {
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddStringConstant(made, "VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
