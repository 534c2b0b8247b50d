/* Pillow's antialiased resize of 8-bit pixels, value for value: fixed-point weights of 22 bits, a pass along rows and
   one along columns, each rounded to bytes.

   A weight is split as `high * 2048 + low`, because the processor multiplies and adds pairs of 16-bit numbers at twice
   the rate of 32-bit ones: the two sums joined are exactly the sum of the products. All points of a row have the same
   number of taps (zero weights fill up): a loop of varying length would cost more in mispredicted branches than the
   arithmetic. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define ON_X86 1
#endif

enum { WEIGHT_BITS = 22, LOW_BITS = 11, HALF = 1 << (WEIGHT_BITS - 1), MOST_CHANNELS = 3, SLACK = 64 };
enum { BILINEAR = 1, BICUBIC = 2 };

/* The weights along one axis: the value at point i is the sum over t of weight[i * taps + t] * source[first[i] + t],
   where source 0 is `begin`. */
struct axis {
    int count, taps, begin, end; /* the source that has weight is [begin, end) */
    int *first, *used, *weight;  /* used: taps of each point that are not filled up */
    int16_t *high, *low;
};

static double filter_value(int filter, double x) {
    x = fabs(x);
    if (filter == BILINEAR) return x < 1.0 ? 1.0 - x : 0.0;
    const double a = -0.5;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

/* The part of a source axis that is resized: [from, to) within pixels 0 to size - 1, resized to `out` points, of which
   [window, window + count) are wanted, the last one first if `flip`. If `mirrored`, the source was mirrored before: its
   weights are those of the mirrored pixels, which rounding makes others than the mirrored weights. */
struct stretch {
    double from, to;
    int size, out, window, count, flip, filter, mirrored;
};

/* How far from its centre a point takes pixels, in source pixels. */
static double reach(const struct stretch *s) {
    double scale = (s->to - s->from) / s->out;
    return (s->filter == BILINEAR ? 1.0 : 2.0) * (scale < 1.0 ? 1.0 : scale);
}

static int most_taps(const struct stretch *s, int multiple) {
    int taps = (int)ceil(reach(s)) * 2 + 1;
    return (taps + multiple - 1) / multiple * multiple;
}

/* Bytes that `fill_axis` needs. */
static size_t axis_bytes(const struct stretch *s, int multiple) {
    size_t points = (size_t)s->count, taps = (size_t)most_taps(s, multiple);
    return points * 2 * sizeof(int) + points * taps * (sizeof(int) + 2 * sizeof(int16_t)) + taps * sizeof(double) + 64;
}

/* Computes the weights of one point into `values` (whole numbers in `weight`). Returns the number of taps. */
static int weights_of(const struct stretch *s, int point, double *values, int *weight, int *first) {
    double scale = (s->to - s->from) / s->out, stretched = scale < 1.0 ? 1.0 : scale, support = reach(s);
    double center = s->from + (point + 0.5) * scale, sum = 0.0, inverse = 1.0 / stretched;
    int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
    if (low < 0) low = 0;
    if (high > s->size) high = s->size;
    int taps = high - low;
    for (int t = 0; t < taps; t++) sum += values[t] = filter_value(s->filter, (t + low - center + 0.5) * inverse);
    for (int t = 0; t < taps; t++) {
        double value = (sum != 0.0 ? values[t] / sum : values[t]) * (1 << WEIGHT_BITS);
        weight[t] = (int)(value < 0 ? value - 0.5 : value + 0.5);
    }
    while (taps > 1 && weight[taps - 1] == 0) taps--;
    int skip = 0;
    while (skip < taps - 1 && weight[skip] == 0) skip++;
    if (skip) memmove(weight, weight + skip, (size_t)(taps - skip) * sizeof *weight);
    taps -= skip;
    *first = s->mirrored ? s->size - (low + skip) - taps : low + skip;
    for (int t = 0; s->mirrored && t < taps / 2; t++) {
        int other = weight[t];
        weight[t] = weight[taps - 1 - t], weight[taps - 1 - t] = other;
    }
    return taps;
}

/* Fills the axis, in `memory` of `axis_bytes`. The taps of all points become the largest number, up to `multiple`. */
static void fill_axis(struct axis *axis, const struct stretch *s, int multiple, void *memory) {
    int room = most_taps(s, multiple), taps = 1;
    size_t points = (size_t)s->count;
    double *values = memory;
    int *weight = (int *)(values + room);
    axis->count = s->count, axis->weight = weight, axis->begin = s->size, axis->end = 0;
    axis->first = weight + points * (size_t)room, axis->used = axis->first + points;
    axis->high = (int16_t *)(axis->used + points), axis->low = axis->high + points * (size_t)room;
    for (int i = 0; i < s->count; i++) {
        int point = s->flip ? s->window + s->count - 1 - i : s->window + i, first = 0;
        int used = weights_of(s, point, values, weight + (size_t)i * (size_t)room, &first);
        axis->first[i] = first, axis->used[i] = used;
        if (used > taps) taps = used;
        if (first < axis->begin) axis->begin = first;
        if (first + used > axis->end) axis->end = first + used;
    }
    taps = (taps + multiple - 1) / multiple * multiple;
    axis->taps = taps;
    for (size_t i = 0; i < points; i++) {
        axis->first[i] -= axis->begin;
        const int *from = weight + i * (size_t)room;
        int *to = weight + i * (size_t)taps;
        for (int t = 0; t < taps; t++) {
            int value = t < axis->used[i] ? from[t] : 0;
            size_t at = i * (size_t)taps + (size_t)t;
            to[t] = value;
            axis->high[at] = (int16_t)(value >> LOW_BITS);
            axis->low[at] = (int16_t)(value & ((1 << LOW_BITS) - 1));
        }
    }
}

static inline uint8_t to_byte(int sum) {
    sum >>= WEIGHT_BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

/* One row of pixels from the source row, whose pixel `begin` is at `from`. Writes up to SLACK bytes behind the row and reads
   up to `taps` pixels and SLACK bytes behind the last one used. */
typedef void along_row(const struct axis *axis, const uint8_t *restrict from, uint8_t *restrict to);

/* `count` values of one point of the column: from rows `stride` bytes apart. */
typedef void along_column(const struct axis *axis, int point, const uint8_t *restrict from, size_t stride,
                          uint8_t *restrict to, size_t count);

struct passes {
    along_row *colour_row, *grey_row;
    along_column *column;
};

static void colour_row_plain(const struct axis *axis, const uint8_t *restrict from, uint8_t *restrict to) {
    for (int i = 0; i < axis->count; i++) {
        const uint8_t *pixel = from + 3 * (ptrdiff_t)axis->first[i];
        const int *weight = axis->weight + (size_t)i * (size_t)axis->taps;
        int red = HALF, green = HALF, blue = HALF;
        for (int t = 0; t < axis->used[i]; t++, pixel += 3)
            red += pixel[0] * weight[t], green += pixel[1] * weight[t], blue += pixel[2] * weight[t];
        to[3 * i] = to_byte(red), to[3 * i + 1] = to_byte(green), to[3 * i + 2] = to_byte(blue);
    }
}

static void grey_row_plain(const struct axis *axis, const uint8_t *restrict from, uint8_t *restrict to) {
    for (int i = 0; i < axis->count; i++) {
        const uint8_t *pixel = from + axis->first[i];
        const int *weight = axis->weight + (size_t)i * (size_t)axis->taps;
        int sum = HALF;
        for (int t = 0; t < axis->used[i]; t++) sum += pixel[t] * weight[t];
        to[i] = to_byte(sum);
    }
}

static void some_of_column(const int *weight, int taps, const uint8_t *restrict from, size_t stride,
                           uint8_t *restrict to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int sum = HALF;
        for (int t = 0; t < taps; t++) sum += from[(size_t)t * stride + i] * weight[t];
        to[i] = to_byte(sum);
    }
}

static void column_plain(const struct axis *axis, int point, const uint8_t *restrict from, size_t stride,
                         uint8_t *restrict to, size_t count) {
    enum { SOME = 64 }; /* sums that stay in registers or the L1 cache */
    const int *weight = axis->weight + (size_t)point * (size_t)axis->taps;
    int taps = axis->used[point];
    size_t done = 0;
    for (; done + SOME <= count; done += SOME) {
        int sums[SOME];
        for (int i = 0; i < SOME; i++) sums[i] = HALF;
        for (int t = 0; t < taps; t++) {
            const uint8_t *row = from + (size_t)t * stride + done;
            for (int i = 0; i < SOME; i++) sums[i] += row[i] * weight[t];
        }
        for (int i = 0; i < SOME; i++) to[done + (size_t)i] = to_byte(sums[i]);
    }
    some_of_column(weight, taps, from + done, stride, to + done, count - done);
}

#ifdef ON_X86
static inline int pair_at(const int16_t *weights) {
    int pair;
    memcpy(&pair, weights, sizeof pair);
    return pair;
}

/* Of each two pixels in 8 bytes: the pairs of their reds, greens and blues as 16-bit numbers; -1 gives zero. */
#define PAIRS_OF_COLOURS _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1)

#define COLOUR_PIXEL(PAIRS)                                                                                            \
    for (int i = 0; i < axis->count; i++) {                                                                            \
        const uint8_t *pixel = from + 3 * (ptrdiff_t)axis->first[i];                                                   \
        const int16_t *high = axis->high + (size_t)i * (size_t)axis->taps;                                             \
        const int16_t *low = axis->low + (size_t)i * (size_t)axis->taps;                                               \
        __m128i highs = _mm_setzero_si128(), lows = _mm_set1_epi32(HALF);                                              \
        for (int p = 0; p < (PAIRS); p++) {                                                                            \
            __m128i two = _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(const void *)(pixel + 6 * p)), order);    \
            highs = _mm_add_epi32(highs, _mm_madd_epi16(two, _mm_set1_epi32(pair_at(high + 2 * p))));                  \
            lows = _mm_add_epi32(lows, _mm_madd_epi16(two, _mm_set1_epi32(pair_at(low + 2 * p))));                     \
        }                                                                                                              \
        __m128i sum = _mm_add_epi32(_mm_slli_epi32(highs, LOW_BITS), lows);                                            \
        sum = _mm_srai_epi32(sum, WEIGHT_BITS);                                                                        \
        sum = _mm_packs_epi32(sum, sum);                                                                               \
        int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));                                                     \
        memcpy(to + 3 * (ptrdiff_t)i, &bytes, sizeof bytes);                                                           \
    }

/* The loop over pairs is unrolled for the numbers of taps that resizing by up to 1/5 has. */
#define COLOUR_ROW(NAME, TARGET)                                                                                       \
    __attribute__((target(TARGET))) static void NAME(const struct axis *axis, const uint8_t *restrict from,            \
                                                     uint8_t *restrict to) {                                           \
        const __m128i order = PAIRS_OF_COLOURS;                                                                        \
        switch (axis->taps / 2) {                                                                                      \
        case 1: COLOUR_PIXEL(1) break;                                                                                 \
        case 2: COLOUR_PIXEL(2) break;                                                                                 \
        case 3: COLOUR_PIXEL(3) break;                                                                                 \
        case 4: COLOUR_PIXEL(4) break;                                                                                 \
        case 5: COLOUR_PIXEL(5) break;                                                                                 \
        default: COLOUR_PIXEL(axis->taps / 2)                                                                          \
        }                                                                                                              \
    }

#define GREY_ROW(NAME, TARGET)                                                                                         \
    __attribute__((target(TARGET))) static void NAME(const struct axis *axis, const uint8_t *restrict from,            \
                                                     uint8_t *restrict to) {                                           \
        for (int i = 0; i < axis->count; i++) {                                                                        \
            const uint8_t *pixel = from + axis->first[i];                                                              \
            const int16_t *high = axis->high + (size_t)i * (size_t)axis->taps;                                         \
            const int16_t *low = axis->low + (size_t)i * (size_t)axis->taps;                                           \
            __m128i highs = _mm_setzero_si128(), lows = _mm_setzero_si128();                                           \
            for (int t = 0; t < axis->taps; t += 8) {                                                                  \
                __m128i eight = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(pixel + t)));        \
                const __m128i *h = (const __m128i *)(const void *)(high + t);                                          \
                const __m128i *l = (const __m128i *)(const void *)(low + t);                                           \
                highs = _mm_add_epi32(highs, _mm_madd_epi16(eight, _mm_loadu_si128(h)));                               \
                lows = _mm_add_epi32(lows, _mm_madd_epi16(eight, _mm_loadu_si128(l)));                                 \
            }                                                                                                          \
            __m128i sum = _mm_add_epi32(_mm_slli_epi32(highs, LOW_BITS), lows);                                        \
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));                                                    \
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));                                                    \
            to[i] = to_byte(_mm_cvtsi128_si32(sum) + HALF);                                                            \
        }                                                                                                              \
    }

/* A column: two rows at a time, their bytes interleaved to pairs. The last block overlaps the one before it. */
#define COLUMN(NAME, TARGET, VECTOR, P, S)                                                                             \
    __attribute__((target(TARGET))) static inline void NAME##_block(                                                   \
        const int16_t *high, const int16_t *low, int taps, const uint8_t *restrict from, size_t stride,                \
        uint8_t *restrict to) {                                                                                        \
        const VECTOR zero = P##_setzero_##S(), half = P##_set1_epi32(HALF);                                            \
        VECTOR h0 = zero, h1 = zero, h2 = zero, h3 = zero, l0 = half, l1 = half, l2 = half, l3 = half;                 \
        for (int t = 0; t < taps; t += 2) {                                                                            \
            const uint8_t *row = from + (size_t)t * stride, *next = t + 1 < taps ? row + stride : row;                 \
            VECTOR a = P##_loadu_##S((const VECTOR *)(const void *)row);                                               \
            VECTOR b = P##_loadu_##S((const VECTOR *)(const void *)next);                                              \
            VECTOR wh = P##_set1_epi32(pair_at(high + t)), wl = P##_set1_epi32(pair_at(low + t));                      \
            VECTOR first = P##_unpacklo_epi8(a, b), second = P##_unpackhi_epi8(a, b);                                  \
            VECTOR p0 = P##_unpacklo_epi8(first, zero), p1 = P##_unpackhi_epi8(first, zero);                           \
            VECTOR p2 = P##_unpacklo_epi8(second, zero), p3 = P##_unpackhi_epi8(second, zero);                         \
            h0 = P##_add_epi32(h0, P##_madd_epi16(p0, wh)), l0 = P##_add_epi32(l0, P##_madd_epi16(p0, wl));            \
            h1 = P##_add_epi32(h1, P##_madd_epi16(p1, wh)), l1 = P##_add_epi32(l1, P##_madd_epi16(p1, wl));            \
            h2 = P##_add_epi32(h2, P##_madd_epi16(p2, wh)), l2 = P##_add_epi32(l2, P##_madd_epi16(p2, wl));            \
            h3 = P##_add_epi32(h3, P##_madd_epi16(p3, wh)), l3 = P##_add_epi32(l3, P##_madd_epi16(p3, wl));            \
        }                                                                                                              \
        h0 = P##_srai_epi32(P##_add_epi32(P##_slli_epi32(h0, LOW_BITS), l0), WEIGHT_BITS);                             \
        h1 = P##_srai_epi32(P##_add_epi32(P##_slli_epi32(h1, LOW_BITS), l1), WEIGHT_BITS);                             \
        h2 = P##_srai_epi32(P##_add_epi32(P##_slli_epi32(h2, LOW_BITS), l2), WEIGHT_BITS);                             \
        h3 = P##_srai_epi32(P##_add_epi32(P##_slli_epi32(h3, LOW_BITS), l3), WEIGHT_BITS);                             \
        VECTOR bytes = P##_packus_epi16(P##_packs_epi32(h0, h1), P##_packs_epi32(h2, h3));                             \
        P##_storeu_##S((VECTOR *)(void *)to, bytes);                                                                   \
    }                                                                                                                  \
    __attribute__((target(TARGET))) static void NAME(const struct axis *axis, int point, const uint8_t *restrict from, \
                                                     size_t stride, uint8_t *restrict to, size_t count) {              \
        size_t at = (size_t)point * (size_t)axis->taps, done = 0;                                                      \
        int taps = axis->used[point];                                                                                  \
        if (count < sizeof(VECTOR)) {                                                                                  \
            some_of_column(axis->weight + at, taps, from, stride, to, count);                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (; done + sizeof(VECTOR) <= count; done += sizeof(VECTOR))                                                 \
            NAME##_block(axis->high + at, axis->low + at, taps, from + done, stride, to + done);                       \
        done = count - sizeof(VECTOR);                                                                                 \
        NAME##_block(axis->high + at, axis->low + at, taps, from + done, stride, to + done);                           \
    }

COLOUR_ROW(colour_row_sse, "sse4.1")
COLOUR_ROW(colour_row_avx, "avx2")
GREY_ROW(grey_row_sse, "sse4.1")
GREY_ROW(grey_row_avx, "avx2")
COLUMN(column_sse, "sse4.1", __m128i, _mm, si128)
COLUMN(column_avx, "avx2", __m256i, _mm256, si256)
#endif

/* Vector instructions by level: 0 none, 1 SSE4.1, 2 AVX2. */
static int best_level(void) {
#ifdef ON_X86
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? 2 : __builtin_cpu_supports("sse4.1") ? 1 : 0;
#else
    return 0;
#endif
}

static struct passes passes_for(int level) {
#ifdef ON_X86
    if (level >= 2) return (struct passes){colour_row_avx, grey_row_avx, column_avx};
    if (level == 1) return (struct passes){colour_row_sse, grey_row_sse, column_sse};
#endif
    (void)level;
    return (struct passes){colour_row_plain, grey_row_plain, column_plain};
}
