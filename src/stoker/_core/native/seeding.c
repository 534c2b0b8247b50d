/* Seeds Mersenne twisters for many samples at a time, and reads samples from an iterator, each under its seeds.

   Compiled without headers of Python, as `collation.c`: `seeding.py` looks up the functions that are needed. `take` is
   called with the interpreter's lock held. The numbers that are drawn are those of the generators' own seeds, which
   `loader/_random/generators.py` defines. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h> /* SSE2, which every x86-64 has */
#endif

#define EXPORTED __attribute__((visibility("default")))

/* The system's loader picks the version for the processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_THE_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_THE_PROCESSOR
#endif

/* Changes with the interface of any function below: `seeding.py` rejects a library of another version. */
enum { VERSION = 1 };
EXPORTED int stoker_seeding_version(void) { return VERSION; }

/* `AHEAD` words are made in advance, so that a sample that draws few numbers need not make all 624 new ones. */
enum { WORDS = 624, LANES = 64, AHEAD = 32, MIDDLE = 397 };

static uint64_t step(uint64_t key, uint64_t word) { /* `generators.step` */
    key = (key ^ word) + UINT64_C(0x9E3779B97F4A7C15);
    key = (key ^ key >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    key = (key ^ key >> 27) * UINT64_C(0x94D049BB133111EB);
    return key ^ key >> 31;
}

typedef uint32_t Lanes[LANES];

/* The words of a twister, as `random.Random.seed` makes them of a key of 64 bits. One twister's seed is a chain of 1,247
   steps, so that many at once take hardly longer than one. */
FOR_THE_PROCESSOR static void as_python(Lanes *restrict words, const uint64_t *restrict keys) {
    Lanes key[2], before;
    uint32_t seed = 19650218;
    for (uint32_t i = 0; i < WORDS; i++) {
        for (int lane = 0; lane < LANES; lane++) words[i][lane] = seed;
        seed = (seed ^ seed >> 30) * 1812433253 + i + 1;
    }
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t high = (uint32_t)(keys[lane] >> 32);
        key[0][lane] = (uint32_t)keys[lane], before[lane] = words[0][lane];
        key[1][lane] = high ? high + 1 : key[0][lane]; /* without its upper half, a key has one word */
    }
    for (uint32_t turn = 0, i = 1; turn < WORDS; turn++) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t last = before[lane];
            before[lane] = words[i][lane] = (words[i][lane] ^ (last ^ last >> 30) * 1664525) + key[turn & 1][lane];
        }
        if (++i == WORDS) i = 1; /* the first word is that of the last then, which `before` has */
    }
    for (uint32_t turn = 0, i = 2; turn < WORDS - 1; turn++) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t last = before[lane];
            before[lane] = words[i][lane] = (words[i][lane] ^ (last ^ last >> 30) * 1566083941) - i;
        }
        if (++i == WORDS) i = 1;
    }
    for (int lane = 0; lane < LANES; lane++) words[0][lane] = 0x80000000;
}

/* The same as `np.random.seed` makes them of the lower half, times the odd number of the upper half. */
FOR_THE_PROCESSOR static void as_numpy(Lanes *restrict words, const uint64_t *restrict keys) {
    Lanes seed, factor;
    for (int lane = 0; lane < LANES; lane++)
        seed[lane] = (uint32_t)keys[lane], factor[lane] = (uint32_t)(keys[lane] >> 32) | 1;
    for (uint32_t i = 0; i < WORDS; i++)
        for (int lane = 0; lane < LANES; lane++) {
            words[i][lane] = seed[lane] * factor[lane];
            seed[lane] = (seed[lane] ^ seed[lane] >> 30) * 1812433253 + i + 1;
        }
}

/* The states that `set_state` of torch's takes: the seed, words left and whether it was seeded, the next word, the
   words, and normal numbers. All but the words, and their numbers, are there. */
FOR_THE_PROCESSOR static void as_torch(uint64_t *restrict to, const uint64_t *restrict keys,
                                       const uint64_t *restrict table) {
    for (int lane = 0; lane < LANES; lane++, to += WORDS + 8) {
        uint64_t key = keys[lane], *words = to + 3;
        ((int32_t *)to)[2] = AHEAD + 1, to[2] = WORDS - AHEAD;
        for (int i = AHEAD; i < WORDS; i++) words[i - AHEAD] = table[i] * key >> 32;
        for (int i = 0; i < AHEAD; i++) {
            uint32_t both = (table[i] * key >> 32 & 0x80000000) | (table[i + 1] * key >> 32 & 0x7fffffff);
            uint32_t middle = (uint32_t)(table[MIDDLE + i] * key >> 32);
            words[WORDS - AHEAD + i] = middle ^ both >> 1 ^ ((uint32_t)-(both & 1) & 0x9908b0df);
        }
    }
}

/* Makes the next `AHEAD` words behind the first 624. */
FOR_THE_PROCESSOR static void go_on(Lanes *restrict words) {
    for (int i = 0; i < AHEAD; i++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t both = (words[i][lane] & 0x80000000) | (words[i + 1][lane] & 0x7fffffff);
            words[WORDS + i][lane] = words[MIDDLE + i][lane] ^ both >> 1 ^ ((uint32_t)-(both & 1) & 0x9908b0df);
        }
}

/* Writes the words of each lane behind one another. */
static void turn(uint32_t *restrict to, size_t width, Lanes *restrict words) {
    int i = 0;
#if defined(__x86_64__)
    for (; i + 4 <= WORDS; i += 4)
        for (int lane = 0; lane < LANES; lane += 4) {
            __m128i a = _mm_loadu_si128((const __m128i *)&words[i][lane]);
            __m128i b = _mm_loadu_si128((const __m128i *)&words[i + 1][lane]);
            __m128i c = _mm_loadu_si128((const __m128i *)&words[i + 2][lane]);
            __m128i d = _mm_loadu_si128((const __m128i *)&words[i + 3][lane]);
            __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
            __m128i AB = _mm_unpackhi_epi32(a, b), CD = _mm_unpackhi_epi32(c, d);
            uint32_t *row = to + (size_t)lane * width + i;
            _mm_storeu_si128((__m128i *)row, _mm_unpacklo_epi64(ab, cd));
            _mm_storeu_si128((__m128i *)(row + width), _mm_unpackhi_epi64(ab, cd));
            _mm_storeu_si128((__m128i *)(row + 2 * width), _mm_unpacklo_epi64(AB, CD));
            _mm_storeu_si128((__m128i *)(row + 3 * width), _mm_unpackhi_epi64(AB, CD));
        }
#endif
    for (; i < WORDS; i++)
        for (int lane = 0; lane < LANES; lane++) to[(size_t)lane * width + i] = words[i][lane];
}

enum { PYTHON, NUMPY, TORCH };

/* Writes a row for each of `LANES` positions, seeded with `step(key, position) ^ salt`. Python's have the number of used
   words and the words, NumPy's the words and the number (625 words of 32 bits), torch's has 632 words of 64 bits. Behind
   the rows of the first two there is room for `LANES + 4` more. */
EXPORTED void stoker_seeding_rows(int kind, void *to, uint64_t key, uint64_t position, uint64_t stride, uint64_t salt,
                                  const uint64_t *table) {
    uint64_t keys[LANES];
    for (int lane = 0; lane < LANES; lane++) keys[lane] = step(key, position + (uint64_t)lane * stride) ^ salt;
    if (kind == TORCH) {
        as_torch(to, keys, table);
        return;
    }
    uint32_t *row = to;
    Lanes *words = (Lanes *)(row + LANES * (WORDS + 1));
    (kind == PYTHON ? as_python : as_numpy)(words, keys);
    go_on(words);
    for (int lane = 0; lane < LANES; lane++) row[lane * (WORDS + 1) + (kind == PYTHON ? 0 : WORDS)] = WORDS - AHEAD;
    turn(row + (kind == PYTHON), WORDS + 1, words + AHEAD);
}

typedef struct {
    void *(*next)(void *);                                 /* PyIter_Next */
    int (*append)(void *, void *);                         /* PyList_Append */
    int (*set)(void *, void *, void *);                    /* PyObject_SetAttr */
    void *(*get)(void *, void *);                          /* PyObject_GetAttr */
    void *(*call)(void *, ...);                            /* PyObject_CallFunctionObjArgs */
    void (*release)(void *);                               /* Py_DecRef */
    void *(*error)(void);                                  /* PyErr_Occurred */
    void *none, *gauss_next;                               /* None, and a string */
} Python;

static Python py;
EXPORTED void stoker_seeding_begin(const Python *of_python) { py = *of_python; }

typedef struct {
    uint64_t kind, salt;
    uint64_t is_seeded;                                    /* for each sample; else it is only looked at */
    char *memory;                                          /* Python's and NumPy's: the words and their number */
    void *object;                                          /* Python's generator, or `set_state` of torch's */
    int32_t *holds_back;                                   /* NumPy's: whether a second normal number waits */
    char *rows;
    void **states;                                         /* torch's: a tensor over each row */
    const uint64_t *table;
    const char *at[2];                                     /* what shows that a number was drawn */
    uint64_t sizes[2];
    char seen[2][16];                                      /* the same before the sample */
    uint64_t key, first, stride, until;                    /* of the rows: positions in steps of `stride` */
} Generator;

typedef struct {
    uint64_t key, position, stride;                        /* of the next sample, or the present one */
    uint64_t taken;                                        /* samples, by the present call */
    uint64_t stop;                                         /* set by a sample that needs the other way from now on */
    uint64_t moved;                                        /* generators that were only looked at and have moved: bits */
    uint64_t ended;
    uint64_t count;
    Generator *generators;
} Run;

static int has_moved(const Generator *g) {
    return memcmp(g->at[0], g->seen[0], g->sizes[0]) || (g->sizes[1] && memcmp(g->at[1], g->seen[1], g->sizes[1]));
}

static void look(Generator *g) {
    for (int i = 0; i < 2; i++) memcpy(g->seen[i], g->at[i], g->sizes[i]);
}

static int seed(Generator *g, const Run *run) {
    uint64_t distance = run->position - g->first, lane = g->stride ? distance / g->stride : 0;
    if (g->key != run->key || g->stride != run->stride || run->position < g->first || run->position >= g->until ||
        lane * g->stride != distance) {
        stoker_seeding_rows((int)g->kind, g->rows, run->key, run->position, run->stride, g->salt, g->table);
        g->key = run->key, g->first = run->position, g->stride = run->stride;
        g->until = run->position + run->stride * LANES, lane = 0;
    }
    if (g->kind == TORCH) {
        void *none = py.call(g->object, g->states[lane], NULL);
        if (!none) return 0;
        py.release(none);
    } else {
        memcpy(g->memory, g->rows + lane * (WORDS + 1) * sizeof(uint32_t), (WORDS + 1) * sizeof(uint32_t));
        if (g->kind == NUMPY) *g->holds_back = 0;
        else if (py.set(g->object, py.gauss_next, py.none)) return 0;
    }
    return 1;
}

/* Appends at most `most` values of an iterator to a list, each made under seeds of its position. Fewer if the iterator
   ends, a generator moves that is only looked at, or `stop` is set. Returns -1 if an exception is set. */
EXPORTED int stoker_seeding_take(void *iterator, void *samples, uint64_t most, Run *run) {
    run->taken = run->stop = run->moved = run->ended = 0;
    for (uint64_t i = 0; i < run->count; i++)
        if (!run->generators[i].is_seeded) look(&run->generators[i]);
    while (run->taken < most && !run->stop) {
        for (uint64_t i = 0; i < run->count; i++)
            if (run->generators[i].is_seeded && !seed(&run->generators[i], run)) return -1;
        void *sample = py.next(iterator);
        for (uint64_t i = 0; i < run->count; i++)
            if (!run->generators[i].is_seeded && has_moved(&run->generators[i])) run->moved |= UINT64_C(1) << i;
        if (!sample) {
            run->ended = !py.error();
            return run->ended ? 0 : -1;
        }
        int failed = py.append(samples, sample);
        py.release(sample);
        if (failed) return -1;
        run->taken++, run->position += run->stride;
        if (run->moved) break;
    }
    return 0;
}

typedef struct {
    uint64_t kind, size;
    char *memory;                                          /* Python's and NumPy's: `size` bytes */
    void *object;                                          /* as above */
    int32_t *holds_back;
    char *own, *loops;                                     /* what is in memory for samples, NULL if they seed it
                                                              first, and for the loop: torch's as at `parts` */
    void *own_state, *loops_state;                         /* torch's: the same for `set_state` */
    const char *parts[3];                                  /* torch's: all of its memory */
    uint64_t sizes[3];
    void *gauss;                                           /* the loop's second number of a normal pair */
    double second;
    uint64_t holds;
} Lent;

static void *gathered(char *to, const Lent *lent) {
    for (int i = 0; i < 3; to += lent->sizes[i++]) memcpy(to, lent->parts[i], lent->sizes[i]);
    return to;
}

static int differs(const char *from, const Lent *lent, int count) {
    for (int i = 0; i < count; from += lent->sizes[i++])
        if (memcmp(from, lent->parts[i], lent->sizes[i])) return 1;
    return 0;
}

static int set_state(const Lent *lent, void *state) {
    void *none = py.call(lent->object, state, NULL);
    if (none) py.release(none);
    return !!none;
}

/* Gives generators the states that they have for samples, and keeps those of the loop. Returns 1, with nothing done, if
   the loop has drawn from torch's since `loops` was written, and -1 if an exception is set. */
EXPORTED int stoker_seeding_lend(Lent *lent, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (lent[i].kind == TORCH && differs(lent[i].loops, &lent[i], 3)) return 1;
    for (Lent *end = lent + count; lent < end; lent++) {
        if (lent->kind == TORCH) {
            if (!lent->own) continue;
            if (!set_state(lent, lent->own_state)) return -1;
            gathered(lent->own, lent);
            continue;
        }
        memcpy(lent->loops, lent->memory, lent->size);
        if (lent->own) memcpy(lent->memory, lent->own, lent->size);
        if (lent->kind == NUMPY) {
            lent->holds = (uint64_t)*lent->holds_back, *lent->holds_back = 0;
            memcpy(&lent->second, lent->holds_back + 2, sizeof lent->second);
        } else {
            if (!(lent->gauss = py.get(lent->object, py.gauss_next))) return -1;
            if (lent->gauss != py.none && py.set(lent->object, py.gauss_next, py.none)) return -1;
        }
    }
    return 0;
}

/* Gives them the loop's states again. Returns the bits of those that samples have drawn from and that had states. */
EXPORTED int64_t stoker_seeding_take_back(Lent *lent, uint64_t count) {
    int64_t moved = 0;
    for (uint64_t i = 0; i < count; i++, lent++) {
        if (lent->kind == TORCH) {
            if (lent->own && differs(lent->own, lent, 2)) moved |= INT64_C(1) << i;
            if (!set_state(lent, lent->loops_state)) return -1;
            gathered(lent->loops, lent);
            continue;
        }
        if (lent->own && memcmp(lent->memory, lent->own, lent->size)) moved |= INT64_C(1) << i;
        memcpy(lent->memory, lent->loops, lent->size);
        if (lent->kind == NUMPY) {
            *lent->holds_back = (int32_t)lent->holds;
            memcpy(lent->holds_back + 2, &lent->second, sizeof lent->second);
        } else {
            int failed = py.set(lent->object, py.gauss_next, lent->gauss);
            py.release(lent->gauss);
            if (failed) return -1;
        }
    }
    return moved;
}
