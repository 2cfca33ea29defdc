/* npy_header.c: the header of a .npy file, a Python dict literal. Only what NumPy itself writes is
 * read: plain strings, True and False, and a tuple of whole numbers. */
#include "client/cli/npy.h"
#include "client/cli/options.h"

#include <string.h>

/* A place in the text. text[length] is never read. */
struct cursor {
    const char *at;
    const char *end;
};

struct span {
    const char *text;
    size_t length;
};

struct header {
    struct span descr;
    bool fortran_order;
    uint64_t shape[CLI_NPY_DIMS];
    unsigned dims; /* may be more than shape holds */
};

static void skip_space(struct cursor *cursor)
{
    while (cursor->at < cursor->end && strchr(" \t\r\n\f", *cursor->at) && *cursor->at)
        cursor->at++;
}

/* Takes the character after any space, if it is that one. */
static bool take(struct cursor *cursor, char wanted)
{
    skip_space(cursor);
    if (cursor->at == cursor->end || *cursor->at != wanted)
        return false;
    cursor->at++;
    return true;
}

static bool take_word(struct cursor *cursor, const char *word)
{
    size_t length = strlen(word);

    skip_space(cursor);
    if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, word, length) != 0)
        return false;
    cursor->at += length;
    return true;
}

/* A string in either quotes, of printable ASCII without escapes. */
static bool take_string(struct cursor *cursor, struct span *out)
{
    char quote;

    skip_space(cursor);
    if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"'))
        return false;
    quote = *cursor->at++;
    out->text = cursor->at;
    while (cursor->at < cursor->end && *cursor->at != quote) {
        if (*cursor->at < ' ' || *cursor->at > '~' || *cursor->at == '\\')
            return false;
        cursor->at++;
    }
    out->length = (size_t)(cursor->at - out->text);
    return take(cursor, quote);
}

static bool take_number(struct cursor *cursor, uint64_t *out)
{
    const char *start;

    skip_space(cursor);
    start = cursor->at;
    while (cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9')
        cursor->at++;
    if (cursor->at - start > 1 && *start == '0')
        return false;
    return cli_parse_number(start, (size_t)(cursor->at - start), INT64_MAX, out);
}

/* A tuple: () or (2,) or (2, 3) or (2, 3,). One number needs its comma. */
static bool take_shape(struct cursor *cursor, struct header *out)
{
    bool comma = true;

    if (!take(cursor, '('))
        return false;
    for (out->dims = 0; !take(cursor, ')'); out->dims++) {
        uint64_t number;

        if (!comma || !take_number(cursor, &number))
            return false;
        if (out->dims < CLI_NPY_DIMS)
            out->shape[out->dims] = number;
        comma = take(cursor, ',');
    }
    return out->dims != 1 || comma;
}

static bool is(struct span span, const char *word)
{
    return cli_is(span.text, span.length, word);
}

enum { HAVE_DESCR = 1, HAVE_ORDER = 2, HAVE_SHAPE = 4, HAVE_ALL = 7 };

/* One "key: value". NULL when it was one, else what is wrong. */
static const char *take_entry(struct cursor *cursor, struct header *out, unsigned *have)
{
    struct span key;
    unsigned bit;

    if (!take_string(cursor, &key) || !take(cursor, ':'))
        return "its header is not a dict of strings";
    bit = is(key, "descr")           ? HAVE_DESCR
          : is(key, "fortran_order") ? HAVE_ORDER
          : is(key, "shape")         ? HAVE_SHAPE
                                     : 0;
    if (!bit)
        return "its header has a key that is not descr, fortran_order or shape";
    if (*have & bit)
        return "its header has a key twice";
    *have |= bit;
    if (bit == HAVE_SHAPE)
        return take_shape(cursor, out) ? NULL : "its shape is not a tuple of whole numbers";
    if (bit == HAVE_ORDER) {
        out->fortran_order = take_word(cursor, "True");
        return out->fortran_order || take_word(cursor, "False")
                   ? NULL
                   : "its fortran_order is neither True nor False";
    }
    skip_space(cursor);
    if (cursor->at < cursor->end && *cursor->at == '[')
        return "it holds a structured type; save it as float32";
    return take_string(cursor, &out->descr) ? NULL : "its descr is not a string";
}

/* NULL when the text is a whole and sound header. */
static const char *take_dict(struct cursor *cursor, struct header *out)
{
    unsigned have = 0;

    if (!take(cursor, '{'))
        return "its header is not a dict";
    while (!take(cursor, '}')) {
        const char *wrong = take_entry(cursor, out, &have);

        if (wrong)
            return wrong;
        if (!take(cursor, ',')) {
            if (!take(cursor, '}'))
                return "its header is not a dict that ends";
            break;
        }
    }
    skip_space(cursor);
    if (cursor->at != cursor->end)
        return "its header goes on after the dict";
    return have == HAVE_ALL ? NULL : "its header lacks descr, fortran_order or shape";
}

/* NULL for little-endian float32. */
static const char *refuse_type(struct span descr)
{
    if (is(descr, "<f4"))
        return NULL;
    if (is(descr, ">f4"))
        return "it is big-endian; save it as little-endian float32 ('<f4')";
    if (is(descr, "<f8") || is(descr, ">f8"))
        return "it holds float64; convert it to float32";
    if (is(descr, "<f2") || is(descr, ">f2"))
        return "it holds float16; convert it to float32";
    if (is(descr, "|O") || is(descr, "O"))
        return "it holds Python objects; save a float32 array";
    return "";
}

bool cli_npy_parse_header(const char *text, size_t length, unsigned dims, uint64_t *shape,
                          char *wrong, size_t wrong_size)
{
    struct cursor cursor = {text, text + length};
    struct header header = {0};
    const char *why = take_dict(&cursor, &header);

    if (!why)
        why = refuse_type(header.descr);
    if (why && !*why) {
        snprintf(wrong, wrong_size, "it holds elements of type '%.*s'; convert them to float32",
                 (int)(header.descr.length < 16 ? header.descr.length : 16), header.descr.text);
        return false;
    }
    if (!why && header.fortran_order)
        why = "it is in Fortran order; save it in C order (numpy.ascontiguousarray)";
    if (why) {
        snprintf(wrong, wrong_size, "%s", why);
        return false;
    }
    if (header.dims != dims) {
        snprintf(wrong, wrong_size, "it has %u dimension%s; %u are needed", header.dims,
                 header.dims == 1 ? "" : "s", dims);
        return false;
    }
    memcpy(shape, header.shape, dims * sizeof *shape);
    return true;
}
