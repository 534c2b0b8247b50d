/* Decoding through one ABI of libjpeg: included once for each, with `ABI` 62 or 80, after `jpeg_abi.h`.

   `setjmp` is called by functions whose locals do not change afterwards: everything that a jump must not lose is in the
   session, and memory belongs to the thread's workspace or to libjpeg. */

struct IN_ABI(session) {
    struct IN_ABI(decompressor) codec;
    struct IN_ABI(errors) errors;
    jmp_buf on_error;
};

static void IN_ABI(fail)(void *codec) {
    struct IN_ABI(session) *session = ((struct IN_ABI(decompressor) *)codec)->client;
    longjmp(session->on_error, 1);
}

/* A warning means damage, and what that damage becomes is for Pillow to say: traces have levels from 0. */
static void IN_ABI(note)(void *codec, int level) {
    if (level < 0) IN_ABI(fail)(codec);
}

static void IN_ABI(begin)(struct IN_ABI(session) *session) {
    session->codec.errors = library.std_error(&session->errors);
    session->errors.error_exit = IN_ABI(fail);
    session->errors.emit_message = IN_ABI(note);
    session->codec.client = session;
    library.create(&session->codec, ABI, sizeof session->codec);
}

/* Whether the library has this ABI. */
static int IN_ABI(fits)(void) {
    struct IN_ABI(session) session;
    memset(&session, 0, sizeof session);
    if (setjmp(session.on_error)) return 0;
    IN_ABI(begin)(&session);
    library.destroy(&session.codec);
    return 1;
}

static enum outcome IN_ABI(read_header)(struct IN_ABI(session) *session, const uint8_t *data, size_t size,
                                        struct header *header) {
    struct IN_ABI(decompressor) *codec = &session->codec;
    library.source(codec, data, (unsigned long)size);
    library.header(codec, 1);
    header->width = (int)codec->width, header->height = (int)codec->height;
    header->components = codec->components, header->progressive = codec->progressive;
    int is_known = codec->colours == GREY || codec->colours == RGB || codec->colours == YCBCR;
    return codec->precision == 8 && is_known ? DONE : DECLINED;
}

/* The rows and columns that are decoded, in pixels of the scaled picture. */
static void IN_ABI(choose_region)(struct IN_ABI(decompressor) *codec, const struct job *job, struct region *region) {
    double by = codec->scale / 8.0;
    region->across = (struct stretch){job->x * by, (job->x + job->width) * by, 0, job->out_width,
                                      job->window_x, job->window_width, job->flip, job->filter, job->mirrored};
    region->down = (struct stretch){job->y * by, (job->y + job->height) * by, 0, job->out_height,
                                    job->window_y, job->window_height, 0, job->filter, 0};
    region->left = start_at_zero(&region->across, (int)codec->scaled_width);
    region->top = start_at_zero(&region->down, (int)codec->scaled_height);
}

/* Has columns [begin, end) of the picture decoded, and one more on each side: "fancy" upsampling of chroma looks at
   neighbours, and the library has none beyond the columns that it decodes. They are LEAST_COLUMNS at least, because the
   library takes another upsampling for one or two columns of chroma. */
static void IN_ABI(narrow)(struct IN_ABI(decompressor) *codec, struct region *region, int begin, int end) {
    unsigned from = begin > 0 ? (unsigned)begin - 1 : 0, to = (unsigned)end + 1;
    unsigned width = codec->scaled_width;
    if (to < from + LEAST_COLUMNS) to = from + LEAST_COLUMNS;
    if (to > width) to = width;
    if (from + LEAST_COLUMNS > to) from = to > LEAST_COLUMNS ? to - LEAST_COLUMNS : 0;
    region->first_column = from, region->columns = to - from;
    if (region->columns < width) library.crop(codec, &region->first_column, &region->columns);
}

static void IN_ABI(read_rows)(struct IN_ABI(decompressor) *codec, uint8_t **rows, int count) {
    for (int done = 0; done < count;) done += (int)library.rows(codec, rows + done, (unsigned)(count - done));
}

/* Without resizing: rows go to their place, at once if nothing must be left out, mirrored or converted. */
static enum outcome IN_ABI(copy)(struct IN_ABI(decompressor) *codec, const struct job *job, struct workspace *space) {
    struct region region = {0};
    int left = job->x + job->window_x, top = job->y + job->window_y, channels = codec->channels[1];
    IN_ABI(narrow)(codec, &region, left, left + job->window_width);
    size_t row_bytes = (size_t)region.columns * (size_t)channels + SLACK;
    int flip = job->flip != job->mirrored;
    int is_direct = !flip && channels == job->channels && region.columns == (unsigned)job->window_width;
    if (!is_direct && !enlarge(&space->pixels, row_bytes * ROWS)) return NO_MEMORY;
    if (top) library.skip(codec, (unsigned)top);
    uint8_t *rows[ROWS], *out = job->out;
    for (int row = 0; row < job->window_height; row += ROWS) {
        int count = job->window_height - row < ROWS ? job->window_height - row : ROWS;
        for (int i = 0; i < count; i++, out += job->stride)
            rows[i] = is_direct ? out : space->pixels.bytes + row_bytes * (size_t)i;
        IN_ABI(read_rows)(codec, rows, count);
        if (is_direct) continue;
        out -= job->stride * count;
        for (int i = 0; i < count; i++, out += job->stride) {
            uint8_t *from = rows[i] + (size_t)((unsigned)left - region.first_column) * (size_t)channels;
            if (channels > job->channels) to_grey(from, from, job->window_width);
            copy_row(from, out, job->window_width, job->channels, flip);
        }
    }
    return DONE;
}

/* With resizing: each row goes through the pass along rows while it is in the cache, or is kept for the other order. */
static enum outcome IN_ABI(resize)(struct IN_ABI(decompressor) *codec, const struct job *job, struct workspace *space) {
    struct region region = {0};
    struct axis across, down;
    struct passes passes = passes_for(job->level);
    int channels = job->channels, decoded = codec->channels[1], multiple = channels == 1 ? 8 : 2;
    IN_ABI(choose_region)(codec, job, &region);
    size_t across_bytes = axis_bytes(&region.across, multiple), down_bytes = axis_bytes(&region.down, 2);
    if (!enlarge(&space->weights, across_bytes + down_bytes)) return NO_MEMORY;
    fill_axis(&across, &region.across, multiple, space->weights.bytes);
    fill_axis(&down, &region.down, 2, space->weights.bytes + (across_bytes + 7) / 8 * 8);
    IN_ABI(narrow)(codec, &region, region.left + across.begin, region.left + across.end);
    unsigned from = (unsigned)(region.left + across.begin) - region.first_column;
    int columns_first = is_columns_first(job), height = down.end - down.begin;
    size_t pixels = columns_first ? (size_t)(across.end - across.begin) : (size_t)job->window_width;
    struct layout layout = lay_out(&region, decoded, &across, pixels * (size_t)channels, height);
    if (!enlarge(&space->pixels, layout.size)) return NO_MEMORY;
    uint8_t *rows[ROWS], *kept = space->pixels.bytes + layout.kept;
    along_row *along = channels == 1 ? passes.grey_row : passes.colour_row;
    if (region.top + down.begin) library.skip(codec, (unsigned)(region.top + down.begin));
    for (int i = 0; i < ROWS; i++) rows[i] = space->pixels.bytes + layout.row_bytes * (size_t)i;
    for (int row = 0; row < height; row += ROWS) {
        int count = height - row < ROWS ? height - row : ROWS;
        IN_ABI(read_rows)(codec, rows, count);
        for (int i = 0; i < count; i++, kept += layout.kept_bytes) {
            uint8_t *source = rows[i] + (size_t)from * (size_t)decoded;
            if (decoded > channels) to_grey(source, source, across.end - across.begin);
            if (columns_first) memcpy(kept, source, pixels * (size_t)channels);
            else along(&across, source, kept);
        }
    }
    finish(job, &across, &down, passes, columns_first, &layout, space->pixels.bytes);
    return DONE;
}

static enum outcome IN_ABI(run)(struct IN_ABI(session) *session, struct job *job, const uint8_t *data, size_t size,
                                struct header *header, struct workspace *space) {
    struct IN_ABI(decompressor) *codec = &session->codec;
    codec->memory->most = job->most_memory;
    enum outcome outcome = IN_ABI(read_header)(session, data, size, header);
    if (outcome != DONE) return outcome;
    if ((int64_t)header->width * header->height > job->most_pixels) return TOO_LARGE;
    if (!fits_picture(job, header->width, header->height)) return OUTSIDE;
    if (!job->is_checked && !is_sound(data, size)) return DECLINED;
    /* Grey from colours is Pillow's conversion of RGB, not the luma of the file: they differ by clipping. */
    codec->wanted_colours = codec->colours == GREY && job->channels == 1 ? GREY : RGB;
    int is_resized = job->width != job->out_width || job->height != job->out_height;
    codec->scale = is_resized && job->scaling ? (unsigned)scale_for(job) : 8, codec->scale_of = 8;
    if (!library.start(codec)) return DECLINED;
    if (codec->progressive && is_incomplete(codec->missing_bits, codec->components)) return DECLINED;
    if (codec->channels[1] < job->channels) return DECLINED;
    return is_resized ? IN_ABI(resize)(codec, job, space) : IN_ABI(copy)(codec, job, space);
}

static enum outcome IN_ABI(decode)(struct job *job, const uint8_t *data, size_t size, struct header *header,
                                   struct workspace *space) {
    struct IN_ABI(session) session;
    memset(&session, 0, sizeof session);
    if (setjmp(session.on_error)) {
        library.destroy(&session.codec);
        return DECLINED;
    }
    IN_ABI(begin)(&session);
    enum outcome outcome = IN_ABI(run)(&session, job, data, size, header, space);
    library.destroy(&session.codec);
    return outcome;
}

static enum outcome IN_ABI(look)(const uint8_t *data, size_t size, struct header *header) {
    struct IN_ABI(session) session;
    memset(&session, 0, sizeof session);
    if (setjmp(session.on_error)) {
        library.destroy(&session.codec);
        return DECLINED;
    }
    IN_ABI(begin)(&session);
    enum outcome outcome = IN_ABI(read_header)(&session, data, size, header);
    library.destroy(&session.codec);
    return outcome;
}
