/* Words of the ring that the producer and its readers share, and how they are read and written. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

/* Each counter has a cache line of its own; `layout.py` says what they mean, and compares these offsets. */
enum { HEAD = 0, ENDS = 64, ROOM_WANTED = 128, HEAP_WANTED = 192, INTACT = 256, RUN = 320, HOLDER = 384 };
enum { RELEASED = 0, POSITION = 64, WANTED = 128, GENERATION = 256, WAITED = 320, SINCE = 384, TAKEN = 448 };

static inline int64_t load(const char *at) { return __atomic_load_n((const int64_t *)at, __ATOMIC_SEQ_CST); }
static inline void store(char *at, int64_t value) { __atomic_store_n((int64_t *)at, value, __ATOMIC_RELEASE); }
static inline void fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline int wake(int fd) {
    uint64_t one = 1;
    return write(fd, &one, 8) == 8 || errno == EAGAIN;
}

static inline void *made(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

static inline void gone(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int add_type(PyObject *to, PyTypeObject **type, PyType_Spec *spec, const char *name);
int add_giver(PyObject *to);             /* the producer's side */
