/* What a reader of the ring does for every batch: forget batches that are gone, say which rows are free, wait for the next
 * ones, and lay arrays over them. A number of rows goes in, arrays by column come out.
 *
 * `take` does this where all is as usual, in one call with everything it needs close together: done by seventy calls of
 * Python it costs most when caches are cold, which they are after each training step. Whatever is unusual (an epoch's end,
 * news from the producer, batches to move aside, pages that a loop wrote to) it leaves alone and answers None: `attach`
 * does the same in Python then, and where this isn't built.
 */
#include "handover.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

enum { COLUMNS = 64, PAGES_AT_ONCE = 4096 };
enum { UNUSUAL = -1, NOT_YET = 0, THERE = 1 };

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t faults(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
}

/* -- the bookkeeping of a batch, see lease.py */

typedef struct {
    PyObject_HEAD
    PyObject *window, *spans;
    long long start, stop, faults;
    char moved, ended;
} Held;

typedef struct {
    PyObject_HEAD
    Held *held;
} Lease;

typedef struct {
    PyObject_HEAD
    PyObject *lease;
    char *address;
    Py_ssize_t size;
    int read_only;
} Bytes;

static PyTypeObject *held_type, *lease_type, *bytes_type, *taker_type;

static Held *hold(PyTypeObject *type, PyObject *window, int64_t start, int64_t stop, PyObject *spans, int64_t seen) {
    Held *h = made(type);
    if (h != NULL) {
        h->window = Py_NewRef(window);
        h->spans = Py_NewRef(spans);
        h->start = start, h->stop = stop, h->faults = seen;
    }
    return h;
}

static PyObject *held_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *window, *spans;
    long long start, stop, seen;
    (void)named;
    if (!PyArg_ParseTuple(args, "OLLOL", &window, &start, &stop, &spans, &seen))
        return NULL;
    return (PyObject *)hold(type, window, start, stop, spans, seen);
}

static void held_gone(PyObject *self) {
    Py_XDECREF(((Held *)self)->window);
    Py_XDECREF(((Held *)self)->spans);
    gone(self);
}

static PyMemberDef held_members[] = {
    {"window", T_OBJECT_EX, offsetof(Held, window), READONLY, NULL},
    {"spans", T_OBJECT_EX, offsetof(Held, spans), READONLY, NULL},
    {"start", T_LONGLONG, offsetof(Held, start), READONLY, NULL},
    {"stop", T_LONGLONG, offsetof(Held, stop), READONLY, NULL},
    {"faults", T_LONGLONG, offsetof(Held, faults), READONLY, NULL},
    {"moved", T_BOOL, offsetof(Held, moved), 0, NULL},
    {"ended", T_BOOL, offsetof(Held, ended), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *lease_of(PyTypeObject *type, Held *h) {
    Lease *l = made(type);
    if (l != NULL)
        l->held = (Held *)Py_NewRef((PyObject *)h);
    return (PyObject *)l;
}

static PyObject *lease_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *h;
    (void)named;
    if (!PyArg_ParseTuple(args, "O!", held_type, &h))
        return NULL;
    return lease_of(type, (Held *)h);
}

static void lease_gone(PyObject *self) {
    Held *h = ((Lease *)self)->held;
    if (h != NULL) {
        h->ended = 1;
        Py_DECREF((PyObject *)h);
    }
    gone(self);
}

static PyMemberDef lease_members[] = {
    {"held", T_OBJECT_EX, offsetof(Lease, held), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int bytes_buffer(PyObject *self, Py_buffer *view, int flags) {
    Bytes *b = (Bytes *)self;
    return PyBuffer_FillInfo(view, self, b->address, b->size, b->read_only, flags);
}

static void bytes_gone(PyObject *self) {
    Py_XDECREF(((Bytes *)self)->lease);
    gone(self);
}

/* -- one reader */

typedef struct {
    int part, shared;                       /* shared: it lies over the ring, else it is copied */
    int64_t row_bytes, size, base, ring;    /* bytes of a row and of all rows; where the mapping starts, and its bytes */
    PyObject *name, *dtype, *shape;
} Column;

typedef struct {
    PyObject_HEAD
    char *header, *page;
    const int64_t *next, *skip;             /* points of rows, by row modulo `points` */
    int64_t number, capacity, next_points, skip_points;
    int data_fd, room_fd, heap_fd, watch_fd, pagemap_fd, writable, page_bytes;
    PyObject *attachment, *window, *windows, *live, *ndarray, *news;
    int64_t count;                          /* rows that the columns are planned for */
    int columns, shares;
    Column column[COLUMNS];
} Taker;

static void forget_plan(Taker *t) {
    for (int k = 0; k < t->columns; k++) {
        Py_XDECREF(t->column[k].name);
        Py_XDECREF(t->column[k].dtype);
        Py_XDECREF(t->column[k].shape);
    }
    t->count = t->columns = t->shares = 0;
}

static PyObject *taker_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    unsigned long long header, page, next, skip;
    long long number, capacity, next_points, skip_points;
    int data, room, heap, watch, pagemap, writable, page_bytes;
    PyObject *attachment, *window, *windows, *live, *ndarray;
    (void)named;
    if (!PyArg_ParseTuple(args, "KKLL(KLKL)(iiii)iiiOOO!O!O", &header, &page, &number, &capacity, &next, &next_points, &skip,
                          &skip_points, &data, &room, &heap, &watch, &pagemap, &writable, &page_bytes,
                          &attachment, &window, &PyList_Type, &windows, &PyList_Type, &live, &ndarray))
        return NULL;
    Taker *t = made(type);
    if (t == NULL)
        return NULL;
    t->header = (char *)(uintptr_t)header, t->page = (char *)(uintptr_t)page;
    t->next = (const int64_t *)(uintptr_t)next, t->skip = (const int64_t *)(uintptr_t)skip;
    t->number = number, t->capacity = capacity, t->next_points = next_points, t->skip_points = skip_points;
    t->data_fd = data, t->room_fd = room, t->heap_fd = heap, t->watch_fd = watch;
    t->pagemap_fd = pagemap, t->writable = writable, t->page_bytes = page_bytes;
    t->attachment = Py_NewRef(attachment), t->window = Py_NewRef(window), t->windows = Py_NewRef(windows);
    t->live = Py_NewRef(live), t->ndarray = Py_NewRef(ndarray), t->news = PyUnicode_InternFromString("news");
    return (PyObject *)t;
}

static void taker_gone(PyObject *self) {
    Taker *t = (Taker *)self;
    forget_plan(t);
    Py_XDECREF(t->attachment);
    Py_XDECREF(t->window);
    Py_XDECREF(t->windows);
    Py_XDECREF(t->live);
    Py_XDECREF(t->ndarray);
    Py_XDECREF(t->news);
    gone(self);
}

static PyObject *plan(PyObject *self, PyObject *args) {
    Taker *t = (Taker *)self;
    PyObject *columns;
    long long count;
    if (!PyArg_ParseTuple(args, "LO!", &count, &PyTuple_Type, &columns))
        return NULL;
    Py_ssize_t size = PyTuple_Size(columns);
    if (size > COLUMNS || count <= 0) {
        PyErr_SetString(PyExc_ValueError, "too many columns, or no rows");
        return NULL;
    }
    forget_plan(t);
    for (Py_ssize_t k = 0; k < size; k++) {
        Column *c = &t->column[k];
        unsigned long long base;
        long long row_bytes, bytes, ring;
        if (!PyArg_ParseTuple(PyTuple_GetItem(columns, k), "iOLLOOpKL", &c->part, &c->name, &row_bytes, &bytes, &c->dtype, &c->shape,
                              &c->shared, &base, &ring))
            return NULL;
        c->row_bytes = row_bytes, c->size = bytes, c->base = (int64_t)base, c->ring = ring;
        Py_INCREF(c->name), Py_INCREF(c->dtype), Py_INCREF(c->shape);
        t->columns++;
        t->shares += c->shared;
    }
    t->count = count;
    Py_RETURN_NONE;
}

/* Is one of these pages of ours alone, since somebody wrote to it? Where the kernel doesn't say, it is. */
static int any_private(const Taker *t, int64_t first, int64_t end) {
    uint64_t words[PAGES_AT_ONCE];
    while (first < end) {
        int64_t pages = (end - first) / t->page_bytes;
        size_t wanted = (size_t)(pages < PAGES_AT_ONCE ? pages : PAGES_AT_ONCE) * 8;
        if (pread(t->pagemap_fd, words, wanted, first / t->page_bytes * 8) != (ssize_t)wanted)
            return 1;
        for (size_t k = 0; k < wanted / 8; k++)
            if (words[k] >> 62 && !(words[k] >> 61 & 1))   /* present or swapped, and no page of a file */
                return 1;
        first += (int64_t)(wanted / 8) * t->page_bytes;
    }
    return 0;
}

static int64_t address(const Column *c, int64_t position) { return c->base + position * c->row_bytes % c->ring; }

/* The pages that a column of these rows lies on. */
static void pages(const Taker *t, const Column *c, int64_t position, int64_t size, int64_t *first, int64_t *end) {
    int64_t at = address(c, position), p = t->page_bytes;
    *first = at / p * p;
    *end = (at + size + p - 1) / p * p;
}

/* Do all its arrays over the ring lie in columns that are planned so? Those of fewer rows do: columns of few bytes are copied. */
static int known(const Taker *t, const Held *h) { return h->stop - h->start <= t->count && h->window == t->window; }

/* Was a batch that is gone written to? */
static int written(const Taker *t, const Held *h) {
    if (!known(t, h))
        return 1;
    for (int k = 0; k < t->columns; k++) {
        int64_t first, end;
        if (!t->column[k].shared)
            continue;
        pages(t, &t->column[k], h->start, (h->stop - h->start) * t->column[k].row_bytes, &first, &end);
        if (any_private(t, first, end))
            return 1;
    }
    return 0;
}

static Held *live_at(const Taker *t, Py_ssize_t i) { return (Held *)PyList_GetItem(t->live, i); }

/* Forget batches that are gone. 0: one of them has pages to be dropped first; -1: an error. */
static int settle(Taker *t) {
    int64_t seen = -1;
    for (Py_ssize_t i = PyList_Size(t->live) - 1; i >= 0; i--) {
        Held *h = live_at(t, i);
        if (!h->ended)
            continue;
        if (h->moved)
            return 0;
        if (t->writable && seen < 0)
            seen = faults();
        if (t->writable && h->faults != seen && written(t, h))
            return 0;
        if (PyList_SetSlice(t->live, i, i + 1, NULL) < 0)
            return -1;
    }
    return 1;
}

/* The row before which the ring may be used again; -1: the oldest batch has to be moved aside first. */
static int64_t oldest(const Taker *t, int64_t position) {
    for (Py_ssize_t i = 0; i < PyList_Size(t->live); i++) {
        Held *h = live_at(t, i);
        if (!h->moved)
            return position - h->start > t->capacity / 2 ? -1 : h->start;
    }
    return position;
}

/* Can the next rows be read through the first window: are all pages that they share with others the ring's own? */
static int clean(const Taker *t, int64_t position) {
    for (Py_ssize_t i = 0; i < PyList_Size(t->live); i++) {
        Held *h = live_at(t, i);
        if (h->window != t->window || (!h->moved && !t->writable))
            continue;
        for (int k = 0; k < t->columns; k++) {
            const Column *c = &t->column[k];
            if (!c->shared)
                continue;
            int64_t a, b, first, end, size = (h->stop - h->start) * c->row_bytes;
            pages(t, c, h->start, size, &a, &b);
            pages(t, c, position, c->size, &first, &end);
            int64_t low = a > first ? a : first, high = b < end ? b : end;
            if (low < high && (!known(t, h) || h->moved || any_private(t, low, high)))
                return 0;
        }
    }
    return 1;
}

/* Say which rows are free; whoever waits for just that is woken. */
static void publish(const Taker *t, int64_t position, int64_t released) {
    store(t->page + POSITION, position);
    store(t->page + RELEASED, released);
    fence();
    int64_t room = load(t->header + ROOM_WANTED), holder = load(t->header + HOLDER);
    if (room && released >= room && (!holder || holder == t->number))
        wake(t->room_fd);
    if (load(t->header + HEAP_WANTED))
        wake(t->heap_fd);
}

static int look(const Taker *t, int64_t position, int64_t run, int64_t ends) {
    int64_t e = load(t->header + ENDS), head = load(t->header + HEAD), r = load(t->header + RUN);
    if (e != ends || r != run || head < position || head - position > t->capacity)
        return UNUSUAL;
    return head - position >= t->count ? THERE : NOT_YET;
}

/* Until rows are signalled (which isn't read, see `Attachment.watch`). -1: an error; 0: the producer has something to say. */
static int sleep_once(const Taker *t) {
    struct epoll_event events[3];
    int got, number;
    Py_BEGIN_ALLOW_THREADS
    got = epoll_wait(t->watch_fd, events, 3, -1);
    number = errno;
    Py_END_ALLOW_THREADS
    for (int k = 0; k < got; k++)
        if (events[k].data.fd != t->data_fd)
            return 0;
    if (got >= 0)
        return 1;
    if (number == EINTR)
        return PyErr_CheckSignals() < 0 ? -1 : 1;
    errno = number;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* What is wanted is stored before looking again, so no signal is lost. */
static int await_rows(const Taker *t, int64_t position, int64_t run, int64_t ends, int *failed) {
    int64_t since = now();
    int found;
    for (;;) {
        store(t->page + SINCE, since);
        store(t->page + WANTED, position + t->count);
        fence();
        found = look(t, position, run, ends);
        if (found != NOT_YET)
            break;
        PyObject *news = PyObject_GetAttr(t->attachment, t->news);
        int told = news == NULL ? -1 : PyObject_IsTrue(news);
        Py_XDECREF(news);
        int went = told ? told : sleep_once(t);
        *failed = told < 0 || (!told && went < 0);
        if (*failed || told || !went) {
            found = UNUSUAL;
            break;
        }
    }
    store(t->page + WANTED, 0);
    store(t->page + SINCE, 0);
    store(t->page + WAITED, load(t->page + WAITED) + now() - since);
    return found;
}

static PyObject *array(const Taker *t, const Column *c, int64_t position, PyObject *lease) {
    const char *at = (const char *)(uintptr_t)address(c, position);
    PyObject *raw = NULL;
    if (lease != NULL) {
        Bytes *b = made(bytes_type);
        if (b != NULL) {
            b->lease = Py_NewRef(lease);
            b->address = (char *)(uintptr_t)at, b->size = c->size, b->read_only = !t->writable;
        }
        raw = (PyObject *)b;
    } else
        raw = t->writable ? PyByteArray_FromStringAndSize(at, c->size) : PyBytes_FromStringAndSize(at, c->size);
    if (raw == NULL)
        return NULL;
    PyObject *args = PyTuple_Pack(3, c->shape, c->dtype, raw);
    Py_DECREF(raw);
    if (args == NULL)
        return NULL;
    PyObject *found = PyObject_Call(t->ndarray, args, NULL);
    Py_DECREF(args);
    return found;
}

/* The batch is held from here on. */
static PyObject *leased(Taker *t, int64_t position) {
    PyObject *spans = PyTuple_New(t->shares), *lease = NULL;
    for (int k = 0, n = 0; spans != NULL && k < t->columns; k++) {
        const Column *c = &t->column[k];
        if (!c->shared)
            continue;
        PyObject *span = Py_BuildValue("(iLL)", c->part, (long long)(position * c->row_bytes), (long long)c->size);
        if (span == NULL || PyTuple_SetItem(spans, n++, span) < 0)
            Py_CLEAR(spans);
    }
    if (spans == NULL)
        return NULL;
    Held *h = hold(held_type, t->window, position, position + t->count, spans, t->writable ? faults() : 0);
    Py_DECREF(spans);
    if (h != NULL && PyList_Append(t->live, (PyObject *)h) == 0)
        lease = lease_of(lease_type, h);
    Py_XDECREF((PyObject *)h);
    return lease;
}

static PyObject *fields(Taker *t, int64_t position, PyObject *lease) {
    PyObject *found = PyDict_New();
    for (int k = 0; found != NULL && k < t->columns; k++) {
        PyObject *a = array(t, &t->column[k], position, t->column[k].shared ? lease : NULL);
        if (a == NULL || PyDict_SetItem(found, t->column[k].name, a) < 0)
            Py_CLEAR(found);
        Py_XDECREF(a);
    }
    return found;
}

static PyObject *take(PyObject *self, PyObject *const *args, Py_ssize_t size) {
    Taker *t = (Taker *)self;
    if (size != 4) {
        PyErr_SetString(PyExc_TypeError, "take(position, run, ends, taken)");
        return NULL;
    }
    int64_t position = PyLong_AsLongLong(args[0]), run = PyLong_AsLongLong(args[1]), ends = PyLong_AsLongLong(args[2]);
    int64_t taken = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (!t->count || PyList_Size(t->windows) != 1)
        Py_RETURN_NONE;
    int settled = settle(t), failed = 0;
    if (settled < 0)
        return NULL;
    int64_t released = settled ? oldest(t, position) : -1;
    if (released < 0)
        Py_RETURN_NONE;
    publish(t, position, released);
    int found = look(t, position, run, ends);
    if (found == NOT_YET)
        found = await_rows(t, position, run, ends, &failed);
    if (failed)
        return NULL;
    if (found != THERE || !clean(t, position))
        Py_RETURN_NONE;
    PyObject *lease = t->shares ? leased(t, position) : NULL;
    if (t->shares && lease == NULL)
        return NULL;
    PyObject *made_fields = fields(t, position, lease);
    if (made_fields == NULL) {
        Py_XDECREF(lease);
        return NULL;
    }
    int64_t last = position + t->count - 1;
    store(t->page + POSITION, position + t->count);
    store(t->page + TAKEN, taken + t->count);
    if (lease == NULL)
        publish(t, position + t->count, position + t->count);
    PyObject *answer = Py_BuildValue("(NN(LL))", made_fields, lease == NULL ? Py_NewRef(Py_None) : lease,
                                     (long long)t->next[last % t->next_points], (long long)t->skip[last % t->skip_points]);
    return answer;
}

static PyMethodDef taker_methods[] = {
    {"plan", plan, METH_VARARGS,
     "plan(count, columns): how `count` rows are seen; a column is (part, name, bytes of a row, of all rows, dtype, shape, does it "
     "lie over the ring or is copied, where its mapping starts, bytes of that)"},
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL,
     "take(position, run, ends, taken) -> (fields, lease, (next, skip)) of the next rows, waiting for them; None: do it in Python"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef taker_members[] = {
    {"count", T_LONGLONG, offsetof(Taker, count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot held_slots[] = {
    {Py_tp_new, held_new}, {Py_tp_dealloc, held_gone}, {Py_tp_members, held_members},
    {Py_tp_doc, "The bookkeeping of one batch: rows `start` to `stop`, and the bytes its arrays lie on."}, {0, NULL}};
static PyType_Slot lease_slots[] = {
    {Py_tp_new, lease_new}, {Py_tp_dealloc, lease_gone}, {Py_tp_members, lease_members},
    {Py_tp_doc, "Every array over a batch refers to it; its end is one store."}, {0, NULL}};
static PyType_Slot bytes_slots[] = {{Py_tp_dealloc, bytes_gone}, {Py_bf_getbuffer, bytes_buffer}, {0, NULL}};
static PyType_Slot taker_slots[] = {
    {Py_tp_new, taker_new}, {Py_tp_dealloc, taker_gone}, {Py_tp_methods, taker_methods}, {Py_tp_members, taker_members},
    {Py_tp_doc, "The next rows of one reader, planned once for all batches of one size."}, {0, NULL}};
static PyType_Spec held_spec = {"pipec.runtime._handover.Held", sizeof(Held), 0, Py_TPFLAGS_DEFAULT, held_slots};
static PyType_Spec lease_spec = {"pipec.runtime._handover.Lease", sizeof(Lease), 0, Py_TPFLAGS_DEFAULT, lease_slots};
static PyType_Spec bytes_spec = {
    "pipec.runtime._handover.Bytes", sizeof(Bytes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, bytes_slots};
static PyType_Spec taker_spec = {"pipec.runtime._handover.Taker", sizeof(Taker), 0, Py_TPFLAGS_DEFAULT, taker_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_handover", "What the producer of a ring and its readers do for every batch.", -1, NULL, NULL, NULL, NULL, NULL,
};

int add_type(PyObject *to, PyTypeObject **type, PyType_Spec *spec, const char *name) {
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type == NULL || PyModule_AddObjectRef(to, name, (PyObject *)*type) < 0;
}

PyMODINIT_FUNC PyInit__handover(void) {
    PyObject *m = PyModule_Create(&module);
    if (m == NULL)
        return NULL;
    int wrong = add_type(m, &held_type, &held_spec, "Held") || add_type(m, &lease_type, &lease_spec, "Lease")
        || add_type(m, &bytes_type, &bytes_spec, "Bytes") || add_type(m, &taker_type, &taker_spec, "Taker") || add_giver(m);
    PyObject *words = wrong ? NULL : Py_BuildValue("((iiiiiii)(iiiiiii))", HEAD, ENDS, ROOM_WANTED, HEAP_WANTED, INTACT, RUN, HOLDER,
                                                   RELEASED, POSITION, WANTED, GENERATION, WAITED, SINCE, TAKEN);
    if (words == NULL || PyModule_AddObjectRef(m, "WORDS", words) < 0) {
        Py_XDECREF(words);
        Py_DECREF(m);
        return NULL;
    }
    Py_DECREF(words);
    if (PyModule_AddIntMacro(m, COLUMNS) < 0) {
        Py_DECREF(m);
        return NULL;
    }
    return m;
}
