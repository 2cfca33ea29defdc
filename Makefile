# fad: `make help` lists the targets.
#
# Variables: SAN=asan (AddressSanitizer and UndefinedBehaviorSanitizer) or SAN=tsan builds into
# build/asan or build/tsan and checks there, without CUDA; CUDA=no builds for the CPU only; NVCC=...
# where nvcc is not on PATH; CUDA_ARCHS the GPU architectures, "all" into build/all-archs; FA_DATA the
# directory of the reference cases, without which their tests are skipped; CC; V=1 shows the commands.

SAN     ?= none
NVCC    ?= nvcc
# PTX of the first one is added, for what is newer than all.
CUDA_ARCHS ?= 80 90a
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

B   := build/$(if $(filter all,$(CUDA_ARCHS)),all-archs,$(or $(DIR_$(SAN)),$(SAN)))
ifeq ($(CUDA_ARCHS)$(filter-out none,$(SAN)),all$(SAN))
$(error SAN=$(SAN) builds no CUDA: leave CUDA_ARCHS out)
endif
GEN := build/gen

# CUDA is where nvcc is and the toolkit's library beside it. NO_CUDA is why it is not used.
NVCC_PATH := $(shell command -v $(NVCC))
TOOLKIT   := $(abspath $(dir $(realpath $(NVCC_PATH)))..)
CUDART    := $(firstword $(wildcard $(TOOLKIT)/lib64/libcudart_static.a \
                                    $(TOOLKIT)/lib/libcudart_static.a))
NO_CUDA   :=
ifeq ($(CUDA),no)
NO_CUDA := CUDA=no
else ifneq ($(SAN),none)
NO_CUDA := SAN=$(SAN) builds none
else ifeq ($(NVCC_PATH),)
NO_CUDA := no $(NVCC) on PATH
else ifeq ($(CUDART),)
NO_CUDA := no libcudart_static.a in $(TOOLKIT)/lib64
endif
HAVE_CUDA := $(if $(NO_CUDA),0,1)

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wvla -Wundef -Wwrite-strings -Wformat=2
CPPFLAGS += -I. -I$(GEN) -D_GNU_SOURCE
CFLAGS   += -std=gnu11 -g $(FLAGS_$(SAN)) $(WARNINGS) -pthread -fPIE
LDFLAGS  += $(filter -fsanitize% -O%,$(FLAGS_$(SAN))) -pthread -pie
# Looked up when a recipe runs, so that `make deps` can install them first.
LIBS       = $(shell pkg-config --libs libuv libprotobuf-c) $(CUDA_LIBS) -lm
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

ifeq ($(HAVE_CUDA),1)
CUDA_INCLUDE := -isystem $(TOOLKIT)/include
CUDA_LIBS    := $(CUDART) -lrt -ldl -lpthread
ARCHS        := $(if $(filter all,$(CUDA_ARCHS)),80 86 89 90a 100 120,$(CUDA_ARCHS))
comma        := ,
CODE          = -gencode arch=compute_$(1),code=sm_$(1)
PTX           = -gencode arch=compute_$(1),code=[sm_$(1)$(comma)compute_$(1)]
# Without exceptions, RTTI and guarded statics the objects need no C++ library, so gcc links them.
# Never fast math: the kernels say themselves where an approximation is good enough.
NVCCFLAGS    := -O3 -std=c++20 --Werror all-warnings -Xptxas -v -I. \
                -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers,-fPIE \
                -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
                $(call PTX,$(firstword $(ARCHS))) \
                $(foreach a,$(wordlist 2,$(words $(ARCHS)),$(ARCHS)),$(call CODE,$(a)))
endif

PROTO   := $(wildcard proto/*.c)
KERNELS := $(wildcard kernels/*.c) $(filter-out kernels/cpu/tiled.c,$(wildcard kernels/cpu/*.c))
DAEMON  := $(filter-out $(if $(NO_CUDA),daemon/backend/cuda%),$(wildcard daemon/*/*.c))
CLIENT  := $(wildcard client/*.c)
CLI     := $(wildcard client/cli/*.c)
# A CUDA driver without a GPU is a library of its own; and one that is too old.
FAKE_DRIVER := $(wildcard tests/helpers/fake_driver*.c)
FAKE_CUDA := $(B)/tests/fakecuda/libcuda.so.1 $(B)/tests/oldcuda/libcuda.so.1
HELPERS := $(filter-out $(FAKE_DRIVER),$(wildcard tests/helpers/*.c))
TESTS   := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
obj      = $(patsubst %.c,$(B)/%.o,$(1))

# Of what asks the driver some is fa-cli's and not libfa's. How it is found both need.
CLI_CUDA := client/cuda_probe.c client/cuda_ffma.c
CLIENT   := $(filter-out $(CLI_CUDA),$(CLIENT))
CLI      += $(CLI_CUDA) client/cuda_load.c

PROTO_OBJ   := $(call obj,$(PROTO)) $(B)/gen/fad.pb-c.o
CUDA_SRC    := $(if $(NO_CUDA),,$(wildcard kernels/cuda/*.cu))
CUDA_OBJ    := $(CUDA_SRC:%.cu=$(B)/%.o)
KERNELS_OBJ := $(call obj,$(KERNELS)) $(ISAS:%=$(B)/kernels/cpu/tiled_%.o) $(CUDA_OBJ)

.PHONY: help build release run check check-gpu bench-gpu budget check-all lint format deps clean \
        install uninstall
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

help:
	@printf '%s\n' \
	'make run        install what is missing, build, and run one checked attention pass through a' \
	'                private daemon' \
	'make check      build and run every test that needs no GPU; the last line is the summary' \
	'make build      the programs only: $(B)/fad, $(B)/fa-cli, $(B)/libfa.a' \
	'make release    the same with kernels for every GPU architecture, in build/all-archs' \
	'make check-gpu  test the CUDA kernels and the daemon with them on the GPU here (needs nvcc);' \
	'                PARTS="kernels daemon ipc sanitizers loss alone" chooses' \
	'make bench-gpu  time the CUDA kernels on the GPU here; BENCH="--shape 4,12,512,64 v3 v4"' \
	'make budget     write what this build'"'"'s CUDA kernels take to tests/kernel-budget' \
	'make check-all  the tests as built plainly, with ASan+UBSan, and with TSan, then lint' \
	'make lint       include order, file and function lengths, clang-format, clang-tidy, cppcheck' \
	'make format     clang-format the sources in place' \
	'make deps       install the packages that a build needs (apt; root or sudo)' \
	'make clean      remove build/' \
	'make install    programs, libfa and systemd units, under DESTDIR and PREFIX (/usr/local);' \
	'                make uninstall removes them' \
	'SAN=asan or SAN=tsan before build or check uses a sanitizer build; CUDA=no builds for the' \
	'CPU only, as happens where there is no nvcc'

build: $(B)/fad $(B)/fa-cli $(B)/libfa.a

release: deps
	$(if $(NO_CUDA),$(error make release: there are no CUDA kernels to build: $(NO_CUDA)))
	@$(MAKE) build CUDA_ARCHS=all

run: deps
	@$(MAKE) build
	@echo 'fad: $(if $(NO_CUDA),built for the CPU only ($(NO_CUDA)),built with CUDA)'
	$(B)/fa-cli run --spawn --version v4 --shape 4,12,2048,64 --check

check: deps
	@$(MAKE) build tests gpu-tests
	@$(TEST_ENV) tests/run-tests $(TESTS:%=$(B)/tests/%) \
	    $(if $(NO_CUDA),,$(HOST_TESTS:%=$(B)/gpu/%)) \
	    $(if $(filter none,$(SAN)),tests/check-budget)

check-gpu: deps
	$(if $(NO_CUDA),$(error make check-gpu: there are no CUDA kernels to run: $(NO_CUDA)))
	@$(MAKE) build tests gpu-tests
	@$(TEST_ENV) tests/check-gpu $(PARTS)

bench-gpu: deps
	$(if $(NO_CUDA),$(error make bench-gpu: there are no CUDA kernels to run: $(NO_CUDA)))
	@$(MAKE) $(B)/gpu/bench
	@FA_COMMIT=$$(git describe --always --dirty 2>/dev/null) $(B)/gpu/bench $(BENCH)

budget: deps
	$(if $(NO_CUDA),$(error make budget: there are no CUDA kernels: $(NO_CUDA)))
	@$(MAKE) build $(B)/gpu/functions
	@$(TEST_ENV) tests/check-budget --write

TEST_ENV = FA_DATA='$(abspath $(FA_DATA))' FA_BUILD='$(abspath $(B))' FA_NO_CUDA='$(NO_CUDA)' \
           FA_NVCC='$(NVCC_PATH)'

check-all:
	$(MAKE) check
	$(MAKE) check SAN=asan
	$(MAKE) check SAN=tsan
	$(MAKE) lint

.PHONY: tests
tests: $(TESTS:%=$(B)/tests/%) $(B)/tests/fad $(B)/tests/fad-faulty $(B)/tests/readme_example \
       $(B)/tests/proto_example.py $(FAKE_CUDA) $(B)/tests/early-thread.so

deps:
	@tests/install-deps build $(if $(NO_CUDA),,g++)

lint:
	@tests/install-deps lint
	@$(MAKE) $(GEN)/fad.pb-c.h
	tests/lint

format:
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build

# --- Installing ----------------------------------------------------------------------------------

PREFIX ?= /usr/local
INSTALLED = bin/fad bin/fa-cli lib/libfa.a include/fad/fa.h include/fad/fa_cuda.h \
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
	install -m 644 client/fa.h client/fa_cuda.h $(TO)/include/fad
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
$(B)/kernels/%.o: CPPFLAGS += $(ISAS_DEFINED) -DFA_HAVE_CUDA=$(HAVE_CUDA)
$(B)/tests/gpu/%.o $(B)/daemon/backend/cuda%.o: CPPFLAGS += $(CUDA_INCLUDE)
$(B)/daemon/backend/%.o: CPPFLAGS += -DFA_HAVE_CUDA=$(HAVE_CUDA)

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

# What nvcc is asked for. What depends on it is rebuilt when it, or whether there is CUDA, changes.
.PHONY: FORCE
$(B)/cuda.config: FORCE
	@mkdir -p $(@D)
	@echo '$(if $(NO_CUDA),none,$(NVCC_PATH) $(NVCCFLAGS))' | cmp -s - $@ || \
	 echo '$(if $(NO_CUDA),none,$(NVCC_PATH) $(NVCCFLAGS))' >$@
$(B)/kernels/versions.o $(B)/daemon/backend/backends.o: $(B)/cuda.config

# x.ptxas says which registers and memory each function takes: tests/check-budget reads it.
$(B)/%.o: %.cu Makefile $(B)/cuda.config
	@mkdir -p $(@D)
	@$(if $(V),,echo '  NVCC $@')
	$(Q)$(NVCC_PATH) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.ptxas) 2>&1 || \
	    { grep -vE '^ptxas info|bytes stack frame' $(@:.o=.ptxas); exit 1; }

# --- Libraries and programs ----------------------------------------------------------------------

# libfa carries the protocol, so that a program needs no other archive of ours. It is one object in
# which only what its headers declare, each function on a line's start, is visible to the program.
PUBLIC := client/fa.h client/fa_cuda.h $(HEADERS:%=proto/%)
$(B)/libfa.o: $(call obj,$(CLIENT)) $(PROTO_OBJ) $(PUBLIC)
	$(Q)$(CC) -r -nostdlib -o $@ $(filter %.o,$^)
	$(Q)sed -n 's/^[a-z].*[ *]\(fa_[a-z0-9_]*\)(.*/\1/p' $(PUBLIC) >$(@:.o=.symbols)
	$(Q)objcopy --keep-global-symbols=$(@:.o=.symbols) $@
$(B)/libfa.a: $(B)/libfa.o
$(B)/libfakernels.a: $(KERNELS_OBJ) $(call obj,$(PROTO)) $(B)/cuda.config
$(B)/libfad.a: $(call obj,$(DAEMON)) $(PROTO_OBJ) $(B)/cuda.config
$(B)/lib%.a:
	@rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

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

$(B)/tests/fad: tests/fad-on-backend
	@mkdir -p $(@D)
	$(Q)install -m 755 $< $@

# fad with a backend that can be told to lose its device, on a GPU as fault.cu does it.
$(B)/tests/fad-faulty: $(call obj,$(wildcard tests/faulty/*.c)) \
                       $(if $(NO_CUDA),,$(B)/tests/gpu/daemon/fault.o) $(B)/libfad.a \
                       $(B)/libfakernels.a $(B)/cuda.config
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter-out %.config,$^) $(LIBS)

# Put into a daemon with LD_PRELOAD.
$(B)/tests/early-thread.so: tests/early/thread.c Makefile
	@mkdir -p $(@D)
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -fPIE,$(CFLAGS)) -fPIC $(filter-out -pie,$(LDFLAGS)) -shared -o $@ $<

$(B)/tests/oldcuda/libcuda.so.1: CPPFLAGS += -DFAKE_CUDA_OLD
$(FAKE_CUDA): $(FAKE_DRIVER) tests/helpers/fake_driver.h tests/helpers/fake_cuda.h Makefile
	@mkdir -p $(@D)
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -fPIE,$(CFLAGS)) -fPIC $(filter-out -pie,$(LDFLAGS)) -shared \
	    -Wl,-soname,libcuda.so.1 -o $@ $(FAKE_DRIVER)

# --- Tests for a GPU: built wherever nvcc is, run by tests/check-gpu ------------------------------

# What is neither a test nor a program by itself is in all of them, but the recorder. The tests of kernels/ that run on
# a GPU as they are become programs a second time. Those of the host's side of launches need no GPU:
# `make check` runs them.
GPU_ALL    := $(sort $(basename $(notdir $(wildcard tests/gpu/*.c tests/gpu/*.cu))))
GPU_MAINS  := $(filter ragged planted bench functions,$(GPU_ALL))
HOST_TESTS := test_grids
HOST_PARTS := recorder
GPU_TESTS  := $(filter-out $(HOST_TESTS),$(filter test_%,$(GPU_ALL)))
GPU_AGAIN  := test_kernels test_bits test_nonfinite test_decode
GPU_PARTS  := $(patsubst %,$(B)/tests/gpu/%.o,$(filter-out $(GPU_MAINS) $(GPU_TESTS) \
                 $(HOST_TESTS) $(HOST_PARTS),$(GPU_ALL))) \
             $(B)/tests/helpers/attend.o $(B)/tests/helpers/cases.o $(B)/gpu/test.o

# Tests of the daemon with clients' memory on the GPU. They use no CUDA themselves: the exporter
# does.
GPU_DAEMON := $(patsubst tests/gpu/daemon/%.c,%,$(wildcard tests/gpu/daemon/test_*.c))

.PHONY: gpu-tests
gpu-tests: $(if $(NO_CUDA),,$(patsubst %,$(B)/gpu/%,$(GPU_MAINS) $(GPU_TESTS) $(GPU_AGAIN) \
                                                  $(HOST_TESTS)) \
                            $(patsubst %,$(B)/gpu/daemon/%,$(GPU_DAEMON) exporter))

# Check's main, for programs that bring none.
$(B)/gpu/test.o: $(B)/tests/helpers/test.o
	@mkdir -p $(@D)
	$(Q)objcopy --weaken-symbol=main --weaken-symbol=test_suite $< $@

$(patsubst %,$(B)/gpu/%,$(GPU_MAINS) $(GPU_TESTS)): $(B)/gpu/%: $(B)/tests/gpu/%.o
$(GPU_AGAIN:%=$(B)/gpu/%): $(B)/gpu/%: $(B)/tests/%.o
$(B)/gpu/%: $(GPU_PARTS) $(B)/libfakernels.a
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(CLI_LIBS) \
	    $(CHECK_LIBS)

$(GPU_DAEMON:%=$(B)/gpu/daemon/%): $(B)/gpu/daemon/%: $(B)/tests/gpu/daemon/%.o \
    $(B)/tests/gpu/daemon/peer.o $(call obj,$(HELPERS)) $(call obj,$(CLI_PARTS)) \
    $(call obj,$(CLIENT)) $(B)/libfad.a $(B)/libfakernels.a
	@mkdir -p $(@D)
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) $(CLI_LIBS) $(CHECK_LIBS)

$(B)/gpu/daemon/exporter: $(B)/tests/gpu/daemon/exporter.o
	@mkdir -p $(@D)
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS)

# What they replace of the CUDA runtime.
RECORDED := cudaLaunchKernel cudaMemsetAsync cudaMalloc cudaMallocAsync cudaStreamSynchronize \
            cudaDeviceSynchronize
$(HOST_TESTS:%=$(B)/gpu/%): $(B)/gpu/%: $(B)/tests/gpu/%.o $(HOST_PARTS:%=$(B)/tests/gpu/%.o) \
                               $(B)/gpu/test.o $(B)/libfakernels.a
	@$(if $(V),,echo '  LINK $@')
	$(Q)$(CC) $(LDFLAGS) $(RECORDED:%=-Wl,--wrap=%) -o $@ $^ $(LIBS) $(CHECK_LIBS)

# The programs that the READMEs print, as printed; the C one with all warnings on.
$(B)/tests/readme_example.c: README.md
	@mkdir -p $(@D)
	$(Q)awk '/^```c$$/{on=1;next} /^```/{on=0} on' $< > $@
$(B)/tests/proto_example.py: proto/README.md
	@mkdir -p $(@D)
	$(Q)awk '/^```python$$/{on=1;next} /^```/{on=0} on' $< > $@
$(B)/tests/readme_example: $(B)/tests/readme_example.c $(B)/libfa.a
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

# A driver's library that plays a machine, for the fa-cli doctor that a test runs.
tests: $(B)/tests/fakes/libcuda.so.1
$(B)/tests/fakes/libcuda.so.1: tests/fakes/libcuda.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) -D_GNU_SOURCE -std=gnu11 -g -O1 $(WARNINGS) -fPIC -shared -o $@ $<

-include $(shell find $(B) -name '*.d' 2>/dev/null)
