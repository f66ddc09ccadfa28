/* Sources of text as token streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "core/rng.h"
#include "core/str.h"
#include "io/file.h"
#include "io/json.h"
#include "io/text_source.h"
#include "io/zstd_stream.h"
#include "tests/lib/tmp.h"

struct fixture {
    struct arena a;
    const char *dir;
    struct tmp tmp;
    struct diag diag;
};

static int set_up(void **state)
{
    static struct fixture f;
    f = (struct fixture){0};
    tmp_create(&f.tmp);
    f.dir = f.tmp.path;
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tmp_remove(&f->tmp);
    arena_release(&f->a);
    return 0;
}

static enum status open_source(struct fixture *f, const char *path,
                               struct text_source **out)
{
    struct text_options o = {tok_bytes(), "text"};
    *out = NULL;
    f->diag = (struct diag){0};
    return text_source_open(path, &o, out, &f->diag);
}

static struct text_source *open_ok(struct fixture *f, const char *path)
{
    struct text_source *s = NULL;
    if (open_source(f, path, &s) != ST_OK)
        fail_msg("%s", f->diag.text);
    return s;
}

/* The whole stream must be these bytes, with '|' for the end of a document. */
static void assert_stream(struct fixture *f, const struct text_source *s,
                          const char *want, size_t n)
{
    assert_int_equal(text_source_counts(s).tokens, n);
    uint32_t *out = arena_array(&f->a, uint32_t, n);
    assert_int_equal(text_source_read(s, 0, (int64_t)n, out, &f->diag), ST_OK);
    for (size_t i = 0; i < n; i++) {
        uint32_t w = want[i] == '|' ? 256 : (unsigned char)want[i];
        assert_int_equal(out[i], w);
    }
}

/* Every range of the stream equals that part of the whole. */
static void assert_ranges(struct fixture *f, const struct text_source *s)
{
    int64_t n = text_source_counts(s).tokens;
    uint32_t *all = arena_array(&f->a, uint32_t, n);
    uint32_t *part = arena_array(&f->a, uint32_t, n);
    assert_int_equal(text_source_read(s, 0, n, all, &f->diag), ST_OK);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t m = 0; m <= n - i; m++) {
            assert_int_equal(text_source_read(s, i, m, part, &f->diag), ST_OK);
            assert_memory_equal(part, all + i, (size_t)m * sizeof(*part));
        }
    }
}

static void text_file(void **state)
{
    struct fixture *f = *state;
    static const char text[] = "a\r\nb\xff\xfe\x80 caf\xc3\xa9\r\n";
    const char *path = tmp_write(&f->tmp, "x.txt", text, sizeof(text) - 1);
    struct text_source *s = open_ok(f, path);
    assert_stream(f, s, "a\r\nb\xff\xfe\x80 caf\xc3\xa9\r\n|", sizeof(text));
    assert_ranges(f, s);
    assert_int_equal(text_source_counts(s).documents, 1);
    assert_int_equal(text_source_document_begin(s, 0), 0);
    assert_int_equal(text_source_document_begin(s, 1), sizeof(text));
    text_source_close(s);
}

static void refused_files(void **state)
{
    struct fixture *f = *state;
    struct text_source *s;
    const char *none = tmp_path(&f->tmp, "none");
    assert_int_equal(open_source(f, none, &s), ST_NOT_FOUND);
    assert_non_null(strstr(f->diag.text, none));
    const char *binary = tmp_write(&f->tmp, "b", "ab\0c", 4);
    assert_int_equal(open_source(f, binary, &s), ST_DATA);
    assert_non_null(strstr(f->diag.text, binary));
    const char *zst = tmp_write(&f->tmp, "x.txt.zst", "\x28\xb5\x2f\xfd\0", 5);
    assert_int_equal(open_source(f, zst, &s), ST_DATA);
    assert_non_null(strstr(f->diag.hint, ".jsonl.zst"));
    const char *empty = tmp_write_text(&f->tmp, "e", "");
    s = open_ok(f, empty);
    assert_int_equal(text_source_counts(s).tokens, 0);
    assert_int_equal(text_source_document_begin(s, 0), 0);
    text_source_close(s);
}

static void folder(void **state)
{
    struct fixture *f = *state;
    tmp_write_text(&f->tmp, "c/b", "two");
    tmp_write_text(&f->tmp, "c/a", "one");
    tmp_write_text(&f->tmp, "c.txt", "first");
    tmp_write_text(&f->tmp, "empty", "");
    tmp_write(&f->tmp, "data.bin", "\0\1", 2);
    tmp_write_text(&f->tmp, ".git/config", "hidden");
    tmp_write_text(&f->tmp, "c/.x", "hidden");
    assert_int_equal(symlink("nowhere", tmp_path(&f->tmp, "link")), 0);
    struct text_source *s = open_ok(f, f->dir);
    assert_stream(f, s, "first|one|two|", 14);
    assert_ranges(f, s);
    struct text_counts c = text_source_counts(s);
    assert_int_equal(c.documents, 3);
    assert_int_equal(c.skipped_binary, 1);
    assert_int_equal(c.skipped_hidden, 2);
    assert_int_equal(c.skipped_empty, 1);
    assert_int_equal(c.skipped_other, 1);
    static const int64_t document[14] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
    for (int64_t i = 0; i < 14; i++)
        assert_int_equal(text_source_document_at(s, i), document[i]);
    assert_int_equal(text_source_document_begin(s, 2), 10);
    text_source_close(s);
}

static void json_lines(void **state)
{
    struct fixture *f = *state;
    static const char text[] = "\xef\xbb\xbf{\"id\":1,\"text\":\"a\\nb\"}\r\n"
                               "\r\n"
                               "{\"text\":\"\"}\n"
                               "{\"text\":\"\\u00e9\xff\",\"meta\":{\"text\":[1]}}";
    struct text_source *s = open_ok(f, tmp_write_text(&f->tmp, "x.jsonl", text));
    assert_stream(f, s, "a\nb|\xc3\xa9\xff|", 8);
    assert_ranges(f, s);
    assert_int_equal(text_source_counts(s).documents, 2);
    assert_int_equal(text_source_counts(s).skipped_empty, 1);
    text_source_close(s);
}

static void malformed_lines(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        const char *says;
        const char *hint;
    } cases[] = {
            {"{\"text\":\"a\"}\n{\"text\":\"b\"\n{\"text\":\"c\"}\n", "x.jsonl:2,", ""},
            {"{\"text\":\"a\"}\n\n{\"content\":\"b\"}\n",
             "x.jsonl:3): got nothing under key 'text'", "'content'"},
            {"{\"text\":7}\n", "x.jsonl:1): got a number under key 'text'", ""},
            {"[]\n", "x.jsonl:1): got an array, wanted an object", ""},
            {"{\"text\":\"a\"}\n{\"text\":\"a", "x.jsonl:2,", ""},
            {"{\"text\":\"a\"} {\"text\":\"b\"}\n", "x.jsonl:1,", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text_source *s;
        const char *path = tmp_write_text(&f->tmp, "x.jsonl", cases[i].text);
        assert_int_equal(open_source(f, path, &s), ST_DATA);
        if (!strstr(f->diag.text, cases[i].says) ||
            !strstr(f->diag.hint, cases[i].hint))
            fail_msg("case %zu: '%s' hint '%s'", i, f->diag.text, f->diag.hint);
    }
}

/* A file of many lines of random lengths and characters, some far longer than what is
 * read at once. */
static void make_lines(struct str *out, int n)
{
    struct str doc = {0};
    for (int i = 0; i < n; i++) {
        str_clear(&doc);
        uint64_t len = i % 97 == 5 ? 700000 : rng_u64(1, 1, (uint64_t)i) % 3000;
        for (uint64_t j = 0; j < len; j++)
            str_addc(&doc, (char)(1 + rng_u64(1, 2 + (uint64_t)i, j) % 126));
        struct json_writer w = {.out = out};
        json_begin_object(&w);
        json_key(&w, "text");
        json_string_n(&w, str_get(&doc), doc.n);
        json_end_object(&w);
        str_addc(out, '\n');
    }
    str_free(&doc);
}

static size_t compress(struct arena *a, const struct str *s, char **out)
{
    size_t cap = ZSTD_compressBound(s->n);
    *out = arena_alloc(a, 2 * cap);
    /* Two frames: streams made by appending are legal. */
    size_t half = s->n / 2;
    size_t one = ZSTD_compress(*out, cap, s->s, half, 1);
    size_t two = ZSTD_compress(*out + one, cap, s->s + half, s->n - half, 1);
    assert_false(ZSTD_isError(one) || ZSTD_isError(two));
    return one + two;
}

static void zst_equals_plain(void **state)
{
    struct fixture *f = *state;
    struct str text = {0};
    char *packed;
    make_lines(&text, 200);
    size_t n_packed = compress(&f->a, &text, &packed);
    struct text_source *plain =
            open_ok(f, tmp_write(&f->tmp, "x.jsonl", text.s, text.n));
    struct text_source *zst =
            open_ok(f, tmp_write(&f->tmp, "y.jsonl.zst", packed, n_packed));
    struct text_counts a = text_source_counts(plain), b = text_source_counts(zst);
    assert_memory_equal(&a, &b, sizeof(a));
    print_message("%zu bytes, %zu packed, %lld tokens, %lld documents\n", text.n,
                  n_packed, (long long)a.tokens, (long long)a.documents);
    assert_true(a.documents > 190 && a.tokens > 1000000);
    uint32_t *x = arena_array(&f->a, uint32_t, a.tokens);
    uint32_t *y = arena_array(&f->a, uint32_t, a.tokens);
    assert_int_equal(text_source_read(plain, 0, a.tokens, x, &f->diag), ST_OK);
    assert_int_equal(text_source_read(zst, 0, a.tokens, y, &f->diag), ST_OK);
    assert_memory_equal(x, y, (size_t)a.tokens * sizeof(*x));
    uint64_t ix = 0, iy = 1;
    assert_int_equal(text_source_identity(plain, &ix, &f->diag), ST_OK);
    assert_int_equal(text_source_identity(zst, &iy, &f->diag), ST_OK);
    assert_true(ix == iy);
    text_source_close(plain);
    text_source_close(zst);
    str_free(&text);
}

static void cut_and_damaged_zst(void **state)
{
    struct fixture *f = *state;
    struct str text = {0};
    char *packed;
    make_lines(&text, 4);
    size_t cap = ZSTD_compressBound(text.n);
    packed = arena_alloc(&f->a, cap);
    size_t n = ZSTD_compress(packed, cap, text.s, text.n, 1);
    struct text_source *s;
    for (size_t cut = 1; cut < n; cut += n / 23) {
        const char *path = tmp_write(&f->tmp, "x.jsonl.zst", packed, cut);
        assert_int_equal(open_source(f, path, &s), ST_DATA);
        assert_non_null(strstr(f->diag.text, "cut short"));
    }
    packed[0] ^= 1;
    const char *path = tmp_write(&f->tmp, "x.jsonl.zst", packed, n);
    assert_int_equal(open_source(f, path, &s), ST_DATA);
    assert_non_null(strstr(f->diag.text, "damaged zstd file"));
    str_free(&text);
}

/* A frame that ends before it holds the 64 bytes that its head says; alone, behind a whole
 * one, and read in pieces too small for zstd to notice. */
static void short_frame_zst(void **state)
{
    static const char frame[] = "\x28\xb5\x2f\xfd\x20\x40\x01\x00\x00";
    struct fixture *f = *state;
    struct text_source *s;
    struct str both = {0};
    char whole[64], buf[16];
    size_t got = 0, n = ZSTD_compress(whole, sizeof(whole), "{}\n", 3, 1);
    str_add_n(&both, whole, n);
    str_add_n(&both, frame, 9);
    const char *path = tmp_write(&f->tmp, "x.jsonl.zst", frame, 9);
    assert_int_equal(open_source(f, path, &s), ST_DATA);
    path = tmp_write(&f->tmp, "y.jsonl.zst", both.s, both.n);
    struct zstd_stream *z;
    assert_int_equal(zstd_stream_open(path, &z, &f->diag), ST_OK);
    assert_int_equal(zstd_stream_read(z, buf, 3, &got, &f->diag), ST_OK);
    assert_int_equal(got, 3);
    assert_int_equal(zstd_stream_read(z, buf, 3, &got, &f->diag), ST_DATA);
    assert_non_null(strstr(f->diag.text, "got a frame of 0 bytes, wanted 64"));
    zstd_stream_close(z);
    str_free(&both);
}

static void file_changes(void **state)
{
    struct fixture *f = *state;
    const char *path = tmp_write_text(&f->tmp, "x", "0123456789");
    struct text_source *s = open_ok(f, path);
    uint32_t out[11];
    assert_int_equal(text_source_read(s, 0, 11, out, &f->diag), ST_OK);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(text_source_read(s, 0, 2, out, &f->diag), ST_DATA);
    assert_non_null(strstr(f->diag.text, "got 5 bytes, wanted 10"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(text_source_read(s, 0, 2, out, &f->diag), ST_NOT_FOUND);
    text_source_close(s);
}

/* The fingerprint follows the documents, not the form of the file. */
static void identity(void **state)
{
    struct fixture *f = *state;
    tmp_write_text(&f->tmp, "d/1", "abc");
    tmp_write_text(&f->tmp, "d/2", "de");
    struct {
        const char *path;
        uint64_t id;
    } c[] = {
            {tmp_path(&f->tmp, "d"), 0},
            {tmp_write_text(&f->tmp, "a.jsonl",
                            "{\"text\":\"abc\"}\n{\"text\":\"de\"}\n"),
             0},
            {tmp_write_text(&f->tmp, "b.jsonl",
                            "{\"text\":\"ab\"}\n{\"text\":\"cde\"}\n"),
             0},
            {tmp_write_text(&f->tmp, "c.jsonl",
                            "{\"text\":\"abc\"}\n{\"text\":\"dE\"}\n"),
             0},
    };
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        struct text_source *s = open_ok(f, c[i].path);
        assert_int_equal(text_source_identity(s, &c[i].id, &f->diag), ST_OK);
        text_source_close(s);
    }
    assert_true(c[0].id == c[1].id);
    assert_true(c[1].id != c[2].id && c[1].id != c[3].id && c[2].id != c[3].id);
}

/* Beyond 4 GiB: a sparse file whose end is read (no memory, no disk). */
static void large_file(void **state)
{
    struct fixture *f = *state;
    char head[8192];
    memset(head, 'x', sizeof(head));
    const char *path = tmp_write(&f->tmp, "big.txt", head, sizeof(head));
    int64_t bytes = (int64_t)5 << 30;
    assert_int_equal(truncate(path, bytes), 0);
    struct text_source *s = open_ok(f, path);
    assert_int_equal(text_source_counts(s).tokens, bytes + 1);
    uint32_t out[3] = {9, 9, 9};
    assert_int_equal(text_source_read(s, bytes - 2, 3, out, &f->diag), ST_OK);
    assert_int_equal(out[0], 0);
    assert_int_equal(out[2], 256);
    text_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(text_file, set_up, tear_down),
            cmocka_unit_test_setup_teardown(refused_files, set_up, tear_down),
            cmocka_unit_test_setup_teardown(folder, set_up, tear_down),
            cmocka_unit_test_setup_teardown(json_lines, set_up, tear_down),
            cmocka_unit_test_setup_teardown(malformed_lines, set_up, tear_down),
            cmocka_unit_test_setup_teardown(zst_equals_plain, set_up, tear_down),
            cmocka_unit_test_setup_teardown(cut_and_damaged_zst, set_up, tear_down),
            cmocka_unit_test_setup_teardown(short_frame_zst, set_up, tear_down),
            cmocka_unit_test_setup_teardown(file_changes, set_up, tear_down),
            cmocka_unit_test_setup_teardown(identity, set_up, tear_down),
            cmocka_unit_test_setup_teardown(large_file, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("text_source", tests, NULL, NULL);
}
