# fad: `make help` lists the targets.
#
# Variables: SAN=asan (AddressSanitizer and UndefinedBehaviorSanitizer) or SAN=tsan builds into
# build/asan or build/tsan and checks there; CC; V=1 shows the commands.

SAN     ?= none
FA_DATA ?= ../shared/data

MAKEFLAGS += --no-print-directory --no-builtin-rules
SHELL     := /bin/bash
Q         := $(if $(V),,@)

FLAGS_none := -O2
FLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan := -O1 -fsanitize=thread
DIR_none   := release
ifeq ($(FLAGS_$(SAN)),)
$(error SAN=$(SAN): must be none, asan or tsan)
endif

B   := build/$(or $(DIR_$(SAN)),$(SAN))
GEN := build/gen

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wvla -Wundef -Wwrite-strings -Wformat=2
CPPFLAGS += -I. -I$(GEN) -D_GNU_SOURCE
CFLAGS   += -std=gnu11 -g $(FLAGS_$(SAN)) $(WARNINGS) -pthread -fPIE
LDFLAGS  += $(filter -fsanitize% -O%,$(FLAGS_$(SAN))) -pthread -pie
# Looked up when a recipe runs, so that `make deps` can install them first.
LIBS       = $(shell pkg-config --libs libuv libprotobuf-c) -lm
CLI_LIBS   = $(shell pkg-config --libs libcjson)
CHECK_LIBS = $(shell pkg-config --libs check)

# The tiled CPU kernel is compiled once for each instruction set; the machine's best runs.
ifeq ($(shell uname -m),x86_64)
ISAS       := base avx2 avx512
ISA_avx2   := -march=haswell
ISA_avx512 := -march=skylake-avx512 -mprefer-vector-width=512
else
ISAS := base
endif
ISAS_DEFINED := $(foreach i,$(ISAS),-DFA_HAVE_ISA_$(i)=1)

PROTO   := $(wildcard proto/*.c)
KERNELS := $(wildcard kernels/*.c) $(filter-out kernels/cpu/tiled.c,$(wildcard kernels/cpu/*.c))
DAEMON  := $(wildcard daemon/*/*.c)
CLIENT  := $(wildcard client/*.c)
CLI     := $(wildcard client/cli/*.c)
HELPERS := $(wildcard tests/helpers/*.c)
TESTS   := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
obj      = $(patsubst %.c,$(B)/%.o,$(1))

PROTO_OBJ   := $(call obj,$(PROTO)) $(B)/gen/fad.pb-c.o
KERNELS_OBJ := $(call obj,$(KERNELS)) $(ISAS:%=$(B)/kernels/cpu/tiled_%.o)

.PHONY: help build run check check-all lint format deps clean install uninstall
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

help:
	@printf '%s\n' \
	'make run        install what is missing, build, and run one checked attention pass through a' \
	'                private daemon' \
	'make check      build and run every test; the last line is the summary' \
	'make build      the programs only: $(B)/fad, $(B)/fa-cli, $(B)/libfa.a' \
	'make check-all  the tests as built plainly, with ASan+UBSan, and with TSan, then lint' \
	'make lint       include order, file and function lengths, clang-format, clang-tidy, cppcheck' \
	'make format     clang-format the sources in place' \
	'make deps       install the packages that a build needs (apt; root or sudo)' \
	'make clean      remove build/' \
	'make install    programs, libfa and systemd units, under DESTDIR and PREFIX (/usr/local);' \
	'                make uninstall removes them' \
	'SAN=asan or SAN=tsan before build or check uses a sanitizer build'

build: $(B)/fad $(B)/fa-cli $(B)/libfa.a

run: deps
	@$(MAKE) build
	@if command -v nvcc >/dev/null 2>&1; \
	 then echo 'fad: built for the CPU (this version has no CUDA kernels yet)'; \
	 else echo 'fad: no CUDA toolkit (nvcc) found: built for the CPU only'; fi
	$(B)/fa-cli run --spawn --version v4 --shape 4,12,2048,64 --check

check: deps
	@$(MAKE) build tests
	@FA_DATA=$(abspath $(FA_DATA)) FA_BUILD=$(abspath $(B)) tests/run-tests $(TESTS:%=$(B)/tests/%)

check-all:
	$(MAKE) check
	$(MAKE) check SAN=asan
	$(MAKE) check SAN=tsan
	$(MAKE) lint

.PHONY: tests
tests: $(TESTS:%=$(B)/tests/%) $(B)/tests/readme_example $(B)/tests/proto_example.py

deps:
	@tests/install-deps build

lint:
	@tests/install-deps lint
	@$(MAKE) $(GEN)/fad.pb-c.h
	tests/lint

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build

# --- Installing ----------------------------------------------------------------------------------

PREFIX ?= /usr/local
INSTALLED = bin/fad bin/fa-cli lib/libfa.a include/fad/fa.h \
            $(HEADERS:%=include/fad/proto/%) \
            lib/systemd/system/fad.service lib/systemd/system/fad.socket \
            lib/sysusers.d/fad.conf lib/tmpfiles.d/fad.conf
HEADERS  := fa_status.h fa_types.h
TO        = $(DESTDIR)$(PREFIX)

# With the headers in include/fad a program says #include <fad/fa.h>.
install: build
	install -d $(TO)/bin $(TO)/lib/systemd/system $(TO)/lib/sysusers.d $(TO)/lib/tmpfiles.d \
	    $(TO)/include/fad/proto
	install -m 755 $(B)/fad $(B)/fa-cli $(TO)/bin
	install -m 644 $(B)/libfa.a $(TO)/lib
	install -m 644 client/fa.h $(TO)/include/fad
	install -m 644 $(HEADERS:%=proto/%) $(TO)/include/fad/proto
	install -m 644 systemd/fad.socket $(TO)/lib/systemd/system
	sed 's|^ExecStart=/usr/local/|ExecStart=$(PREFIX)/|' systemd/fad.service \
	    >$(TO)/lib/systemd/system/fad.service
	chmod 644 $(TO)/lib/systemd/system/fad.service
	install -m 644 systemd/fad.sysusers.conf $(TO)/lib/sysusers.d/fad.conf
	install -m 644 systemd/fad.tmpfiles.conf $(TO)/lib/tmpfiles.d/fad.conf

uninstall:
	rm -f $(INSTALLED:%=$(TO)/%)
	rmdir $(TO)/include/fad/proto $(TO)/include/fad 2>/dev/null || true

# --- Generated -----------------------------------------------------------------------------------

$(GEN)/fad.pb-c.c: proto/fad.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=proto --c_out=$(GEN) proto/fad.proto
$(GEN)/fad.pb-c.h: $(GEN)/fad.pb-c.c ;

# --- Objects -------------------------------------------------------------------------------------

# The kernels want the vectoriser; their arithmetic must not be reordered, so never -ffast-math.
$(B)/kernels/%.o: CFLAGS += $(if $(filter none,$(SAN)),-O3,-O2)
$(B)/kernels/%.o: CPPFLAGS += $(ISAS_DEFINED)

$(B)/%.o: %.c Makefile | $(GEN)/fad.pb-c.h
	@mkdir -p $(@D)
	@$(if $(V),,echo '  CC   $@')
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/gen/%.o: $(GEN)/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/kernels/cpu/tiled_%.o: kernels/cpu/tiled.c Makefile | $(GEN)/fad.pb-c.h
	@mkdir -p $(@D)
	@$(if $(V),,echo '  CC   $@')
	$(Q)$(CC) $(CPPFLAGS) -DFA_ISA=$* $(CFLAGS) $(ISA_$*) -MMD -MP -c -o $@ $<

# --- Libraries and programs ----------------------------------------------------------------------

# libfa carries the protocol, so that a program needs no other archive of ours. It is one object in
# which only what its headers declare, each function on a line's start, is visible to the program.
PUBLIC := client/fa.h $(HEADERS:%=proto/%)
$(B)/libfa.o: $(call obj,$(CLIENT)) $(PROTO_OBJ) $(PUBLIC)
	$(Q)$(CC) -r -nostdlib -o $@ $(filter %.o,$^)
	$(Q)sed -n 's/^[a-z].*[ *]\(fa_[a-z0-9_]*\)(.*/\1/p' $(PUBLIC) >$(@:.o=.symbols)
	$(Q)objcopy --keep-global-symbols=$(@:.o=.symbols) $@
$(B)/libfa.a: $(B)/libfa.o
$(B)/libfakernels.a: $(KERNELS_OBJ) $(call obj,$(PROTO))
$(B)/libfad.a: $(call obj,$(DAEMON)) $(PROTO_OBJ)
$(B)/lib%.a:
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(B)/fad: $(B)/daemon/main.o $(B)/libfad.a $(B)/libfakernels.a
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/fa-cli: $(call obj,$(CLI)) $(B)/libfa.a $(B)/libfakernels.a
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) $(CLI_LIBS)

CLI_PARTS := $(filter-out client/cli/main.c,$(CLI))
$(B)/tests/test_%: $(B)/tests/test_%.o $(call obj,$(HELPERS)) $(call obj,$(CLI_PARTS)) \
                   $(call obj,$(CLIENT)) $(B)/libfad.a $(B)/libfakernels.a
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) $(CLI_LIBS) $(CHECK_LIBS)

# The programs that the READMEs print, as printed; the C one with all warnings on.
$(B)/tests/readme_example.c: README.md
	@mkdir -p $(@D)
	$(Q)awk '/^```c$$/{on=1;next} /^```/{on=0} on' $< > $@
$(B)/tests/proto_example.py: proto/README.md
	@mkdir -p $(@D)
	$(Q)awk '/^```python$$/{on=1;next} /^```/{on=0} on' $< > $@
$(B)/tests/readme_example: $(B)/tests/readme_example.c $(B)/libfa.a
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(shell find $(B) -name '*.d' 2>/dev/null)
