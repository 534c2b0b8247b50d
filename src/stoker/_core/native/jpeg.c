/* Decodes the part of a JPEG that a crop needs, resizes and mirrors it, and writes it into given memory: the pixels
   that Pillow gives, value for value (docs/design/18-images.md).

   The decoder is the libjpeg-turbo that Pillow has loaded, bound at run time. Nothing here uses Python; calls may run in
   several threads at once. Whatever is not plain and sound is declined, and the caller lets Pillow do it. */

#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jpeg_resize.h"
#include "jpeg_sound.h"

#define EXPORTED __attribute__((visibility("default")))
#ifdef __APPLE__ /* there `setjmp` saves the signal mask, by a system call */
#define setjmp _setjmp
#define longjmp _longjmp
#endif

/* Changes with the interface of any function below: `jpeg.py` rejects a library of another version. */
enum { VERSION = 2 };
EXPORTED int stoker_jpeg_version(void) { return VERSION; }

enum outcome { DONE, DECLINED, NO_FILE, OUTSIDE, TOO_LARGE, NO_MEMORY };
enum { GREY = 1, RGB = 2, YCBCR = 3 }; /* libjpeg's numbers */
enum { ROWS_FIRST, TALL_COLUMNS_FIRST, COLUMNS_FIRST_IF_LESS };
enum { ROWS = 8, LEAST_SCALED = 3, LEAST_COLUMNS = 16 };
enum { KEPT = 32 << 20 }; /* bytes that a thread keeps for its next picture, of each kind */

/* One request; `jpeg.py` has the same record. A box of width 0 is the whole picture. */
struct job {
    int x, y, width, height;                               /* of the box, in pixels of the picture */
    int out_width, out_height;                             /* to which it is resized */
    int window_x, window_y, window_width, window_height;   /* the part of that which is wanted */
    int flip, mirrored, channels, filter, order, scaling, level, is_checked; /* `mirrored` before, `flip` after resizing */
    int64_t most_pixels, most_memory, stride;
    uint8_t *out;
};

struct header {
    int width, height, components, progressive, error;
};

static struct {
    void *(*std_error)(void *errors);
    void (*create)(void *codec, int version, size_t size);
    void (*destroy)(void *codec);
    void (*source)(void *codec, const unsigned char *data, unsigned long size);
    int (*header)(void *codec, int require_image);
    int (*start)(void *codec);
    unsigned (*rows)(void *codec, unsigned char **rows, unsigned count);
    unsigned (*skip)(void *codec, unsigned count);
    void (*crop)(void *codec, unsigned *first, unsigned *width);
} library;

/* Memory that a thread keeps from picture to picture. */
struct block {
    uint8_t *bytes;
    size_t size;
};
struct workspace {
    struct block file, weights, pixels;
};

static pthread_key_t workspaces;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_key;

static void free_workspace(void *memory) {
    struct workspace *space = memory;
    free(space->file.bytes), free(space->weights.bytes), free(space->pixels.bytes);
    free(space);
}

static void make_key(void) { has_key = pthread_key_create(&workspaces, free_workspace) == 0; }

static struct workspace *own_workspace(void) {
    pthread_once(&once, make_key);
    if (!has_key) return NULL;
    struct workspace *space = pthread_getspecific(workspaces);
    if (!space && (space = calloc(1, sizeof *space)) && pthread_setspecific(workspaces, space)) {
        free(space);
        return NULL;
    }
    return space;
}

/* Whether the block has this size now. What it held is lost. */
static int enlarge(struct block *block, size_t size) {
    if (size <= block->size) return 1;
    free(block->bytes);
    size_t more = size + size / 4;
    block->bytes = malloc(more);
    block->size = block->bytes ? more : 0;
    return block->bytes != NULL;
}

static void give_back_large(struct block *block) {
    if (block->size <= KEPT) return;
    free(block->bytes);
    block->bytes = NULL, block->size = 0;
}

/* What a picture needs, and where it is put. */
struct region {
    struct stretch across, down;
    int left, top; /* of the box, in scaled pixels */
    unsigned first_column, columns;
};

/* Moves a stretch so that it begins in pixel 0, of the mirrored source if it is. Returns the pixel that this was. */
static int start_at_zero(struct stretch *stretch, int end) {
    int begin = (int)floor(stretch->from), to = (int)ceil(stretch->to);
    if (to > end) to = end;
    stretch->size = to - begin;
    double from = stretch->from - begin, length = stretch->to - stretch->from;
    stretch->from = stretch->mirrored ? stretch->size - from - length : from;
    stretch->to = stretch->from + length;
    return begin;
}

/* The workspace: some decoded rows, one row between the passes, and the rows that the second pass needs. */
struct layout {
    size_t row_bytes, kept_bytes, between, kept, size;
};

static struct layout lay_out(const struct region *region, int channels, struct axis *across, size_t kept, int height) {
    struct layout layout = {0};
    size_t beyond = (size_t)across->taps * MOST_CHANNELS + SLACK;
    layout.row_bytes = (size_t)region->columns * (size_t)channels + beyond;
    layout.kept_bytes = kept;
    layout.between = layout.row_bytes * ROWS;
    layout.kept = layout.between + 2 * ((size_t)across->count * MOST_CHANNELS + kept + beyond);
    layout.size = layout.kept + kept * (size_t)height + beyond;
    return layout;
}

/* Pillow's order of the two passes, which its versions 12.3 and 13 changed: the results differ by rounding. */
static int is_columns_first(const struct job *job) {
    int wider = job->width - job->out_width, taller = job->height - job->out_height;
    if (job->order == COLUMNS_FIRST_IF_LESS) return taller > 0 && taller > 2 * wider;
    if (job->order == TALL_COLUMNS_FIRST) return taller > 0 && job->height > 100 * job->width;
    return 0;
}

/* Eighths to which the transform scales: 8, or less while the scaled box has LEAST_SCALED times the wanted size. */
static int scale_for(const struct job *job) {
    double across = (double)job->width / job->out_width, down = (double)job->height / job->out_height;
    double least = across < down ? across : down;
    for (int eighths = 1; eighths < 8; eighths *= 2)
        if (least * eighths / 8 >= LEAST_SCALED) return eighths;
    return 8;
}

/* Whether the box is inside the picture; one of width 0 becomes the whole. */
static int fits_picture(struct job *job, int width, int height) {
    if (job->width == 0) job->x = job->y = 0, job->width = width, job->height = height;
    if (job->x < 0 || job->y < 0 || job->width < 1 || job->height < 1) return 0;
    return job->x <= width - job->width && job->y <= height - job->height;
}

/* Whether scans of a progressive picture are missing. The library then smooths over the borders of blocks, and at the
   borders of a part it would do so from fewer blocks. */
static int is_incomplete(int (*missing_bits)[64], int components) {
    if (!missing_bits) return 1;
    for (int component = 0; component < components; component++)
        for (int i = 0; i < 64; i++)
            if (missing_bits[component][i] != 0) return 1;
    return 0;
}

/* Pillow's grey of colours, also in place. */
static void to_grey(const uint8_t *from, uint8_t *to, int count) {
    for (int i = 0; i < count; i++, from += 3)
        to[i] = (uint8_t)((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
}

static void copy_row(const uint8_t *restrict from, uint8_t *restrict to, int count, int channels, int flip) {
    size_t points = (size_t)count;
    if (!flip) memcpy(to, from, points * (size_t)channels);
    else if (channels == 1)
        for (size_t i = 0; i < points; i++) to[i] = from[points - 1 - i];
    else
        for (size_t i = 0; i < points; i++) {
            const uint8_t *pixel = from + 3 * (points - 1 - i);
            to[3 * i] = pixel[0], to[3 * i + 1] = pixel[1], to[3 * i + 2] = pixel[2];
        }
}

/* The second pass, from the kept rows; both passes if columns come first. */
static void finish(const struct job *job, const struct axis *across, const struct axis *down, struct passes passes,
                   int columns_first, const struct layout *layout, uint8_t *memory) {
    size_t row_bytes = (size_t)job->window_width * (size_t)job->channels;
    uint8_t *between = memory + layout->between, *resized = between + layout->kept_bytes + SLACK;
    resized += (size_t)across->taps * MOST_CHANNELS;
    uint8_t *out = job->out;
    for (int point = 0; point < down->count; point++, out += job->stride) {
        const uint8_t *rows = memory + layout->kept + (size_t)down->first[point] * layout->kept_bytes;
        if (!columns_first) {
            passes.column(down, point, rows, layout->kept_bytes, out, row_bytes);
            continue;
        }
        passes.column(down, point, rows, layout->kept_bytes, between, layout->kept_bytes);
        (job->channels == 1 ? passes.grey_row : passes.colour_row)(across, between, resized);
        memcpy(out, resized, row_bytes);
    }
}

#define ABI 62
#include "jpeg_abi.h"
#include "jpeg_codec.h"
#undef ABI
#define ABI 80
#include "jpeg_abi.h"
#include "jpeg_codec.h"
#undef ABI

static int abi; /* of the library; 0 before `stoker_jpeg_bind` has succeeded */

/* Binds to the libjpeg-turbo that is loaded as a dependency of the extension at `path`. Returns its ABI; -1 if that
   extension is not loaded, -2 without the functions, -3 if it has another ABI. */
EXPORTED int stoker_jpeg_bind(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle) return -1;
    struct {
        const char *name;
        void *to;
    } functions[] = {
        {"jpeg_std_error", &library.std_error},       {"jpeg_CreateDecompress", &library.create},
        {"jpeg_destroy_decompress", &library.destroy}, {"jpeg_mem_src", &library.source},
        {"jpeg_read_header", &library.header},        {"jpeg_start_decompress", &library.start},
        {"jpeg_read_scanlines", &library.rows},       {"jpeg_skip_scanlines", &library.skip},
        {"jpeg_crop_scanline", &library.crop},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(handle, functions[i].name);
        if (!found) return -2;
        memcpy(functions[i].to, &found, sizeof found);
    }
    abi = fits_62() ? 62 : fits_80() ? 80 : 0;
    return abi ? abi : -3;
}

/* The best vector instructions of this processor: 0 none, 1 SSE4.1, 2 AVX2. */
EXPORTED int stoker_jpeg_level(void) { return best_level(); }

/* Whether libjpeg refuses nothing in a picture. */
EXPORTED int stoker_jpeg_sound(const uint8_t *data, size_t size) { return is_sound(data, size); }

/* Reads the header of a picture. */
EXPORTED int stoker_jpeg_look(const uint8_t *data, size_t size, struct header *header) {
    return (int)(abi == 62 ? look_62(data, size, header) : abi == 80 ? look_80(data, size, header) : DECLINED);
}

static int decode_with(struct workspace *space, const struct job *job, const uint8_t *data, size_t size,
                       struct header *header) {
    struct job own = *job;
    enum outcome outcome = DECLINED;
    if (abi == 62) outcome = decode_62(&own, data, size, header, space);
    if (abi == 80) outcome = decode_80(&own, data, size, header, space);
    give_back_large(&space->weights), give_back_large(&space->pixels);
    return (int)outcome;
}

/* Decodes a picture in memory into `job->out`. Unless it returns DONE, what `out` holds is not said. */
EXPORTED int stoker_jpeg_decode(const struct job *job, const uint8_t *data, size_t size, struct header *header) {
    struct workspace *space = own_workspace();
    return space ? decode_with(space, job, data, size, header) : NO_MEMORY;
}

/* Reads a regular file whole, into the thread's memory. */
static int read_file(const char *path, struct block *file, size_t *size, struct header *header) {
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), outcome = DONE;
    if (descriptor < 0) {
        header->error = errno;
        return NO_FILE;
    }
    *size = 0;
    if (fstat(descriptor, &status) || !S_ISREG(status.st_mode)) outcome = DECLINED;
    else if (!enlarge(file, (size_t)status.st_size + 1)) outcome = NO_MEMORY;
    while (outcome == DONE && *size < (size_t)status.st_size) {
        ssize_t got = read(descriptor, file->bytes + *size, (size_t)status.st_size - *size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) outcome = DECLINED; /* an error, or a file that has shrunk */
        else *size += (size_t)got;
    }
    close(descriptor);
    return outcome;
}

/* The same of a file. NO_FILE sets `header->error` to the system's number of the error. */
EXPORTED int stoker_jpeg_decode_file(const struct job *job, const char *path, struct header *header) {
    struct workspace *space = own_workspace();
    size_t size = 0;
    if (!space) return NO_MEMORY;
    int outcome = read_file(path, &space->file, &size, header);
    if (outcome == DONE) outcome = decode_with(space, job, space->file.bytes, size, header);
    give_back_large(&space->file);
    return outcome;
}

/* Decodes `count` files one after another, each into its job's memory: what a program in C would do, for
   `benchmarks/jpeg.py`. Returns the number that were not decoded. */
EXPORTED size_t stoker_jpeg_decode_files(const struct job *jobs, const char *const *paths, size_t count) {
    size_t missed = 0;
    for (size_t i = 0; i < count; i++) {
        struct header header = {0};
        missed += stoker_jpeg_decode_file(jobs + i, paths[i], &header) != DONE;
    }
    return missed;
}
