# angel: one non-recursive makefile.
#
#   make                 builds the release binary ./angel
#   make V=debug         builds build/debug/angel (also asan, tsan)
#   make demo            installs what is needed, builds, trains a small model, resumes
#   make check           installs what is needed, builds, runs all tests
#   make check-fast      the tests alone, on what is installed
#   make check-sanitize  the tests under address, undefined and thread sanitizers
#   make check-unit      the unit tests (V=asan: under that variant; T='pool reader': these)
#   make check-cli       the command-line tests (T=pretrain: that file)
#   make check-alloc     runs in which an allocation fails (A=every: each of them)
#   make check-fuzz      the fuzz targets (FUZZ_SECONDS=3 for each; T='yaml json': these)
#   make check-layouts   trains in every layout and compares them, bit for bit or nearly
#   make check-layers check-headers check-style check-format check-man check-build
#   make deps            installs the Debian packages that building and testing need
#   make man-options     writes the options of the program into angel-config(5)
#   make fuzz-seeds      writes the seeds of the fuzz targets that are not text
#   make completion      writes configs/completion from the options of the program
#   make install         binary, manual, completion and presets to PREFIX (/usr/local); also uninstall
#   make clean           removes build/ and ./angel
#   make help            these lines
#
# No shell probing decides what is built: a flag changes only when its variable does.

V       ?= release
FUZZ_CC ?= clang
CC      := $(if $(filter fuzz,$(V)),$(FUZZ_CC),gcc)
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := 0.1.0
DATADIR := $(PREFIX)/share/angel
MANDIR  := $(PREFIX)/share/man

# VERBOSE=1 shows whole commands.
Q   := $(if $(VERBOSE),,@)
SAY := @$(if $(VERBOSE),:,echo '  ')

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:

B := build/$(V)

WARN := -Wall -Wextra -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes \
        -Wwrite-strings -Wformat=2 -Wconversion -Wno-sign-conversion -Wswitch \
        -fno-common -Werror
FLAGS_release := -O3 -g -DANGEL_DEBUG=0
FLAGS_debug   := -O1 -g -DANGEL_DEBUG=1
FLAGS_asan    := -O1 -g -DANGEL_DEBUG=1 -fsanitize=address,undefined \
                 -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan    := -O1 -g -DANGEL_DEBUG=1 -fsanitize=thread
FLAGS_fuzz    := -O1 -g -DANGEL_DEBUG=1 -fsanitize=fuzzer-no-link,address,undefined \
                 -fno-sanitize-recover=all -fno-omit-frame-pointer
ifeq ($(FLAGS_$(V)),)
$(error V=$(V) is not a variant: wanted release, debug, asan, tsan or fuzz)
endif
# Another compiler's opinions do not matter.
ifeq ($(V),fuzz)
WARN := -w
endif
CFLAGS  := -std=c11 -D_GNU_SOURCE -I. $(WARN) -ffp-contract=off -fno-math-errno \
           $(FLAGS_$(V))
LDLIBS  := -l:libyaml.a -l:libzstd.a -lm -lpthread
LINK    := $(CC) $(FLAGS_$(V))

# Kernels for instruction sets that not every machine has: the file's name says which.
ISA_avx2     := -mavx2 -mfma
ISA_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx      := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
# Headers that only such files include, so that they compile alone.
ISA_simd16 := $(ISA_avx2)
ISA_vmath := $(ISA_avx2)
ISA_tuned := $(ISA_avx2)
ISA_pack512 := $(ISA_avx512)

FOLDERS := core io memory kernels kernels/cpu parallel cmd
SRC     := $(sort $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c)))
OBJ     := $(SRC:%.c=$(B)/%.o)
LIB_OBJ := $(filter-out $(B)/cmd/main.o,$(OBJ))
TEST_LIB_OBJ := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard tests/lib/*.c)))
FUZZ    := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
UNIT    := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/unit/t_*.c)))
TOOLS   := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/tool/*.c)))

ifeq ($(V),release)
all: angel
else
all: $(B)/angel
endif

angel: build/release/angel
	cp $< $@

# What the objects were built with: changed text rebuilds everything; a changed prefix
# only what holds it.
BUILD_TEXT := $(CC) $(CFLAGS) $(LDLIBS) $(ISA_avx2) $(ISA_amx) $(VERSION)
$(B)/flags: STAMP := $(BUILD_TEXT)
$(B)/prefix: STAMP := $(DATADIR)
$(B)/flags $(B)/prefix: FORCE
	@mkdir -p $(B)
	@printf '%s\n' '$(STAMP)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))

# Definitions of single files. The compiler puts its own version into the build text.
DEFINE_cmd/build_text := -DANGEL_VERSION='"$(VERSION)"' \
    -DANGEL_BUILD='"$(V): $(CC) " __VERSION__ " -std=c11 $(FLAGS_$(V))"'
DEFINE_cmd/load_config := -DANGEL_DATADIR='"$(DATADIR)"'
$(B)/cmd/load_config.o: $(B)/prefix

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CFLAGS) $(call isa,$<) $(DEFINE_$*) -MMD -MP -c $< -o $@

$(B)/libangel.a: $(LIB_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/angel: $(B)/cmd/main.o $(B)/libangel.a
	$(SAY) LD $@
	$(Q)$(LINK) $^ $(LDLIBS) -o $@

$(B)/libtest.a: $(TEST_LIB_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(UNIT) $(TOOLS): $(B)/%: $(B)/%.o $(B)/libtest.a $(B)/libangel.a
	$(SAY) LD $@
	$(Q)$(LINK) $^ $(LDLIBS) -lcmocka -o $@

# Loaded before a program, makes an allocation fail.
$(B)/fail_alloc.so: tests/preload/fail_alloc.c $(B)/flags
	$(SAY) CC $<
	$(Q)$(CC) $(CFLAGS) -fPIC -shared $< -o $@

# What the fuzz targets read: no kernels.
FUZZ_OBJ := $(filter $(B)/core/% $(B)/io/%,$(OBJ)) $(B)/tests/fuzz/fuzz.o \
    $(patsubst %,$(B)/cmd/%.o,load_config progress report_html report_read svg_chart)

$(B)/libfuzzed.a: $(FUZZ_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(FUZZ): $(B)/%: $(B)/%.o $(B)/libfuzzed.a
	$(SAY) LD $@
	$(Q)$(LINK) -fsanitize=fuzzer $^ $(LDLIBS) -o $@

# ---- checks ----
#
# run-parts.sh runs parts, all of them, and sums up; run-tests.sh runs tests side by side.

PARTS  := +@MAKE='$(MAKE)' tests/tool/run-parts.sh
HEADER := $(sort $(foreach d,$(FOLDERS) tests/lib tests/fuzz,$(wildcard $(d)/*.h)))
BATS   := $(sort $(wildcard tests/cli/*.bats) $(wildcard tests/tool/*.bats))
PAGES  := $(sort $(wildcard man/*.[1-9]))
FORMAT := $(SRC) $(HEADER) $(sort $(wildcard tests/*/*.c))

# The tests that use threads, for the thread sanitizer, but the longest: t_run_killed,
# t_run_damage and t_gold run what others here do.
TSAN   := pool comm streams reader data gemm attn compare cpu kernel shard grad monitor \
    equal layouts ranks ckpt run_guard run_disk run_resume run_signals

# `T=...` picks: the unit tests t_<word>*, the bats files <word>.
T      :=
pick_unit = $(if $(T),$(foreach t,$(T),$(filter $(B)/tests/unit/t_$(t)%,$(UNIT))),$(UNIT))
pick_bats = $(if $(T),$(foreach t,$(T),$(filter %/$(t).bats,$(BATS))),$(BATS))

RUN_UNDER_tsan := tests/tool/no-aslr.sh
# Without detect_stack_use_after_return: gcc 12 aligns the frames of its fake stack to 32
# bytes, and a spilled vector of 64 bytes, stored aligned, faults there.
OPTIONS_asan   := ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0 \
                  UBSAN_OPTIONS=print_stacktrace=1
OPTIONS_tsan   := TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
OPTIONS         = $(OPTIONS_$(V)) RUN_UNDER='$(RUN_UNDER_$(V))'

check:
	$(PARTS) deps-check check-build check-layers check-headers check-style check-format \
	    check-man check-unit check-cli check-mpi check-hosts check-alloc check-fuzz

check-fast:
	$(PARTS) check-build check-unit check-cli

check-sanitize:
	$(PARTS) check-asan check-tsan

check-build: all

# The whole equality matrix: every layout of tests/lib/layouts.c as threads, twelve as
# processes, and those over two hosts.
check-layouts: $(B)/tests/unit/t_layouts $(B)/angel
	@$(OPTIONS) $(RUN_UNDER_$(V)) $< all
	@tests/tool/check-mpi.sh $(B)/angel
	@tests/tool/check-hosts.sh $(B)/angel

# One layout over two hosts, made of network namespaces, against one host.
check-hosts: $(B)/angel
	@tests/tool/check-hosts.sh $(B)/angel quick

# Two layouts as threads and under mpirun.
check-mpi: $(B)/angel
	@tests/tool/check-mpi.sh $(B)/angel quick

check-layers:
	@tests/tool/check-layers.sh

check-style:
	@tests/tool/check-style.sh

check-format:
	@tests/tool/check-format.sh $(FORMAT)

check-man: angel
	@tests/tool/check-man.sh ./angel $(PAGES)

# Each header compiles alone, and twice.
check-headers: $(HEADER:%.h=$(B)/header/%.ok)

$(B)/header/%.ok: %.h $(B)/flags
	@mkdir -p $(@D)
	@printf '#include "$<"\n#include "$<"\n' | $(CC) $(CFLAGS) $(call isa,$<) \
	    -fsyntax-only -MMD -MP -MT $@ -MF $(@:.ok=.d) -x c -
	@touch $@

# A test that does not build fails, and the others run.
check-unit:
	+@build=0; $(MAKE) --no-print-directory -k $(pick_unit) || build=1; \
	BUILD_STATUS=$$build $(OPTIONS) tests/tool/run-tests.sh $(B)/log $(pick_unit)

check-cli: $(B)/angel
	@ANGEL=$(CURDIR)/$(B)/angel tests/tool/run-tests.sh $(B)/log $(pick_bats)

# `A=every` lets each allocation fail.
check-alloc: $(B)/angel $(B)/fail_alloc.so $(UNIT)
	@tests/tool/check-alloc.sh $(B) $(A)

check-fuzz:
	+@MAKE='$(MAKE)' FUZZ_CC='$(FUZZ_CC)' tests/tool/check-fuzz.sh $(T)

check-asan:
	+@$(MAKE) --no-print-directory V=asan check-unit

check-tsan:
	+@$(MAKE) --no-print-directory V=tsan T='$(TSAN)' check-unit

# ---- the rest ----

deps:
	@tests/tool/install-deps.sh

# Also what single checks are skipped without.
deps-check:
	@tests/tool/install-deps.sh optional

demo:
	+@$(MAKE) --no-print-directory deps
	+@$(MAKE) --no-print-directory angel
	@tests/tool/demo.sh ./angel

# Seeds that are not text are written by a program.
fuzz-seeds: $(B)/tests/tool/fuzz_seeds
	$< tests/fuzz/corpus

man-options: angel
	tests/tool/man-options.sh ./angel

# Completion for shells, from the program's tables.
completion: angel
	@mkdir -p configs/completion
	./angel help --completion bash >configs/completion/angel.bash
	./angel help --completion zsh >configs/completion/_angel

CONFIGS := $(sort $(wildcard configs/*/*.yaml))

install: angel
	install -D -m 755 angel $(DESTDIR)$(PREFIX)/bin/angel
	set -e; for f in $(CONFIGS); do \
	    install -D -m 644 $$f $(DESTDIR)$(DATADIR)/$$f; done
	install -D -m 644 configs/completion/angel.bash \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/angel
	install -D -m 644 configs/completion/_angel \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_angel
	set -e; for f in $(notdir $(PAGES)); do \
	    install -D -m 644 man/$$f $(DESTDIR)$(MANDIR)/man$${f##*.}/$$f; done

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/angel
	rm -rf $(DESTDIR)$(DATADIR)
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/angel \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_angel
	for f in $(notdir $(PAGES)); do rm -f $(DESTDIR)$(MANDIR)/man$${f##*.}/$$f; done

clean:
	rm -rf build angel

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

-include $(OBJ:.o=.d) $(TEST_LIB_OBJ:.o=.d) $(UNIT:=.d) $(TOOLS:=.d)
-include $(FUZZ:=.d) $(B)/tests/fuzz/fuzz.d
-include $(HEADER:%.h=$(B)/header/%.d)

FORCE:
.PHONY: all FORCE check check-fast check-sanitize check-build check-layers check-style \
    check-format check-man check-headers check-unit check-cli check-alloc check-fuzz \
    check-layouts check-mpi check-hosts check-asan check-tsan deps deps-check demo \
    fuzz-seeds completion man-options install uninstall clean help
.SECONDARY:
