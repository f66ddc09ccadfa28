#include "io/ckpt_format.h"

#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "core/str.h"
#include "io/le.h"

#define STEP_PREFIX "step-"
#define STEP_DIGITS 12

static const struct {
    const char *name;
    bool is_model;
    bool non_negative;
} kind_table[] = {
        [CKPT_WEIGHT] = {"weight", true, false},
        [CKPT_MASTER] = {"master", false, false},
        [CKPT_EXP_AVG] = {"exp_avg", false, false},
        [CKPT_EXP_AVG_SQ] = {"exp_avg_sq", false, true},
        [CKPT_OTHER] = {"other", false, false},
};
_Static_assert(ARRAY_LEN(kind_table) == CKPT_KIND_COUNT, "one row per kind");

const char *ckpt_kind_name(enum ckpt_kind kind)
{
    ASSERT(kind < CKPT_KIND_COUNT);
    return kind_table[kind].name;
}

bool ckpt_kind_is_model(enum ckpt_kind kind)
{
    ASSERT(kind < CKPT_KIND_COUNT);
    return kind_table[kind].is_model;
}

bool ckpt_kind_is_non_negative(enum ckpt_kind kind)
{
    ASSERT(kind < CKPT_KIND_COUNT);
    return kind_table[kind].non_negative;
}

bool ckpt_kind_find(const char *name, enum ckpt_kind *out)
{
    for (int k = 0; k < CKPT_KIND_COUNT; k++)
        if (strcmp(kind_table[k].name, name) == 0) {
            *out = (enum ckpt_kind)k;
            return true;
        }
    return false;
}

bool ckpt_dtype_find(const char *name, enum dtype *out)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (strcmp(dtype_name((enum dtype)t), name) == 0) {
            *out = (enum dtype)t;
            return true;
        }
    return false;
}

void ckpt_commit_put(const struct ckpt_commit *c, uint8_t out[CKPT_COMMIT_BYTES])
{
    memset(out, 0, CKPT_COMMIT_BYTES);
    memcpy(out, "ANGELCMT", 8);
    le_put32(out + 8, c->version_major);
    le_put32(out + 12, c->version_minor);
    le_put64(out + 16, (uint64_t)c->manifest_bytes);
    le_put64(out + 24, c->manifest_hash[0]);
    le_put64(out + 32, c->manifest_hash[1]);
    le_put64(out + 40, (uint64_t)c->step);
    le_put64(out + 56, hash64(out, 56));
}

bool ckpt_commit_get(const uint8_t in[CKPT_COMMIT_BYTES], struct ckpt_commit *out)
{
    if (memcmp(in, "ANGELCMT", 8) != 0 || le_get64(in + 56) != hash64(in, 56))
        return false;
    out->version_major = le_get32(in + 8);
    out->version_minor = le_get32(in + 12);
    out->manifest_bytes = (int64_t)le_get64(in + 16);
    out->manifest_hash[0] = le_get64(in + 24);
    out->manifest_hash[1] = le_get64(in + 32);
    out->step = (int64_t)le_get64(in + 40);
    return true;
}

const char *ckpt_step_name(int64_t step, char buf[CKPT_NAME_BYTES])
{
    ASSERT(step >= 0 && step <= CKPT_STEP_MAX);
    snprintf(buf, CKPT_NAME_BYTES, STEP_PREFIX "%012lld", (long long)step);
    return buf;
}

int64_t ckpt_step_of(const char *name)
{
    size_t prefix = strlen(STEP_PREFIX);
    if (strncmp(name, STEP_PREFIX, prefix) != 0 || strlen(name) != prefix + STEP_DIGITS)
        return -1;
    int64_t step = 0;
    for (const char *p = name + prefix; *p; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        step = step * 10 + (*p - '0');
    }
    return step;
}

const char *ckpt_hash_text(const uint64_t hash[2], char buf[CKPT_HASH_TEXT])
{
    snprintf(buf, CKPT_HASH_TEXT, "%016llx%016llx", (unsigned long long)hash[1],
             (unsigned long long)hash[0]);
    return buf;
}

const char *ckpt_join(struct arena *a, const char *dir, const char *name)
{
    struct str s = {0};
    str_printf(&s, "%s/%s", dir, name);
    const char *path = arena_strdup(a, str_get(&s));
    str_free(&s);
    return path;
}
