#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/str.h"
#include "io/yaml.h"
#include "tests/lib/tmp.h"

static enum status read_text(const char *text, struct yaml_doc *doc, struct diag *diag)
{
    return yaml_doc_read_text(text, strlen(text), "f.yaml", doc, diag);
}

/* "key=value@line" of every item; sequences and mappings as "key[n]" and "key{n}". */
static void assert_items(const char *text, const char *want)
{
    static const char *const forms[] = {[YAML_SCALAR] = "=",
                                        [YAML_NULL] = "=~",
                                        [YAML_SEQUENCE] = "[]",
                                        [YAML_MAPPING] = "{}"};
    struct yaml_doc doc;
    struct diag diag = {0};
    struct str got = {0};
    if (read_text(text, &doc, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    for (uint32_t i = 0; i < doc.n; i++) {
        const struct yaml_item *item = &doc.items[i];
        str_printf(&got, "%s%s%s", i ? " " : "", item->key, forms[item->kind]);
        if (item->value)
            str_add(&got, item->value);
        else if (item->kind != YAML_NULL)
            str_printf(&got, "%d", (int)item->n);
        str_printf(&got, "@%d", item->line);
    }
    assert_string_equal(str_get(&got), want);
    str_free(&got);
    yaml_doc_free(&doc);
}

static void assert_refused(const char *text, const char *says, const char *hints)
{
    struct yaml_doc doc;
    struct diag diag = {0};
    enum status st = read_text(text, &doc, &diag);
    if (st != ST_CONFIG || !strstr(diag.text, says) || !strstr(diag.hint, hints))
        fail_msg("'%s': '%s' / '%s', wanted '%s'", text, diag.text, diag.hint, says);
    assert_null(doc.items);
}

static void test_flat(void **state)
{
    (void)state;
    assert_items("", "");
    assert_items("# nothing\n", "");
    assert_items("a: 1\n", "a=1@1");
    assert_items("a:\n  b: x y\n  c: {d: 2}\n", "a{}2@2 a.b=x y@2 a.c{}1@3 a.c.d=2@3");
    assert_items("l: [p, {q: 1, r: 2}]\nm: []\n",
                 "l[]2@1 l[0]=p@1 l[1]{}2@1 l[1].q=1@1 l[1].r=2@1 m[]0@2");
    assert_items("l:\n- a\n- [b, c]\n",
                 "l[]2@2 l[0]=a@2 l[1][]2@3 l[1][0]=b@3 l[1][1]=c@3");
    assert_items("a:\nb: ~\nc: null\nd: \"\"\ne: 'null'\n",
                 "a=~@1 b=~@2 c=~@3 d=@4 e=null@5");
    assert_items("a.b: 1\na: {c: 2}\n", "a.b=1@1 a{}1@2 a.c=2@2");
    assert_items("[x, y]", "[]2@1 [0]=x@1 [1]=y@1");
    assert_items("scalar", "=scalar@1");
    assert_items("---\na: 1\n...\n", "a=1@2");
}

static void test_duplicates(void **state)
{
    (void)state;
    assert_refused("a: 1\nb: 2\na: 3\n", "duplicate key (f.yaml:3): got 'a' again", "");
    assert_refused("a: 1\nb: 2\na: 3\n", "the first is on line 1", "");
    assert_refused("t: {x: 1}\nt: {y: 2}\n", "duplicate key (f.yaml:2): got 't'", "");
    assert_refused("t: {x: 1}\nt.x: 2\n", "duplicate key (f.yaml:2): got 't.x'", "");
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused("a: &x 1\n", "anchor (f.yaml:1)", "");
    assert_refused("a: &x {b: 1}\n", "anchor (f.yaml:1)", "");
    assert_refused("a: &x [*x]\n", "anchor (f.yaml:1)", "");
    assert_refused("a: *x\n", "alias (f.yaml:1)", "");
    assert_refused("a: 1\nb: !!int 3\n", "tag (f.yaml:2)", "");
    assert_refused("a: !x {b: 1}\n", "tag (f.yaml:1)", "");
    assert_refused("<<: {a: 1}\n", "merge key (f.yaml:1)", "");
    assert_refused("? [a, b]\n: 1\n", "list or mapping as a key (f.yaml:1)", "");
    assert_refused("a: 1\n---\nb: 2\n", "several documents (f.yaml:2)", "");
    assert_refused("'': 1\n", "bad key (f.yaml:1)", "");
    assert_refused("a b: 1\n", "bad key (f.yaml:1)", "");
    assert_refused("'a[0]': 1\n", "bad key (f.yaml:1)", "");
    assert_refused("a: \"x\\0y\"\n", "bad value (f.yaml:1): got a zero byte", "");
}

static void test_syntax(void **state)
{
    (void)state;
    assert_refused("a:\n\tb: 1\n", "not YAML (f.yaml:2)", "spaces, not with tabs");
    assert_refused("a: [1, 2\nb: 3\n", "not YAML (f.yaml:", "");
    assert_refused("a: 'open\n", "not YAML (f.yaml:", "");
    assert_refused("a: 1\n b: 2\n", "not YAML (f.yaml:2)", "");
    assert_refused("a: \xff\xfe\n", "not YAML (f.yaml, byte ", "");
}

static void test_limits(void **state)
{
    (void)state;
    struct str text = {0};
    struct yaml_doc doc;
    struct diag diag = {0};
    for (int i = 0; i < 100000; i++)
        str_addc(&text, '[');
    assert_refused(text.s, "nested too deeply (f.yaml:1)", "");
    str_clear(&text);
    str_add(&text, "a: ");
    for (int i = 1; i < YAML_DEPTH_MAX; i++)
        str_addc(&text, '[');
    for (int i = 1; i < YAML_DEPTH_MAX; i++)
        str_addc(&text, ']');
    assert_int_equal(read_text(text.s, &doc, &diag), ST_OK);
    yaml_doc_free(&doc);
    str_clear(&text);
    for (int i = 0; i < 300; i++)
        str_addc(&text, 'k');
    str_add(&text, ": 1\n");
    assert_refused(text.s, "bad key (f.yaml:1): got 300 characters", "");
    str_clear(&text);
    while (text.n <= (size_t)YAML_BYTES_MAX)
        str_add(&text, "# a comment that fills the file\n");
    assert_refused(text.s, "too large", "");
    /* Many keys are read in far less than a second, and none is lost. */
    str_clear(&text);
    for (int i = 0; i < 90000; i++)
        str_printf(&text, "k%d: 1\n", i);
    assert_int_equal(read_text(text.s, &doc, &diag), ST_OK);
    assert_int_equal(doc.n, 90000);
    yaml_doc_free(&doc);
    str_free(&text);
}

static void test_files(void **state)
{
    (void)state;
    struct tmp t;
    struct yaml_doc doc;
    struct diag diag = {0};
    tmp_create(&t);
    const char *path = tmp_write_text(&t, "a.yaml", "a: {b: 1}\n");
    assert_int_equal(yaml_doc_read_file(path, &doc, &diag), ST_OK);
    assert_int_equal(doc.n, 2);
    yaml_doc_free(&doc);
    path = tmp_write_text(&t, "bad.yaml", "a: 1\nb: [\n");
    assert_int_equal(yaml_doc_read_file(path, &doc, &diag), ST_CONFIG);
    assert_non_null(strstr(diag.text, "bad.yaml:"));
    path = tmp_path(&t, "missing.yaml");
    assert_int_equal(yaml_doc_read_file(path, &doc, &diag), ST_NOT_FOUND);
    assert_non_null(strstr(diag.text, "missing.yaml"));
    assert_int_equal(yaml_doc_read_file(t.path, &doc, &diag), ST_CONFIG);
    assert_non_null(strstr(diag.text, "got a folder"));
    /* A sparse gigabyte: refused by its size, not read. */
    path = tmp_write_text(&t, "large.yaml", "");
    assert_int_equal(truncate(path, 1 << 30), 0);
    assert_int_equal(yaml_doc_read_file(path, &doc, &diag), ST_CONFIG);
    assert_non_null(strstr(diag.text, "got 1073741824 bytes"));
    tmp_remove(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_flat),    cmocka_unit_test(test_duplicates),
            cmocka_unit_test(test_refused), cmocka_unit_test(test_syntax),
            cmocka_unit_test(test_limits),  cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
