#include "io/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/str.h"
#include "io/file.h"

#define CRC_POLYNOMIAL 0x82f63b78u /* Castagnoli, bits reversed */
#define NAMES_MAX      1000        /* files of one process and second */

/* Keys of protobuf fields: number << 3 | wire type. */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3 | 0,
};

#define SESSION_START 1

struct tensorboard {
    char *path;
    int fd;
    struct str event, summary, value, record; /* messages being built */
    struct arena arena;
};

/* ------------------------------------------------------------------------- records */

uint32_t tensorboard_crc(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
    }
    return ~crc;
}

uint32_t tensorboard_masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = tensorboard_crc(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_u32(struct str *out, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        str_addc(out, (char)(x >> 8 * i & 0xff));
}

static void add_u64(struct str *out, uint64_t x)
{
    add_u32(out, (uint32_t)x);
    add_u32(out, (uint32_t)(x >> 32));
}

/* One record, in one write: a reader never sees half of one that the system took. */
static enum status write_record(struct tensorboard *t, struct diag *diag)
{
    struct str *r = &t->record;
    str_clear(r);
    add_u64(r, t->event.n);
    add_u32(r, tensorboard_masked_crc(r->s, 8));
    str_add_n(r, str_get(&t->event), t->event.n);
    add_u32(r, tensorboard_masked_crc(str_get(&t->event), t->event.n));
    return file_write(t->fd, t->path, r->s, r->n, diag);
}

/* ------------------------------------------------------------------------ messages */

static void add_varint(struct str *out, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        str_addc(out, (char)((x & 0x7f) | 0x80));
    str_addc(out, (char)x);
}

static void add_double(struct str *out, int key, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    str_addc(out, (char)key);
    add_u64(out, bits);
}

static void add_float(struct str *out, int key, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    str_addc(out, (char)key);
    add_u32(out, bits);
}

static void add_bytes(struct str *out, int key, const char *bytes, size_t n)
{
    str_addc(out, (char)key);
    add_varint(out, n);
    str_add_n(out, bytes, n);
}

static void begin_event(struct tensorboard *t, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    str_clear(&t->event);
    add_double(&t->event, EVENT_WALL_TIME,
               (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    if (step > 0) {
        str_addc(&t->event, EVENT_STEP);
        add_varint(&t->event, (uint64_t)step);
    }
}

static enum status write_version(struct tensorboard *t, struct diag *diag)
{
    static const char version[] = "brain.Event:2";
    begin_event(t, 0);
    add_bytes(&t->event, EVENT_FILE_VERSION, version, sizeof(version) - 1);
    return write_record(t, diag);
}

static enum status write_session_start(struct tensorboard *t, int64_t step,
                                       struct diag *diag)
{
    const char log[] = {SESSION_STATUS, SESSION_START};
    begin_event(t, step);
    add_bytes(&t->event, EVENT_SESSION_LOG, log, sizeof(log));
    return write_record(t, diag);
}

enum status tensorboard_write(struct tensorboard *t, int64_t step,
                              const struct tensorboard_scalar *scalars, size_t n,
                              struct diag *diag)
{
    str_clear(&t->summary);
    for (size_t i = 0; i < n; i++) {
        str_clear(&t->value);
        add_bytes(&t->value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        add_float(&t->value, VALUE_SIMPLE, (float)scalars[i].value);
        add_bytes(&t->summary, SUMMARY_VALUE, t->value.s, t->value.n);
    }
    begin_event(t, step);
    add_bytes(&t->event, EVENT_SUMMARY, str_get(&t->summary), t->summary.n);
    return write_record(t, diag);
}

/* -------------------------------------------------------------------------- opening */

/* A name that no file has yet: a number goes behind the second file of a second. */
static enum status create_file(struct tensorboard *t, const char *folder,
                               struct diag *diag)
{
    char host[256] = "localhost";
    if (gethostname(host, sizeof(host) - 1) != 0 || !host[0])
        memcpy(host, "localhost", sizeof("localhost"));
    struct str path = {0};
    for (int i = 0; i < NAMES_MAX && t->fd < 0; i++) {
        str_clear(&path);
        str_printf(&path, "%s/events.out.tfevents.%lld.%s.%lld", folder,
                   (long long)time(NULL), host, (long long)getpid());
        if (i > 0)
            str_printf(&path, ".%d", i);
        t->fd = open(str_get(&path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (t->fd < 0 && errno != EEXIST)
            break;
    }
    int error = errno;
    t->path = arena_strdup(&t->arena, str_get(&path));
    str_free(&path);
    if (t->fd < 0)
        return diag_set(diag, ST_CREATE, "cannot create the event file (%s): %s",
                        t->path, strerror(error));
    return ST_OK;
}

static enum status open_file(struct tensorboard *t, const char *folder,
                             int64_t resumed_step, struct diag *diag)
{
    TRY(file_make_folder(folder, diag));
    TRY(create_file(t, folder, diag));
    TRY(write_version(t, diag));
    return resumed_step >= 0 ? write_session_start(t, resumed_step, diag) : ST_OK;
}

enum status tensorboard_open(const char *folder, int64_t resumed_step,
                             struct tensorboard **out, struct diag *diag)
{
    struct tensorboard *t = mem_alloc(sizeof(*t));
    t->fd = -1;
    enum status st = open_file(t, folder, resumed_step, diag);
    if (st != ST_OK) {
        tensorboard_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void tensorboard_close(struct tensorboard *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        file_close_read(t->fd);
    str_free(&t->event);
    str_free(&t->summary);
    str_free(&t->value);
    str_free(&t->record);
    arena_release(&t->arena);
    mem_free(t);
}

const char *tensorboard_path(const struct tensorboard *t)
{
    return t->path;
}
