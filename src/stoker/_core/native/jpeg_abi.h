/* The interface of libjpeg, as far as `jpeg_codec.h` uses it: included once for each ABI, with `ABI` 62 or 80.

   libjpeg-turbo is built with one of two ABIs, whose records differ in a few fields. Each record here is laid out like
   the library's of that ABI: order, types and size of all fields are part of the interface, their names are not. Fields
   that the codec does not use are grouped. A test compares offsets with the header of the system, where there is one;
   the library itself refuses a record of another size, and `images/kernel.py` decodes a picture before any use. */

#define PASTED(name, abi) name##_##abi
#define PASTED_LATER(name, abi) PASTED(name, abi)
#define IN_ABI(name) PASTED_LATER(name, ABI)

struct IN_ABI(errors) {
    void (*error_exit)(void *codec);
    void (*emit_message)(void *codec, int level);
    void (*output_message)(void *codec);
    void (*format_message)(void *codec, char *text);
    void (*reset)(void *codec);
    int code;
    int parameters[20];
    int trace_level;
    long warnings;
    const void *messages;
    int last_message;
    const void *more_messages;
    int first_more, last_more;
};

struct IN_ABI(memory) {
    void (*allocation[11])(void);
    long most; /* bytes that one picture may take */
    long largest_chunk;
};

struct IN_ABI(decompressor) {
    struct IN_ABI(errors) *errors;
    struct IN_ABI(memory) *memory;
    void *progress, *client;
    int is_decompressor, state;
    void *source;

    /* from the header */
    unsigned width, height;
    int components, colours;

    /* parameters */
    int wanted_colours;
    unsigned scale, scale_of;
    double gamma;
    int buffered, raw;
    int dct_method, smooth_upsampling, smooth_blocks;
    int quantization[7];

    /* of the pixels given */
    unsigned scaled_width, scaled_height;
    int channels[4];
    void *colour_map;

    /* progress */
    unsigned next_row;
    int input_scan;
    unsigned input_row;
    int output_scan;
    unsigned output_row;
    int (*missing_bits)[64]; /* of each component's coefficients; -1 before the first of them */

    /* tables and markers */
    void *tables[12];
    int precision;
    void *component;
#if ABI >= 80
    int is_baseline;
#endif
    int progressive, arithmetic;
    unsigned char conditioning[48];
    unsigned restart_interval;
    int saw_jfif;
    unsigned char jfif[3];
    unsigned short density[2];
    int saw_adobe;
    unsigned char adobe;
    int cosited;
    void *markers;

    /* inside */
    int sampling[2];
#if ABI >= 80
    int smallest_block[2];
#else
    int smallest_block;
#endif
    unsigned block_rows;
    void *range_limit;
    int in_scan;
    void *in_scan_components[4];
    unsigned blocks[2];
    int block_count, membership[10];
    int scan_parameters[4];
#if ABI >= 80
    int block_size;
    const int *natural_order;
    int last_coefficient;
#endif
    int unread_marker;
    void *parts[11];
};
