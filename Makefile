# angel: one non-recursive makefile.
#
#   make                 builds the release binary ./angel
#   make V=debug         builds build/debug/angel (also asan, tsan)
#   make demo            installs what is needed, builds, trains a small model, resumes
#   make check           installs what is needed, builds, runs all tests
#   make check-fast      the unit and command-line tests on what is installed
#   make check-sanitize  the unit tests under address, undefined and thread sanitizers
#   make check-layers check-headers check-format
#   make install         PREFIX=/usr/local
#
# No shell probing decides what is built: a flag changes only when its variable does.

V       ?= release
CC      := gcc
PREFIX  ?= /usr/local
VERSION := 0.1.0

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
ifeq ($(FLAGS_$(V)),)
$(error V=$(V) is not a variant: wanted release, debug, asan or tsan)
endif
CFLAGS  := -std=c11 -D_GNU_SOURCE -I. $(WARN) -ffp-contract=off -fno-math-errno \
           $(FLAGS_$(V))
LDLIBS  := -l:libyaml.a -l:libzstd.a -lm -lpthread
LINK    := $(CC) $(FLAGS_$(V))

# Kernels for instruction sets that not every machine has: the file's name says which.
ISA_avx2     := -mavx2 -mfma
ISA_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16

FOLDERS := core io memory kernels kernels/cpu parallel cmd
SRC     := $(sort $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c)))
OBJ     := $(SRC:%.c=$(B)/%.o)
LIB_OBJ := $(filter-out $(B)/cmd/main.o,$(OBJ))
TEST_LIB_OBJ := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard tests/lib/*.c)))
UNIT    := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/unit/t_*.c)))
TOOLS   := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/tool/*.c)))

ifeq ($(V),release)
all: angel
else
all: $(B)/angel
endif

angel: build/release/angel
	cp $< $@

# What the objects were built with: changed text rebuilds everything.
BUILD_TEXT := $(CC) $(CFLAGS) $(LDLIBS) $(VERSION)
$(B)/flags: FORCE
	@mkdir -p $(B)
	@printf '%s\n' '$(BUILD_TEXT)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(call isa,$<) -MMD -MP -c $< -o $@

$(B)/cmd/main.o: CFLAGS += -DANGEL_VERSION='"$(VERSION)"' \
    -DANGEL_BUILD='"$(V): $(FLAGS_$(V)), C11, $(CC)"'

$(B)/libangel.a: $(LIB_OBJ)
	rm -f $@ && ar rcs $@ $^

$(B)/angel: $(B)/cmd/main.o $(B)/libangel.a
	$(LINK) $^ $(LDLIBS) -o $@

$(B)/libtest.a: $(TEST_LIB_OBJ)
	rm -f $@ && ar rcs $@ $^

$(UNIT) $(TOOLS): $(B)/%: $(B)/%.o $(B)/libtest.a $(B)/libangel.a
	$(LINK) $^ $(LDLIBS) -lcmocka -o $@

-include $(OBJ:.o=.d) $(TEST_LIB_OBJ:.o=.d) $(UNIT:=.d) $(TOOLS:=.d)

FORCE:
.PHONY: all FORCE
.SECONDARY:
