/* Whether a picture is sound: whether libjpeg, and so Pillow, refuses nothing in it. Damage inside the compressed data of
   a scan is no error of libjpeg's, which warns and goes on; one in a marker, or a missing end, is. So all markers up to
   the last are read, by stricter rules than libjpeg's: what is unusual is for Pillow to decode at once. */

enum { MOST_COMPONENTS = 3, MOST_BLOCKS = 10, MOST_PIXELS = 65500, TABLES = 4 }; /* of a side: libjpeg's limit */

/* What the markers have said up to now. Sets of tables have a bit for each number. */
struct said {
    int components, progressive;
    uint8_t id[MOST_COMPONENTS], across[MOST_COMPONENTS], down[MOST_COMPONENTS], quantization[MOST_COMPONENTS];
    unsigned quantizations, huffman[2]; /* for DC and for AC */
};

static int is_sound_frame(const uint8_t *data, size_t size, int progressive, struct said *said) {
    int most_across = 0, most_down = 0;
    int height, width;
    if (said->components || size < 6 || data[0] != 8) return 0;
    height = data[1] << 8 | data[2], width = data[3] << 8 | data[4];
    if (!height || height > MOST_PIXELS || !width || width > MOST_PIXELS) return 0;
    if ((data[5] != 1 && data[5] != MOST_COMPONENTS) || size != 6 + 3 * (size_t)data[5]) return 0;
    said->components = data[5], said->progressive = progressive;
    for (int i = 0; i < said->components; i++) {
        const uint8_t *component = data + 6 + 3 * i;
        int across = component[1] >> 4, down = component[1] & 15;
        if (across < 1 || across > 4 || down < 1 || down > 4 || component[2] >= TABLES) return 0;
        for (int other = 0; other < i; other++)
            if (said->id[other] == component[0]) return 0;
        said->id[i] = component[0], said->quantization[i] = component[2];
        said->across[i] = (uint8_t)across, said->down[i] = (uint8_t)down;
        if (across > most_across) most_across = across;
        if (down > most_down) most_down = down;
    }
    for (int i = 0; i < said->components; i++) /* libjpeg enlarges by whole numbers only */
        if (most_across % said->across[i] || most_down % said->down[i]) return 0;
    return 1;
}

static int are_sound_quantizations(const uint8_t *data, size_t size, struct said *said) {
    while (size) {
        size_t length = data[0] >> 4 ? 129 : 65;
        if (data[0] >> 4 > 1 || (data[0] & 15) >= TABLES || size < length) return 0;
        said->quantizations |= 1u << (data[0] & 15);
        data += length, size -= length;
    }
    return 1;
}

/* Huffman tables: codes are given to lengths in order, and must not run out of them; a code of ones alone is reserved. */
static int are_sound_codes(const uint8_t *data, size_t size, struct said *said) {
    while (size) {
        unsigned kind = data[0] >> 4, number = data[0] & 15, count = 0, code = 0;
        if (size < 17 || kind > 1 || number >= TABLES) return 0;
        for (unsigned bits = 1; bits <= 16; bits++, code <<= 1) {
            count += data[bits], code += data[bits];
            if (code > 1u << bits || (data[bits] && code == 1u << bits)) return 0;
        }
        if (count > 256 || size < 17 + count) return 0;
        for (unsigned i = 0; kind == 0 && i < count; i++)
            if (data[17 + i] > 15) return 0;
        said->huffman[kind] |= 1u << number;
        data += 17 + count, size -= 17 + count;
    }
    return 1;
}

static int is_sound_scan(const uint8_t *data, size_t size, const struct said *said) {
    if (size < 1 || data[0] < 1 || data[0] > said->components || size != 4 + 2 * (size_t)data[0]) return 0;
    if (!said->progressive && data[0] != said->components) return 0;
    const uint8_t *band = data + 1 + 2 * data[0]; /* first and last coefficient; bits known before and after */
    int bits_before = band[2] >> 4, bits_after = band[2] & 15, blocks = 0, last = -1;
    int dc = !said->progressive || band[0] == 0, ac = !said->progressive || band[0] != 0;
    if (!said->progressive && (band[0] || band[1] != 63 || band[2])) return 0;
    if (said->progressive) {
        if (dc ? band[1] != 0 : band[0] > band[1] || band[1] > 63 || data[0] != 1) return 0;
        if (bits_after > 13 || (bits_before && bits_after != bits_before - 1)) return 0;
        if (bits_before) dc = 0; /* refined without a table */
    }
    for (int i = 0; i < data[0]; i++) {
        int component = 0;
        unsigned tables = data[2 + 2 * i];
        while (component < said->components && said->id[component] != data[1 + 2 * i]) component++;
        if (component == said->components || component <= last) return 0;
        if (!(said->quantizations >> said->quantization[component] & 1)) return 0;
        if (tables >> 4 >= TABLES || (tables & 15) >= TABLES) return 0;
        if ((dc && !(said->huffman[0] >> (tables >> 4) & 1)) || (ac && !(said->huffman[1] >> (tables & 15) & 1))) return 0;
        blocks += said->across[component] * said->down[component];
        last = component;
    }
    return data[0] == 1 || blocks <= MOST_BLOCKS;
}

/* Whether a marker with a length, and what belongs to it, is sound. */
static int is_sound_marker(uint8_t marker, const uint8_t *data, size_t size, struct said *said) {
    switch (marker) {
    case 0xC0: case 0xC1: case 0xC2: return is_sound_frame(data, size, marker == 0xC2, said);
    case 0xC4: return are_sound_codes(data, size, said);
    case 0xDA: return is_sound_scan(data, size, said);
    case 0xDB: return are_sound_quantizations(data, size, said);
    case 0xDD: return size == 2;
    case 0xFE: return 1;
    default: return marker >= 0xE0 && marker <= 0xEF;
    }
}

/* Returns where the marker behind the compressed data is, or `size`. */
static size_t end_of_scan(const uint8_t *data, size_t size, size_t at) {
    while (at < size) {
        const uint8_t *found = memchr(data + at, 0xFF, size - at);
        if (!found || found + 1 >= data + size) return size;
        at = (size_t)(found - data) + 1;
        if (*(found + 1) != 0x00 && *(found + 1) != 0xFF && (*(found + 1) < 0xD0 || *(found + 1) > 0xD7)) return at - 1;
    }
    return size;
}

static int is_sound(const uint8_t *data, size_t size) {
    struct said said = {0};
    int scans = 0;
    for (size_t at = 2; at + 2 <= size && data[at] == 0xFF;) {
        uint8_t marker = data[at + 1];
        if (marker == 0xFF) {
            at++;
            continue;
        }
        if (marker == 0xD9) return scans > 0;
        size_t length = at + 4 <= size ? (size_t)data[at + 2] << 8 | data[at + 3] : 0;
        if (length < 2 || length > size - at - 2) return 0;
        if (scans && (marker == 0xDB || marker >> 4 == 0xE || !said.progressive)) return 0;
        if (!is_sound_marker(marker, data + at + 4, length - 2, &said)) return 0;
        at += 2 + length;
        if (marker == 0xDA) scans++, at = end_of_scan(data, size, at);
    }
    return 0;
}
