/* Default collation of numbers, arrays and tensors of plain layout (docs/design/41-native-collation.md).

   Called with the interpreter's lock held, and compiled without headers of Python, NumPy and torch: `collation.py` looks
   up the functions that are needed, and checks the places of fields, at run time. So one library serves every Python.

   A function takes a list or a tuple and the memory of its batch, an array or tensor with a row for each value. It
   returns 1, or 0 if a value needs another way: the memory may be written in part then, and no error is set. No user's
   code runs. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* Changes with the interface of any function below: `collation.py` rejects a library of another version. */
enum { VERSION = 1 };
EXPORTED int stoker_collation_version(void) { return VERSION; }

typedef struct {
    intptr_t (*list_size)(void *);             /* PyList_Size */
    intptr_t (*tuple_size)(void *);            /* PyTuple_Size */
    void *(*list_item)(void *, intptr_t);      /* PyList_GetItemRef, before Python 3.13 PyList_GetItem */
    void *(*tuple_item)(void *, intptr_t);     /* PyTuple_GetItem: borrowed */
    void (*release)(void *);                   /* Py_DecRef; NULL where items of lists are borrowed */
    long long (*as_integer)(void *);           /* PyLong_AsLongLong */
    double (*as_real)(void *);                 /* PyFloat_AsDouble */
    void *(*error)(void);                      /* PyErr_Occurred */
    void (*clear)(void);                       /* PyErr_Clear */
    void *list, *tuple, *integer, *real, *boolean, *yes, *array; /* types, and True */
    size_t head;                               /* bytes of the smallest object; its type is the last field */
} Python;

typedef struct { /* NumPy's array object */
    char *data;
    int ndim;
    intptr_t *shape, *strides;
    void *base, *dtype;
    int flags;
} Array;

typedef struct { uint8_t code, bits; uint16_t lanes; } DType; /* this and the next two as DLPack has them */
typedef struct {
    char *data;
    int32_t device, device_number, ndim;
    DType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} View;
typedef struct {
    uint32_t major, minor;
    void *older, *allocate, *managed, *object;
    int (*view)(void *, View *);
} Table;

typedef struct {
    const Table *table;                        /* of `torch.Tensor.__dlpack_c_exchange_api__` */
    _Bool (*is_negative)(const void *);        /* at::native::is_neg(const Tensor &) */
    _Bool (*has_gradient)(const void *);       /* c10::TensorImpl::requires_grad() const */
    void *tensor;                              /* torch.Tensor */
    size_t at;                                 /* place of the C++ tensor in its object: the address of a TensorImpl */
} Torch;

static Python py;
static Torch torch;

EXPORTED void stoker_collation_begin(const Python *of_python) { py = *of_python; }
EXPORTED void stoker_collation_torch(const Torch *of_torch) { torch = *of_torch; }

static void *type_of(const void *object) { return *(void **)((char *)object + py.head - sizeof(void *)); }
static Array *array_of(void *object) { return (Array *)((char *)object + py.head); }

typedef int (*Take)(void *value, char *row, size_t size, const void *like);

/* Calls `take` with each value and its row. It is inlined into each caller. */
static inline __attribute__((always_inline)) int each(void *column, int64_t count, char *to, size_t size, Take take,
                                                      const void *like) {
    int listed = type_of(column) == py.list;
    if (!listed && type_of(column) != py.tuple) return 0;
    if ((listed ? py.list_size : py.tuple_size)(column) != count) return 0;
    for (int64_t i = 0; i < count; i++, to += size) {
        void *value = listed ? py.list_item(column, i) : py.tuple_item(column, i);
        if (!value) { /* another thread has shortened the list */
            py.clear();
            return 0;
        }
        int taken = take(value, to, size, like);
        if (listed && py.release) py.release(value);
        if (!taken) return 0;
    }
    return 1;
}

static int take_integer(void *value, char *row, size_t size, const void *like) {
    (void)size, (void)like;
    if (type_of(value) != py.integer) return 0;
    int64_t integer = py.as_integer(value);
    if (integer == -1 && py.error()) { /* it needs more than 64 bits */
        py.clear();
        return 0;
    }
    memcpy(row, &integer, sizeof integer);
    return 1;
}

static int take_real(void *value, char *row, size_t size, const void *like) {
    (void)size, (void)like;
    if (type_of(value) != py.real) return 0;
    double real = py.as_real(value);
    memcpy(row, &real, sizeof real);
    return 1;
}

static int take_boolean(void *value, char *row, size_t size, const void *like) {
    (void)size, (void)like;
    *row = value == py.yes;
    return type_of(value) == py.boolean;
}

/* Writes numbers of one exact type to an array of int64 ('i'), float64 ('f') or bool ('b') with one dimension. */
EXPORTED int stoker_collation_numbers(void *column, void *out, int kind) {
    Array *to = array_of(out);
    if (kind == 'i') return each(column, to->shape[0], to->data, sizeof(int64_t), take_integer, NULL);
    if (kind == 'f') return each(column, to->shape[0], to->data, sizeof(double), take_real, NULL);
    return each(column, to->shape[0], to->data, 1, take_boolean, NULL);
}

static int take_array(void *value, char *row, size_t size, const void *like) {
    enum { CONTIGUOUS = 1 };
    const Array *to = like, *from = array_of(value);
    if (type_of(value) != py.array || from->dtype != to->dtype || from->ndim != to->ndim - 1) return 0;
    if (!(from->flags & CONTIGUOUS)) return 0;
    for (int i = 0; i < from->ndim; i++)
        if (from->shape[i] != to->shape[i + 1]) return 0;
    memcpy(row, from->data, size);
    return 1;
}

/* Copies contiguous arrays, of the dtype and shape of a row of `size` bytes, to a contiguous array. */
EXPORTED int stoker_collation_arrays(void *column, void *out, size_t size) {
    const Array *to = array_of(out);
    return each(column, to->shape[0], to->data, size, take_array, to);
}

static int take_tensor(void *value, char *row, size_t size, const void *like) {
    enum { CPU = 1 };
    const View *to = like;
    View from;
    if (type_of(value) != torch.tensor) return 0;
    const char *inner = (char *)value + torch.at;
    if (torch.has_gradient(*(void **)inner) || torch.is_negative(inner)) return 0;
    if (torch.table->view(value, &from)) { /* no memory, no strides, or another device */
        py.clear();
        return 0;
    }
    if (from.device != CPU || from.ndim != to->ndim - 1 || memcmp(&from.dtype, &to->dtype, sizeof from.dtype)) return 0;
    int64_t step = 1;
    for (int32_t i = from.ndim; i--;) {
        if (from.shape[i] != to->shape[i + 1] || (from.strides && from.strides[i] != step)) return 0;
        step *= from.shape[i];
    }
    memcpy(row, from.data + from.byte_offset, size);
    return 1;
}

/* Copies contiguous real tensors without gradient, of the dtype and shape of a row of `size` bytes, to a contiguous
   tensor. Complex tensors may be conjugates that are not computed yet, which the table does not tell. */
EXPORTED int stoker_collation_tensors(void *column, void *out, size_t size) {
    enum { COMPLEX = 5 };
    View to;
    if (torch.table->view(out, &to)) {
        py.clear();
        return 0;
    }
    if (to.dtype.code == COMPLEX || to.ndim < 1) return 0;
    return each(column, to.shape[0], to.data + to.byte_offset, size, take_tensor, &to);
}
