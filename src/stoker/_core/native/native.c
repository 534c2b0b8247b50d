/* Work done for every batch that a few lines of C do several times as fast as NumPy (docs/design/14-native.md).

   Nothing here uses Python, allocates, locks or keeps state, and callers check their arguments. So one library serves
   every Python of a platform. `__init__.py` declares the functions. Each caller has the same code in NumPy or torch,
   for platforms without a compiler; both pass the same tests. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <tmmintrin.h> /* SSE2, which every x86-64 has, and SSSE3 for functions that declare it */
#endif

#define EXPORTED __attribute__((visibility("default")))

/* The system's loader picks the version for the processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_THE_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_THE_PROCESSOR
#endif

/* Changes with the interface of any function below: `__init__.py` rejects a library of another version. */
enum { VERSION = 5 };
EXPORTED int stoker_native_version(void) { return VERSION; }

/* Copies with non-temporal stores: lines that are written whole are not read first, and nothing is evicted.
   On other processors, calls `memcpy`. */
static void copy_past(char *to, const char *from, size_t size) {
#if defined(__x86_64__)
    enum { LINE = 64, AHEAD = 16 * LINE };
    size_t head = -(uintptr_t)to % LINE;
    if (size > head + LINE) {
        memcpy(to, from, head);
        to += head, from += head, size -= head;
        for (; size >= LINE; to += LINE, from += LINE, size -= LINE) {
            __builtin_prefetch(from + AHEAD, 0, 0); /* harmless beyond the end */
            const __m128i *source = (const __m128i *)from;
            __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
            __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
            __m128i *target = (__m128i *)to;
            _mm_stream_si128(target, a), _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c), _mm_stream_si128(target + 3, d);
        }
    }
#endif
    memcpy(to, from, size);
}

/* Copies `count` pieces of `size` bytes, each from its own place, one behind the other. */
EXPORTED void stoker_stack(char *to, const char *const *from, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) copy_past(to + i * size, from[i], size);
#if defined(__x86_64__)
    _mm_sfence(); /* makes the stores visible to other processes before they learn of the batch */
#endif
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Copies sixteen points at a time, with non-temporal stores if the planes are aligned. Returns the points done. */
__attribute__((target("ssse3"))) static size_t planes_by_sixteen(uint8_t *to, const uint8_t *from, size_t points) {
    int streams = (uintptr_t)to % 16 == 0 && points % 16 == 0;
    __m128i places[3][3]; /* of each channel's bytes in each 16 of 48 bytes; -128 gives zero */
    for (int channel = 0; channel < 3; channel++)
        for (int third = 0; third < 3; third++) {
            int8_t bytes[16];
            for (int i = 0; i < 16; i++) {
                int at = 3 * i + channel - 16 * third;
                bytes[i] = (int8_t)(at >= 0 && at < 16 ? at : -128);
            }
            places[channel][third] = _mm_loadu_si128((const __m128i *)bytes);
        }
    size_t done = 0;
    for (; done + 16 <= points; done += 16) {
        const __m128i *source = (const __m128i *)(from + 3 * done);
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2);
        for (int channel = 0; channel < 3; channel++) {
            __m128i *target = (__m128i *)(to + (size_t)channel * points + done), *place = places[channel];
            __m128i found = _mm_or_si128(_mm_shuffle_epi8(a, place[0]), _mm_shuffle_epi8(b, place[1]));
            found = _mm_or_si128(found, _mm_shuffle_epi8(c, place[2]));
            if (streams) _mm_stream_si128(target, found);
            else _mm_storeu_si128(target, found);
        }
    }
    return done;
}
#endif

/* Copies an image from three interleaved channels of bytes to one plane for each channel. */
EXPORTED void stoker_planes(uint8_t *restrict to, const uint8_t *restrict from, size_t points) {
    uint8_t *first = to, *second = first + points, *third = second + points;
    size_t done = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("ssse3")) done = planes_by_sixteen(to, from, points);
#endif
    for (; done < points; done++)
        first[done] = from[3 * done], second[done] = from[3 * done + 1], third[done] = from[3 * done + 2];
#if defined(__x86_64__)
    _mm_sfence(); /* makes the stores visible to other processes before they learn of the batch */
#endif
}

/* Replaces each byte of an image, of three interleaved channels, by the number that its channel's table of 256 has for
   it, and writes one plane for each channel. */
EXPORTED void stoker_lookup(float *restrict to, const uint8_t *restrict from, size_t points,
                            const float *restrict tables) {
    float *first = to, *second = first + points, *third = second + points;
    for (size_t i = 0; i < points; i++, from += 3) {
        first[i] = tables[from[0]];
        second[i] = tables[256 + from[1]];
        third[i] = tables[512 + from[2]];
    }
}

/* Applies all rounds once to each point; `samplers/permutation.py` explains the method. */
FOR_THE_PROCESSOR static void pass(uint64_t *points, size_t count, uint64_t width, uint64_t height,
                                   const uint64_t *keys, size_t rounds) {
    enum { SOME = 64 }; /* both coordinates stay in the L1 cache */
    uint64_t first[SOME], second[SOME], inverse = UINT64_MAX / height;
    for (size_t begin = 0; begin < count; begin += SOME, points += SOME) {
        size_t some = count - begin < SOME ? count - begin : SOME;
        uint64_t *moved = first, *other = second, side = width, other_side = height;
        for (size_t i = 0; i < some; i++) { /* division by multiplication: the quotient is at most one too small */
            uint64_t quotient = (uint64_t)(((unsigned __int128)points[i] * inverse) >> 64);
            uint64_t rest = points[i] - quotient * height;
            uint64_t more = rest >= height;
            moved[i] = quotient + more, other[i] = rest - (more ? height : 0);
        }
        for (size_t round = 0; round < rounds; round++) {
            for (size_t i = 0; i < some; i++) {
                uint64_t step = (other[i] ^ keys[round]) * UINT64_C(0xBF58476D1CE4E5B9);
                step = ((step ^ step >> 32) * UINT64_C(0x94D049BB133111EB)) >> 32;
                uint64_t sum = moved[i] + (step * side >> 32), less = sum - side;
                moved[i] = (int64_t)less < 0 ? sum : less;
            }
            uint64_t *points_of = moved, side_of = side;
            moved = other, side = other_side, other = points_of, other_side = side_of;
        }
        for (size_t i = 0; i < some; i++) points[i] = moved[i] * other_side + other[i];
    }
}

/* Replaces each point by the first point of its walk that is below `n`. */
EXPORTED void stoker_walk(uint64_t *points, size_t count, uint64_t n, uint64_t width, uint64_t height,
                          const uint64_t *keys, size_t rounds) {
    pass(points, count, width, height, keys, rounds);
    for (size_t i = 0; i < count; i++)
        while (points[i] >= n) pass(points + i, 1, width, height, keys, rounds);
}
