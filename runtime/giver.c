/* What the producer does for every chunk of rows: reserve room, commit it, wake who sleeps for it.
 *
 * A `Giver` holds how far the rows go, and does each of these in one call where all is as usual: there is room, every page of
 * the ring is taken, nobody came or went, no row was left out. Else it answers None or False and has done nothing: `ring.py`
 * does the same in Python then, on the same numbers. Callers hold the writer's lock.
 */
#include "handover.h"

#include <poll.h>
#include <time.h>

enum { COLUMNS = 64, LOOK = 500 };          /* milliseconds after which Python looks who holds the producer back */

typedef struct {
    char *page;
    int fd, active, lossy;                  /* lossy: it is never waited for, but sets the pace where all are so */
    int64_t number, generation, released, blocked;   /* blocked: nanoseconds for which it held the producer back */
} Reader;

typedef struct {
    int64_t base, ring, row_bytes;          /* where the mapping starts, and its bytes */
    PyObject *name;
} Column;

typedef struct {
    PyObject_HEAD
    long long row, rows, number;
    PyObject *address;
} Room;

typedef struct {
    PyObject_HEAD
    long long head, tail, intact, legible, reserved, committed, bytes, waited;   /* waited: nanoseconds without room */
    char told, paged, patient;              /* are the readers known; has every byte of the ring its page; may none be dropped */
    char *header;
    int64_t capacity, points_stay, row_bytes;
    int room_fd, columns;
    Column column[COLUMNS];
    Py_ssize_t readers;
    Reader *reader;
    PyObject *keep;                         /* what the readers' pages and fds belong to */
} Giver;

static PyTypeObject *room_type, *giver_type;

static PyObject *room_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    long long row, rows, number;
    PyObject *address;
    (void)named;
    if (!PyArg_ParseTuple(args, "LLLO!", &row, &rows, &number, &PyDict_Type, &address))
        return NULL;
    Room *room = made(type);
    if (room != NULL) {
        room->row = row, room->rows = rows, room->number = number;
        room->address = Py_NewRef(address);
    }
    return (PyObject *)room;
}

static void room_gone(PyObject *self) {
    Py_XDECREF(((Room *)self)->address);
    gone(self);
}

static PyMemberDef room_members[] = {
    {"row", T_LONGLONG, offsetof(Room, row), READONLY, NULL},
    {"rows", T_LONGLONG, offsetof(Room, rows), READONLY, NULL},
    {"number", T_LONGLONG, offsetof(Room, number), READONLY, NULL},
    {"address", T_OBJECT_EX, offsetof(Room, address), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *giver_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    unsigned long long header;
    long long capacity, points_stay;
    int room_fd;
    PyObject *columns;
    (void)named;
    if (!PyArg_ParseTuple(args, "KLLiO!", &header, &capacity, &points_stay, &room_fd, &PyTuple_Type, &columns))
        return NULL;
    Py_ssize_t size = PyTuple_Size(columns);
    if (size > COLUMNS) {
        PyErr_SetString(PyExc_ValueError, "too many columns");
        return NULL;
    }
    Giver *g = made(type);
    if (g == NULL)
        return NULL;
    g->header = (char *)(uintptr_t)header, g->capacity = capacity, g->points_stay = points_stay, g->room_fd = room_fd;
    for (Py_ssize_t k = 0; k < size; k++) {
        Column *c = &g->column[k];
        unsigned long long base;
        long long ring, row_bytes;
        PyObject *name;
        if (!PyArg_ParseTuple(PyTuple_GetItem(columns, k), "OKLL", &name, &base, &ring, &row_bytes)) {
            Py_DECREF((PyObject *)g);
            return NULL;
        }
        c->base = (int64_t)base, c->ring = ring, c->row_bytes = row_bytes, c->name = Py_NewRef(name);
        g->columns++;
        g->row_bytes += row_bytes;
    }
    return (PyObject *)g;
}

static void forget_readers(Giver *g) {
    PyObject *keep = g->keep;
    PyMem_Free(g->reader);
    g->reader = NULL, g->keep = NULL, g->readers = 0, g->told = 0;
    Py_XDECREF(keep);
}

static void giver_gone(PyObject *self) {
    Giver *g = (Giver *)self;
    forget_readers(g);
    for (int k = 0; k < g->columns; k++)
        Py_XDECREF(g->column[k].name);
    gone(self);
}

static PyObject *forget(PyObject *self, PyObject *nothing) {
    (void)nothing;
    forget_readers((Giver *)self);
    Py_RETURN_NONE;
}

static PyObject *tell(PyObject *self, PyObject *args) {
    Giver *g = (Giver *)self;
    PyObject *readers, *keep;
    int patient;
    if (!PyArg_ParseTuple(args, "O!pO", &PyTuple_Type, &readers, &patient, &keep))
        return NULL;
    forget_readers(g);
    Py_ssize_t size = PyTuple_Size(readers);
    g->reader = PyMem_Calloc((size_t)(size ? size : 1), sizeof(Reader));
    if (g->reader == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t k = 0; k < size; k++) {
        Reader *r = &g->reader[k];
        unsigned long long page;
        long long number, generation, released;
        if (!PyArg_ParseTuple(PyTuple_GetItem(readers, k), "KippLLL", &page, &r->fd, &r->active, &r->lossy, &number, &generation,
                              &released))
            return NULL;
        r->page = (char *)(uintptr_t)page, r->number = number, r->generation = generation, r->released = released;
    }
    g->readers = size, g->keep = Py_NewRef(keep), g->told = 1, g->patient = (char)patient;
    Py_RETURN_NONE;
}

/* Before which row nobody reads any more that is waited for; -1: nobody reads, or one breaks the rules: Python looks. */
static int64_t least(Giver *g) {
    int64_t counted = INT64_MAX, lossy = -1;
    for (Py_ssize_t k = 0; k < g->readers; k++) {
        Reader *r = &g->reader[k];
        if (!r->active)
            continue;
        int64_t released = load(r->page + RELEASED);
        if (released != r->released && load(r->page + GENERATION) == r->generation) {
            released = load(r->page + RELEASED);          /* of this place, which it had taken by now */
            if (released < r->released || released > g->head)
                return -1;
            r->released = released;
        }
        if (r->lossy)
            lossy = r->released > lossy ? r->released : lossy;
        else
            counted = r->released < counted ? r->released : counted;
    }
    return counted != INT64_MAX ? counted : lossy;
}

static PyObject *addresses(const Giver *g, int64_t row) {
    PyObject *found = PyDict_New();
    for (int k = 0; found != NULL && k < g->columns; k++) {
        const Column *c = &g->column[k];
        PyObject *at = PyLong_FromLongLong(c->base + row * c->row_bytes % c->ring);
        if (at == NULL || PyDict_SetItem(found, c->name, at) < 0)
            Py_CLEAR(found);
        Py_XDECREF(at);
    }
    return found;
}

static PyObject *reserve(PyObject *self, PyObject *number) {
    Giver *g = (Giver *)self;
    int64_t rows = PyLong_AsLongLong(number);
    if (rows == -1 && PyErr_Occurred())
        return NULL;
    if (!g->told || !g->paged)
        Py_RETURN_NONE;
    int64_t low = least(g);
    if (low < 0 || g->tail + rows - low > g->capacity)
        Py_RETURN_NONE;
    Room *room = made(room_type);
    if (room == NULL)
        return NULL;
    room->address = addresses(g, g->tail);
    if (room->address == NULL) {
        Py_DECREF((PyObject *)room);
        return NULL;
    }
    room->row = g->tail, room->rows = rows, room->number = g->reserved++;
    g->tail += rows;
    int64_t lost = g->tail - g->capacity;
    g->legible = lost - g->points_stay > g->legible ? lost - g->points_stay : g->legible;
    if (lost > g->intact) {                               /* rows before it are written over from now on */
        g->intact = lost;
        store(g->header + INTACT, lost);
        fence();
    }
    return (PyObject *)room;
}

static PyObject *commit(PyObject *self, PyObject *const *args, Py_ssize_t size) {
    Giver *g = (Giver *)self;
    if (size != 2) {
        PyErr_SetString(PyExc_TypeError, "commit(room, rows)");
        return NULL;
    }
    int64_t rows = PyLong_AsLongLong(args[1]);
    if (rows == -1 && PyErr_Occurred())
        return NULL;
    Room *room = (Room *)args[0];
    if (!g->told || Py_TYPE(args[0]) != room_type || room->number != g->committed || room->row != g->head || rows <= 0
        || rows > room->rows)
        Py_RETURN_FALSE;
    g->head += rows;
    g->bytes += rows * g->row_bytes;
    store(g->header + HEAD, g->head);
    fence();
    for (Py_ssize_t k = 0; k < g->readers; k++) {
        int64_t wanted = load(g->reader[k].page + WANTED);
        if (wanted && wanted <= g->head)
            wake(g->reader[k].fd);
    }
    if (++g->committed == g->reserved && g->tail != g->head) {
        g->tail = g->head;                                /* rows left out leave no hole */
        wake(g->room_fd);
    }
    Py_RETURN_TRUE;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Have one of those who hold the producer back wake it when it passes `goal`. 0: it has passed it already. */
static int wakes_at(Giver *g, int64_t low, int64_t goal) {
    for (Py_ssize_t k = 0; k < g->readers; k++) {
        Reader *r = &g->reader[k];
        if (!r->active || r->lossy || r->released != low)
            continue;
        store(g->header + HOLDER, r->number);
        fence();
        return least(g) < goal;
    }
    store(g->header + HOLDER, 0);
    fence();
    return least(g) < goal;
}

static void blame(Giver *g, int64_t low, int64_t slept) {
    g->waited += slept;
    for (Py_ssize_t k = 0; k < g->readers; k++)
        if (g->reader[k].active && g->reader[k].released == low)
            g->reader[k].blocked += slept;
}

/* What is wanted is stored before looking again, so no signal is lost. 1: look again; 0: Python waits; -1: an error. */
static int sleep_for_room(Giver *g, int64_t goal, int stop_fd) {
    store(g->header + ROOM_WANTED, goal > 1 ? goal : 1);
    fence();
    int64_t low = least(g);
    if (low < 0)
        return 0;
    if (low >= goal || !wakes_at(g, low, goal))
        return 1;
    struct pollfd fds[2] = {{g->room_fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    int64_t since = now();
    int got, number;
    Py_BEGIN_ALLOW_THREADS
    got = poll(fds, 2, LOOK);
    number = errno;
    uint64_t told;
    if (got > 0 && fds[0].revents && read(g->room_fd, &told, 8) < 0 && errno != EAGAIN)
        got = -1, number = errno;
    Py_END_ALLOW_THREADS
    if (g->told)
        blame(g, low, now() - since);
    if (got < 0 && number == EINTR)
        return PyErr_CheckSignals() < 0 ? -1 : 1;
    if (got < 0) {
        errno = number;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return got > 0 && !fds[1].revents;
}

static PyObject *await_room(PyObject *self, PyObject *args) {
    Giver *g = (Giver *)self;
    long long rows;
    int stop_fd, went = 1;
    if (!PyArg_ParseTuple(args, "Li", &rows, &stop_fd))
        return NULL;
    int64_t low = -1;
    while (went > 0) {
        if (!g->told || !g->paged || !g->patient || (low = least(g)) < 0)
            went = 0;
        else if (g->tail + rows - low <= g->capacity)
            break;
        else
            went = sleep_for_room(g, g->tail + rows - g->capacity, stop_fd);
    }
    store(g->header + ROOM_WANTED, 0);
    return went < 0 ? NULL : PyBool_FromLong(went);
}

static PyObject *blocked(PyObject *self, PyObject *nothing) {
    Giver *g = (Giver *)self;
    (void)nothing;
    PyObject *found = PyTuple_New(g->readers);
    for (Py_ssize_t k = 0; found != NULL && k < g->readers; k++) {
        PyObject *each = PyLong_FromLongLong(g->reader[k].blocked);
        g->reader[k].blocked = 0;
        if (each == NULL || PyTuple_SetItem(found, k, each) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyMethodDef giver_methods[] = {
    {"tell", tell, METH_VARARGS,
     "tell(readers, patient, keep): who reads, as (page, fd, active, lossy, number, generation, released); may none of them be "
     "dropped; `keep` is what these belong to"},
    {"forget", forget, METH_NOARGS, "Somebody came, went or was placed."},
    {"reserve", reserve, METH_O, "reserve(rows) -> room for them; None: do it in Python"},
    {"wait", await_room, METH_VARARGS,
     "wait(rows, stop_fd) -> is there room for them; False: Python waits. Without the writer's lock"},
    {"blocked", blocked, METH_NOARGS, "Nanoseconds for which each reader held the producer back since this was asked last."},
    {"commit", (PyCFunction)(void (*)(void))commit, METH_FASTCALL,
     "commit(room, rows): the first rows of a room are there; False: do it in Python"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef giver_members[] = {
    {"head", T_LONGLONG, offsetof(Giver, head), 0, NULL},
    {"tail", T_LONGLONG, offsetof(Giver, tail), 0, NULL},
    {"intact", T_LONGLONG, offsetof(Giver, intact), 0, NULL},
    {"legible", T_LONGLONG, offsetof(Giver, legible), 0, NULL},
    {"reserved", T_LONGLONG, offsetof(Giver, reserved), 0, NULL},
    {"committed", T_LONGLONG, offsetof(Giver, committed), 0, NULL},
    {"bytes", T_LONGLONG, offsetof(Giver, bytes), 0, NULL},
    {"waited", T_LONGLONG, offsetof(Giver, waited), 0, NULL},
    {"told", T_BOOL, offsetof(Giver, told), READONLY, NULL},
    {"paged", T_BOOL, offsetof(Giver, paged), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot room_slots[] = {
    {Py_tp_new, room_new}, {Py_tp_dealloc, room_gone}, {Py_tp_members, room_members},
    {Py_tp_doc, "Rows to be written, see `ring.Reservation`."}, {0, NULL}};
static PyType_Slot giver_slots[] = {
    {Py_tp_new, giver_new}, {Py_tp_dealloc, giver_gone}, {Py_tp_methods, giver_methods}, {Py_tp_members, giver_members},
    {Py_tp_doc, "How far the rows of a ring go, see `ring.Counters`; reserves and commits them."}, {0, NULL}};
static PyType_Spec room_spec = {
    "pipec.runtime._handover.Room", sizeof(Room), 0, Py_TPFLAGS_DEFAULT, room_slots};
static PyType_Spec giver_spec = {"pipec.runtime._handover.Giver", sizeof(Giver), 0, Py_TPFLAGS_DEFAULT, giver_slots};

int add_giver(PyObject *to) {
    return add_type(to, &room_type, &room_spec, "Room") || add_type(to, &giver_type, &giver_spec, "Giver");
}
