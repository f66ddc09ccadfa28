/* Event files, decoded here by a reader of records and fields that shares nothing with
 * the writer but the format. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "io/file.h"
#include "io/tensorboard.h"
#include "tests/lib/tmp.h"

/* A piece of a message. */
struct span {
    const uint8_t *p;
    size_t n;
};

static uint64_t take_fixed(struct span *s, int bytes)
{
    uint64_t x = 0;
    assert_true(s->n >= (size_t)bytes);
    for (int i = bytes; i-- > 0;)
        x = x << 8 | s->p[i];
    s->p += bytes;
    s->n -= (size_t)bytes;
    return x;
}

static uint64_t take_varint(struct span *s)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(s->n > 0);
        uint8_t byte = *s->p++;
        s->n--;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return x;
    }
    fail_msg("a number without an end");
    return 0;
}

static struct span take_span(struct span *s, size_t n)
{
    assert_true(s->n >= n);
    struct span part = {s->p, n};
    s->p += n;
    s->n -= n;
    return part;
}

/* The checksum by a table of the reversed polynomial, four bits at a time. */
static uint32_t masked_crc(struct span s)
{
    uint32_t table[16], crc = 0xffffffff;
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int k = 0; k < 4; k++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82f63b78 : table[i] >> 1;
    }
    for (size_t i = 0; i < s.n; i++) {
        crc = crc >> 4 ^ table[(crc ^ s.p[i]) & 15];
        crc = crc >> 4 ^ table[(crc ^ (uint32_t)s.p[i] >> 4) & 15];
    }
    crc = ~crc;
    return (crc << 17 | crc >> 15) + 0xa282ead8;
}

/* The next record's message, its checksums checked. */
static struct span take_record(struct span *file)
{
    struct span head = {file->p, 8};
    uint64_t n = take_fixed(file, 8);
    assert_int_equal(take_fixed(file, 4), masked_crc(head));
    struct span message = take_span(file, n);
    assert_int_equal(take_fixed(file, 4), masked_crc(message));
    return message;
}

struct event {
    double wall_time;
    int64_t step;
    char version[32];
    int session; /* SessionLog.status */
    int n_values;
    char tag[8][64];
    float value[8];
};

static void read_value(struct span s, struct event *e)
{
    while (s.n > 0) {
        uint64_t key = take_varint(&s);
        if (key == (1 << 3 | 2)) {
            struct span tag = take_span(&s, take_varint(&s));
            assert_true(tag.n < sizeof(e->tag[0]));
            memcpy(e->tag[e->n_values], tag.p, tag.n);
        } else {
            assert_int_equal(key, 2 << 3 | 5);
            uint32_t bits = (uint32_t)take_fixed(&s, 4);
            memcpy(&e->value[e->n_values], &bits, 4);
        }
    }
    e->n_values++;
}

static struct event read_event(struct span s)
{
    struct event e = {0};
    while (s.n > 0) {
        uint64_t key = take_varint(&s), bits;
        if (key == (1 << 3 | 1)) {
            bits = take_fixed(&s, 8);
            memcpy(&e.wall_time, &bits, 8);
        } else if (key == (2 << 3 | 0)) {
            e.step = (int64_t)take_varint(&s);
        } else if (key == (3 << 3 | 2)) {
            struct span version = take_span(&s, take_varint(&s));
            assert_true(version.n < sizeof(e.version));
            memcpy(e.version, version.p, version.n);
        } else if (key == (5 << 3 | 2)) {
            struct span summary = take_span(&s, take_varint(&s));
            while (summary.n > 0) {
                assert_int_equal(take_varint(&summary), 1 << 3 | 2);
                read_value(take_span(&summary, take_varint(&summary)), &e);
            }
        } else {
            assert_int_equal(key, 7 << 3 | 2);
            struct span log = take_span(&s, take_varint(&s));
            assert_int_equal(take_varint(&log), 1 << 3 | 0);
            e.session = (int)take_varint(&log);
        }
    }
    return e;
}

static void checksums(void **state)
{
    (void)state;
    const uint8_t zeros[32] = {0};
    assert_int_equal(tensorboard_crc("123456789", 9), 0xe3069283);
    assert_int_equal(tensorboard_crc(zeros, 32), 0x8a9136aa);
    assert_int_equal(tensorboard_masked_crc("123456789", 9), 0xc78ab0e5);
    assert_int_equal(masked_crc((struct span){(const uint8_t *)"123456789", 9}),
                     0xc78ab0e5);
}

static void write_two(const char *folder, struct str *file)
{
    struct diag diag = {0};
    struct tensorboard *t;
    const struct tensorboard_scalar a[] = {{"loss/train", 2.5}, {"speed/mfu", 0.75}};
    const struct tensorboard_scalar b[] = {{"loss/eval", NAN}};
    assert_int_equal(tensorboard_open(folder, 7, &t, &diag), ST_OK);
    assert_int_equal(tensorboard_write(t, 8, a, 2, &diag), ST_OK);
    assert_int_equal(tensorboard_write(t, 3000000000, b, 1, &diag), ST_OK);
    /* Everything is in the file before it is closed. */
    assert_int_equal(file_read_all(tensorboard_path(t), 1 << 20, file, &diag), ST_OK);
    assert_non_null(strstr(tensorboard_path(t), "/events.out.tfevents."));
    tensorboard_close(t);
}

static void events(void **state)
{
    struct tmp *tmp = *state;
    struct str file = {0};
    write_two(tmp_path(tmp, "a/tb"), &file);
    static const uint8_t begin[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};
    assert_memory_equal(file.s, begin, sizeof(begin));
    struct span s = {(const uint8_t *)file.s, file.n};
    struct event e = read_event(take_record(&s));
    assert_string_equal(e.version, "brain.Event:2");
    assert_true(e.wall_time > 1.6e9);
    e = read_event(take_record(&s));
    assert_int_equal(e.session, 1);
    assert_int_equal(e.step, 7);
    e = read_event(take_record(&s));
    assert_int_equal(e.step, 8);
    assert_int_equal(e.n_values, 2);
    assert_string_equal(e.tag[0], "loss/train");
    assert_true(e.value[0] == 2.5f);
    assert_string_equal(e.tag[1], "speed/mfu");
    assert_true(e.value[1] == 0.75f);
    e = read_event(take_record(&s));
    assert_true(e.step == 3000000000);
    assert_true(isnan(e.value[0]));
    assert_int_equal(s.n, 0);
    str_free(&file);
}

/* Two files of one process and second do not share a name; a file in the way is said. */
static void places(void **state)
{
    struct tmp *tmp = *state;
    struct diag diag = {0};
    struct tensorboard *a, *b;
    const char *folder = tmp_path(tmp, "b");
    assert_int_equal(tensorboard_open(folder, -1, &a, &diag), ST_OK);
    assert_int_equal(tensorboard_open(folder, -1, &b, &diag), ST_OK);
    assert_string_not_equal(tensorboard_path(a), tensorboard_path(b));
    tensorboard_close(a);
    tensorboard_close(b);
    const char *file = tmp_write_text(tmp, "c", "x");
    assert_int_equal(tensorboard_open(file, -1, &a, &diag), ST_CREATE);
    assert_non_null(strstr(diag.text, file));
}

static int set_up(void **state)
{
    static struct tmp tmp;
    tmp_create(&tmp);
    *state = &tmp;
    return 0;
}

static int tear_down(void **state)
{
    tmp_remove(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(checksums),
            cmocka_unit_test(events),
            cmocka_unit_test(places),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
