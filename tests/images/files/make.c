/* Makes the pictures of this folder, which Pillow cannot write: other sampling factors, arithmetic coding, RGB.

   cc make.c -ljpeg -lm -o make && ./make        (libjpeg-turbo with arithmetic encoding, and its headers) */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>

struct kind {
    const char *name, *factors; /* horizontal and vertical, of the three components */
    int arithmetic, progressive, restart_rows, rgb, width, height;
};

static const struct kind KINDS[] = {
    {"4x1", "411111", 0, 0, 0, 0, 83, 61},        {"1x2", "121111", 0, 0, 0, 0, 83, 61},
    {"1x4", "141111", 0, 0, 0, 0, 45, 77},        {"3x1", "311111", 0, 0, 0, 0, 83, 61},
    {"2x3", "231111", 0, 0, 0, 0, 67, 59},        {"4x2", "421111", 0, 0, 0, 0, 83, 61},
    {"mixed", "221221", 0, 0, 0, 0, 83, 61},      {"rgb", "111111", 0, 0, 0, 1, 83, 61},
    {"arithmetic", "221111", 1, 0, 0, 0, 83, 61}, {"arithmetic-progressive", "221111", 1, 1, 0, 0, 83, 61},
    {"restart-rows", "221111", 0, 0, 1, 0, 83, 61},
};

static void write_row(JSAMPLE *row, int width, int y) {
    for (int x = 0; x < width; x++) {
        double wave = 90 * sin(x / 3.1 + y / 7.3), edge = (x / 9 + y / 6) % 2 ? 45 : -45;
        double values[3] = {128 + wave + edge, 128 - 0.6 * wave + y, 90 + edge + x};
        for (int channel = 0; channel < 3; channel++)
            row[3 * x + channel] = values[channel] < 0 ? 0 : values[channel] > 255 ? 255 : (JSAMPLE)values[channel];
    }
}

static void write_picture(const struct kind *kind) {
    struct jpeg_compress_struct codec;
    struct jpeg_error_mgr errors;
    char path[64];
    snprintf(path, sizeof path, "%s.jpg", kind->name);
    FILE *file = fopen(path, "wb");
    JSAMPLE *row = malloc(3 * (size_t)kind->width);
    codec.err = jpeg_std_error(&errors);
    jpeg_create_compress(&codec);
    jpeg_stdio_dest(&codec, file);
    codec.image_width = (JDIMENSION)kind->width, codec.image_height = (JDIMENSION)kind->height;
    codec.input_components = 3, codec.in_color_space = JCS_RGB;
    jpeg_set_defaults(&codec);
    if (kind->rgb) jpeg_set_colorspace(&codec, JCS_RGB);
    jpeg_set_quality(&codec, 70, TRUE);
    for (int i = 0; i < 3; i++) {
        codec.comp_info[i].h_samp_factor = kind->factors[2 * i] - '0';
        codec.comp_info[i].v_samp_factor = kind->factors[2 * i + 1] - '0';
    }
    codec.arith_code = kind->arithmetic, codec.restart_in_rows = kind->restart_rows;
    if (kind->progressive) jpeg_simple_progression(&codec);
    jpeg_start_compress(&codec, TRUE);
    for (int y = 0; y < kind->height; y++) write_row(row, kind->width, y), jpeg_write_scanlines(&codec, &row, 1);
    jpeg_finish_compress(&codec);
    jpeg_destroy_compress(&codec);
    free(row), fclose(file);
}

int main(void) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) write_picture(KINDS + i);
    return 0;
}
