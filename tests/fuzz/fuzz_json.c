/* JSON text: parsed, written, and parsed again as the same tree. */
#include <string.h>

#include "io/json.h"
#include "tests/fuzz/fuzz.h"

static void write_value(struct json_writer *w, const struct json *v)
{
    if (v->type == JSON_OBJECT || v->type == JSON_ARRAY) {
        bool object = v->type == JSON_OBJECT;
        object ? json_begin_object(w) : json_begin_array(w);
        for (int64_t i = 0; i < v->n_items; i++) {
            if (object)
                json_key(w, v->items[i].key);
            write_value(w, &v->items[i]);
        }
        object ? json_end_object(w) : json_end_array(w);
    } else if (v->type == JSON_STRING) {
        json_string_n(w, v->text, v->n_text);
    } else if (v->type == JSON_NUMBER) {
        v->is_i64 ? json_i64(w, v->i64) : json_f64(w, v->f64);
    } else if (v->type == JSON_BOOL) {
        json_bool(w, v->is_true);
    } else {
        json_null(w);
    }
}

/* The writer's keys are C strings: one with a NUL byte is cut there. */
static bool has_cut_key(const struct json *v)
{
    bool cut = v->key && strlen(v->key) != v->n_key;
    for (int64_t i = 0; i < v->n_items; i++)
        cut |= has_cut_key(&v->items[i]);
    return cut;
}

static bool same(const struct json *a, const struct json *b)
{
    if (a->type != b->type || a->n_items != b->n_items || a->is_true != b->is_true)
        return false;
    if (a->type == JSON_NUMBER && a->f64 != b->f64)
        return false;
    if (a->type == JSON_STRING &&
        (a->n_text != b->n_text || memcmp(a->text, b->text, a->n_text) != 0))
        return false;
    for (int64_t i = 0; i < a->n_items; i++) {
        if (!same(&a->items[i], &b->items[i]))
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int flags[] = {JSON_STRICT, JSON_ANY_BYTES};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        struct arena a = {0};
        struct json *v = NULL, *again = NULL;
        struct diag diag = {0};
        struct str text = {0};
        struct json_writer w = {.out = &text, .indent = n % 3 ? 0 : 2};
        if (json_parse(&a, (const char *)data, n, "input", flags[i], &v, &diag) !=
            ST_OK) {
            FUZZ_WANT(diag.text[0]);
        } else if (flags[i] == JSON_STRICT && !has_cut_key(v)) {
            write_value(&w, v);
            enum status st = json_parse(&a, str_get(&text), text.n, "again",
                                        JSON_STRICT, &again, &diag);
            FUZZ_WANT(st == ST_OK && same(v, again));
        }
        str_free(&text);
        arena_release(&a);
    }
    return 0;
}
