/* Seeds Mersenne twisters for many samples at a time, and reads samples from an iterator, each under its seeds.

   Compiled without headers of Python, as `collation.c`: `seeding.py` looks up the functions that are needed. `take` is
   called with the interpreter's lock held. The numbers that are drawn are those of the generators' own seeds, which
   `loader/_random/generators.py` defines. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* The system's loader picks the version for the processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_THE_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_THE_PROCESSOR
#endif

/* Changes with the interface of any function below: `seeding.py` rejects a library of another version. */
enum { VERSION = 4 };
EXPORTED int stoker_seeding_version(void) { return VERSION; }

/* A twister's words, positions that are seeded at a time, and the same for the first ones of an epoch. */
enum { WORDS = 624, LANES = 64, FEW = 8, SIZE = (WORDS + 1) * sizeof(uint32_t), HELD = 16 };

static uint64_t step(uint64_t key, uint64_t word) { /* `generators.step` */
    key = (key ^ word) + UINT64_C(0x9E3779B97F4A7C15);
    key = (key ^ key >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    key = (key ^ key >> 27) * UINT64_C(0x94D049BB133111EB);
    return key ^ key >> 31;
}

typedef uint32_t Lanes[LANES];

/* The words of a twister, as `random.Random.seed` makes them of a key of 64 bits. One twister's seed is a chain of 1,247
   steps, so that many at once take hardly longer than one. */
FOR_THE_PROCESSOR static void as_python(Lanes *restrict words, const uint64_t *restrict keys, int lanes) {
    Lanes key[2], before;
    uint32_t seed = 19650218;
    for (uint32_t i = 0; i < WORDS; i++) {
        for (int lane = 0; lane < lanes; lane++) words[i][lane] = seed;
        seed = (seed ^ seed >> 30) * 1812433253 + i + 1;
    }
    for (int lane = 0; lane < lanes; lane++) {
        uint32_t high = (uint32_t)(keys[lane] >> 32);
        key[0][lane] = (uint32_t)keys[lane], before[lane] = words[0][lane];
        key[1][lane] = high ? high + 1 : key[0][lane]; /* without its upper half, a key has one word */
    }
    for (uint32_t turn = 0, i = 1; turn < WORDS; turn++) {
        for (int lane = 0; lane < lanes; lane++) {
            uint32_t last = before[lane];
            before[lane] = words[i][lane] = (words[i][lane] ^ (last ^ last >> 30) * 1664525) + key[turn & 1][lane];
        }
        if (++i == WORDS) i = 1; /* the first word is that of the last then, which `before` has */
    }
    for (uint32_t turn = 0, i = 2; turn < WORDS - 1; turn++) {
        for (int lane = 0; lane < lanes; lane++) {
            uint32_t last = before[lane];
            before[lane] = words[i][lane] = (words[i][lane] ^ (last ^ last >> 30) * 1566083941) - i;
        }
        if (++i == WORDS) i = 1;
    }
    for (int lane = 0; lane < lanes; lane++) words[0][lane] = 0x80000000;
}

/* The same as `np.random.seed` makes them of the lower half, times the odd number of the upper half. */
FOR_THE_PROCESSOR static void as_numpy(Lanes *restrict words, const uint64_t *restrict keys, int lanes) {
    Lanes seed, factor;
    for (int lane = 0; lane < lanes; lane++)
        seed[lane] = (uint32_t)keys[lane], factor[lane] = (uint32_t)(keys[lane] >> 32) | 1;
    for (uint32_t i = 0; i < WORDS; i++)
        for (int lane = 0; lane < lanes; lane++) {
            words[i][lane] = seed[lane] * factor[lane];
            seed[lane] = (seed[lane] ^ seed[lane] >> 30) * 1812433253 + i + 1;
        }
}

/* The words in a state that `set_state` of torch's takes: 64 bits each. */
FOR_THE_PROCESSOR static void as_torch(uint64_t *restrict words, uint64_t key, const uint64_t *restrict table) {
    for (int i = 0; i < WORDS; i++) words[i] = table[i] * key >> 32;
}

typedef struct {
    void *(*next)(void *);                                 /* PyIter_Next */
    int (*append)(void *, void *);                         /* PyList_Append */
    int (*set)(void *, void *, void *);                    /* PyObject_SetAttr */
    void *(*get)(void *, void *);                          /* PyObject_GetAttr */
    void *(*call)(void *, ...);                            /* PyObject_CallFunctionObjArgs */
    void (*release)(void *);                               /* Py_DecRef */
    void *(*error)(void);                                  /* PyErr_Occurred */
    void *none, *gauss_next, *bit_generator;               /* None, and strings */
} Python;

static Python py;
EXPORTED void stoker_seeding_begin(const Python *of_python) { py = *of_python; }

enum { PYTHON, NUMPY, TORCH };

typedef struct {
    uint64_t kind, salt;
    char *memory;                                          /* Python's: the number of used words and the words; NumPy's:
                                                              the words and the number; torch's: those in `state` */
    void *object;                                          /* the generator, or `set_state` of torch's */
    void *beside;                                          /* NumPy's bit generator; a state of torch's */
    char *holds_back;                                      /* NumPy's: whether a second normal number waits, and it */
    void *acquire, *let_go;                                /* of NumPy's lock: a thread that draws an array has it, and
                                                              not the interpreter's */
    const char *at[2];                                     /* what shows that a number was drawn */
    uint64_t sizes[2];
} Twister;

typedef struct {
    Twister of;
    uint64_t is_seeded;                                    /* for each sample; else it is only looked at */
    uint32_t *rows;                                        /* `memory` for each of up to `LANES` positions */
    const uint64_t *table;
    char seen[2][16];                                      /* what is `at` these places before the sample */
    uint64_t next, made, keys[LANES];                      /* of the rows: the next one, how many, and their seeds */
} Generator;

typedef struct {
    uint64_t key, position, stride;                        /* of the next sample, or the present one */
    uint64_t stop;                                         /* set by a sample that needs the other way from now on */
    uint64_t moved;                                        /* whether a generator did that was only looked at */
    uint64_t ended;
    uint64_t count;
    Generator *generators;
} Run;

static int has_moved(const Generator *g) {
    const Twister *of = &g->of;
    return memcmp(of->at[0], g->seen[0], of->sizes[0]) || (of->at[1] && memcmp(of->at[1], g->seen[1], of->sizes[1]));
}

static void look(Generator *g) {
    for (int i = 0; i < 2 && g->of.at[i]; i++) memcpy(g->seen[i], g->of.at[i], g->of.sizes[i]);
}

/* Writes a row for each of the next positions. */
static void make_rows(Generator *g, const Run *run) {
    static _Thread_local Lanes words[WORDS];
    int lanes = g->made && g->next == g->made ? LANES : FEW, head = g->of.kind == PYTHON;
    g->next = 0, g->made = (uint64_t)lanes;
    for (int lane = 0; lane < lanes; lane++)
        g->keys[lane] = step(run->key, run->position + (uint64_t)lane * run->stride) ^ g->of.salt;
    (head ? as_python : as_numpy)(words, g->keys, lanes);
    for (int lane = 0; lane < lanes; lane++) g->rows[lane * (WORDS + 1) + (head ? 0 : WORDS)] = WORDS;
    for (int i = 0; i < WORDS; i += 4) {                   /* written so that the compiler turns blocks of words */
        uint32_t turned[LANES][4];
        for (int lane = 0; lane < lanes; lane++)
            for (int word = 0; word < 4; word++) turned[lane][word] = words[i + word][lane];
        for (int lane = 0; lane < lanes; lane++) memcpy(g->rows + lane * (WORDS + 1) + head + i, turned[lane], 16);
    }
}

/* Returns 0 if an exception is set. There may be neither a function nor an argument. */
static int called(void *function, void *argument) {
    void *result = function ? py.call(function, argument, NULL) : NULL;
    if (result) py.release(result);
    return result || !function;
}

/* Returns whether a generator still draws from these words: `np.random.set_bit_generator` changes that. */
static int is_of(const Twister *of) {
    if (of->kind != NUMPY) return 1;
    void *bits = py.get(of->object, py.bit_generator);
    if (!bits) return -1;
    py.release(bits);
    return bits == of->beside;
}

static int seed(Generator *g, const Run *run) {
    Twister *of = &g->of;
    uint64_t key = step(run->key, run->position) ^ of->salt;
    if (of->kind == TORCH) {
        as_torch((uint64_t *)of->memory, key, g->table);
        return called(of->object, of->beside);
    }
    int own = is_of(of);
    if (own != 1) return own == 0;                         /* the user's, who has replaced and seeded it */
    if (g->next == g->made || g->keys[g->next] != key) make_rows(g, run);
    if (!called(of->acquire, NULL)) return 0;
    memcpy(of->memory, g->rows + g->next++ * (WORDS + 1), SIZE);
    if (of->kind == PYTHON) return !py.set(of->object, py.gauss_next, py.none);
    memset(of->holds_back, 0, HELD);
    return called(of->let_go, NULL);
}

/* Seeds generators for the position. Returns -1 if an exception is set. */
EXPORTED int stoker_seeding_seed(Run *run) {
    for (uint64_t i = 0; i < run->count; i++)
        if (run->generators[i].is_seeded && !seed(&run->generators[i], run)) return -1;
    return 0;
}

/* Appends at most `most` values of an iterator to a list, each made under seeds of its position. Fewer if the iterator
   ends, a generator moves that is only looked at, or `stop` is set. Returns -1 if an exception is set. */
EXPORTED int stoker_seeding_take(void *iterator, void *samples, uint64_t most, Run *run) {
    run->stop = run->moved = run->ended = 0;
    for (uint64_t i = 0; i < run->count; i++)
        if (!run->generators[i].is_seeded) look(&run->generators[i]);
    for (; most && !run->stop && !run->moved; most--) {
        if (stoker_seeding_seed(run)) return -1;
        void *sample = py.next(iterator);
        for (uint64_t i = 0; i < run->count; i++)
            if (!run->generators[i].is_seeded && has_moved(&run->generators[i])) run->moved = 1;
        if (!sample) {
            run->ended = !py.error();
            return run->ended ? 0 : -1;
        }
        int failed = py.append(samples, sample);
        py.release(sample);
        if (failed) return -1;
        run->position += run->stride;
    }
    return 0;
}

typedef struct {
    Twister of;                                            /* Python's or NumPy's */
    char *own, *loops;                                     /* what is in memory for samples, NULL if they seed it
                                                              first, and for the loop */
    uint64_t is_lent, moved;                               /* whether samples have drawn from `own` */
    void *gauss;                                           /* the loop's second number of a normal pair: Python's, */
    char held[HELD];                                       /* and NumPy's */
} Lent;

/* Gives them the loop's states again. Returns whether samples have drawn from any that had a state; -1 if an exception
   is set: the others are still lent. */
EXPORTED int stoker_seeding_take_back(Lent *lent, uint64_t count) {
    int moved = 0;
    for (Lent *end = lent + count; lent < end; lent++) {
        const Twister *of = &lent->of;
        if (!lent->is_lent) continue;
        if (!called(of->acquire, NULL)) return -1;
        lent->moved = lent->own && memcmp(of->memory, lent->own, SIZE);
        moved |= !!lent->moved;
        if (is_of(of) == 1) {
            memcpy(of->memory, lent->loops, SIZE);
            if (of->kind == PYTHON) py.set(of->object, py.gauss_next, lent->gauss);
            else memcpy(of->holds_back, lent->held, HELD);
        }
        if (lent->gauss) py.release(lent->gauss);
        lent->gauss = NULL, lent->is_lent = 0;
        if (!called(of->let_go, NULL)) return -1;
    }
    return moved;
}

/* Gives generators the states that they have for samples, and keeps those of the loop. Returns -1 if an exception
   is set: what is lent can be taken back. */
EXPORTED int stoker_seeding_lend(Lent *lent, uint64_t count) {
    for (Lent *end = lent + count; lent < end; lent++) {
        const Twister *of = &lent->of;
        int own = is_of(of);
        if (own < 0) return -1;
        if (of->kind == PYTHON) {
            if (!(lent->gauss = py.get(of->object, py.gauss_next))) return -1;
        } else {
            if (!called(of->acquire, NULL)) return -1;
            memcpy(lent->held, of->holds_back, HELD);
        }
        memcpy(lent->loops, of->memory, SIZE);
        lent->is_lent = 1;
        if (own && lent->own) memcpy(of->memory, lent->own, SIZE);
        if (own && of->kind == NUMPY) memset(of->holds_back, 0, HELD);
        else if (own && lent->gauss != py.none && py.set(of->object, py.gauss_next, py.none)) return -1;
        if (!called(of->let_go, NULL)) return -1;
    }
    return 0;
}
