# gradckpt.h is one header; nothing needs building to use it. This file builds the examples and tests, the header
# as a library (make lib, make install), and puts the header together from src/ (make header).
# `make help` lists what there is. A C compiler, make and sh are enough, except for `make check`.

CC = cc
CFLAGS = -O2 -std=gnu99
WARNINGS = -Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion \
           -Wcast-qual -Wcast-align -Wundef -Wstrict-prototypes
PREFIX = /usr/local
LIBDIR = $(PREFIX)/lib
DESTDIR =

# -fopenmp where a program built with it runs; OPENMP= switches it off. Results are the same bits.
HASH := \#
OPENMP := $(shell d=$$(mktemp -d) && \
    printf '$(HASH)include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' > $$d/t.c && \
    $(CC) -fopenmp $$d/t.c -o $$d/t 2>/dev/null && $$d/t && echo -fopenmp; rm -rf "$$d")
# Between steps OpenMP's threads sleep; within one the header does the waiting (docs/building.md).
OMP_WAIT_POLICY ?= passive
export OMP_WAIT_POLICY
# OPENBLAS=1: matrix products by OpenBLAS (libopenblas-dev), to compare; see GCKPT_OPENBLAS in gradckpt.h.
ifeq ($(OPENBLAS),1)
BLAS := -DGCKPT_OPENBLAS $(shell pkg-config --cflags openblas 2>/dev/null)
BLAS_LIBS := $(shell pkg-config --libs openblas 2>/dev/null || echo -lopenblas)
endif
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# What programs compute themselves has the same bits everywhere, too: no product is fused with a sum.
COMPILE = $(CC) $(CFLAGS) -ffp-contract=off $(WARNINGS) $(OPENMP) $(BLAS) -I.
# A program of public names sees the API alone (build/api/gradckpt.h; GRADCKPT_IMPLEMENTED: the bodies are linked).
# Examples and tests are linked with build/libsrc.a, the files of src/, each compiled by itself: a change in one file
# compiles that file. Benchmarks, `make lib` and other programs are linked with build/gradckpt.o, the header compiled.
LINKED = $(subst -I.,-Ibuild/api -I.,$(COMPILE)) -DGRADCKPT_IMPLEMENTED
LINK = $(CC) $(CFLAGS) $(OPENMP)
# Where to, and how fast: tests/check_all.sh has others.
OBJ_DIR = build
OPT_LEVEL = -O1
COMPILE_SRC = $(subst -O2,$(OPT_LEVEL),$(COMPILE)) -Isrc
DEPENDS = -MMD -MP -MT $@ -MF $@.d

MPICC = mpicc
# The CUDA backend: by nvcc an object to link with -lcudart -lstdc++; its tests need only a C++ compiler.
NVCC = nvcc
# Kernels of these, of which nvcc knows CUDA_ARCHS, and PTX of the last: a newer device compiles that when it first runs it
# (a minute).
CUDA_WANTED = 80 90 100
CUDA_ARCHS = $(patsubst compute_%,%,$(filter $(CUDA_WANTED:%=compute_%),$(shell $(NVCC) --list-gpu-arch)))
CUDA_CODE = $(foreach a,$(or $(CUDA_ARCHS),$(error nvcc knows none of $(CUDA_WANTED): choose with CUDA_ARCHS=..)),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
CUDA_LIBS = -L$(dir $(shell command -v $(NVCC)))../lib64 -lcudart -lstdc++
SHIM_FLAGS = -O2 -ffp-contract=off $(shell grep -qsw fma /proc/cpuinfo && echo -mfma)
COMPILE_SHIM = $(CXX) -std=c++17 $(SHIM_FLAGS) -DGCKPT_CUDA_SHIM -DGCKPT_CUDA_SLOT_BYTES=4096 -I.

SPACE := $(subst ,, )
LAYERS := $(shell awk 'sub("/$$", "", $$1) { print $$1 }' src/MANIFEST)
EXAMPLES = build/gpt build/finetune build/accumulation build/bytes build/quickstart build/digits build/strategies build/steps build/graph build/cnn build/simulate
# Tests are sorted by layer: tests/plan/test_lowered.c.
vpath %.c $(wildcard tests/*/)
vpath test_%.sh $(wildcard tests/*/)
CUDA_TESTS = $(basename $(notdir tests/cuda/test_cuda.c $(sort $(wildcard tests/cuda/cuda_*.c))))
TESTS = $(patsubst %.c,build/%,$(sort $(notdir $(filter-out tests/cuda/%,$(wildcard tests/*/test_*.c)))))
SCRIPTS = build/test_programs build/test_finetune build/test_objectives build/test_firmware build/test_small build/test_docs build/test_course build/test_layout
INTERNAL_TESTS := $(patsubst %.c,build/%,$(notdir $(filter-out tests/cuda/%,\
    $(shell grep -lE '^$(HASH)include "(($(subst $(SPACE),|,$(LAYERS)))/|backend.h)' tests/*/test_*.c))))
# Those that take long begin first, then what needs no object.
LONG_TESTS = $(SCRIPTS) build/test_kernels build/test_core build/test_bf16 build/test_fit build/test_plan
LOGS = $(addsuffix .log,$(LONG_TESTS) $(filter-out $(LONG_TESTS),$(INTERNAL_TESTS) $(filter-out $(INTERNAL_TESTS),$(TESTS))))

all: examples

help:
	@echo 'make run       compile for some 40 s, train a small GPT on the text of gradckpt.h for about a minute, sample it'
	@echo 'make shakespeare  train it on Shakespeare, in 16 MB, for some 8 minutes on 2 cores, and sample it'
	@echo 'make test      build and run all tests: a C compiler, make and sh suffice; 2 to 3 minutes on 2 cores'
	@echo 'make check     the wide test, one of each kind: compilers, options, sanitizers, machines, macros, symbols'
	@echo 'make check-all  and the rest of each kind: before a release'
	@echo 'make test-cuda the tests of gradckpt_cuda.cu without a device: a C++ compiler suffices; some 4 minutes'
	@echo 'make cuda      build/gradckpt_cuda.o, to link with -lcudart -lstdc++: nvcc'
	@echo 'make gpu       every test and benchmark that needs a CUDA device: build/gpu.md; STAGES="build right"'
	@echo 'make mpi       build/gpt-mpi, which several processes run, and its tests: OpenMPI; some 4 minutes'
	@echo 'make predict-mpi  predicted and measured time of a step by 1 and 2 processes'
	@echo 'make slow-link   two processes over a link of limited rate'
	@echo 'make scaling   time and bytes of a step by 1 to 8 processes'
	@echo 'make coverage  lines and branches that make test and make check run: clang, some 35 minutes on 2 cores'
	@echo 'make fuzz      SECONDS=60: bytes that nobody meant, to each reader for so long: clang with libFuzzer'
	@echo 'make header    gradckpt.h and gradckpt_cuda.cu from src/, where they are changed'
	@echo 'make architecture  which layer uses which in src/: the drawing of docs/architecture.md'
	@echo 'make examples  build/gpt, finetune, accumulation, bytes, cnn, digits, graph, quickstart, simulate, steps, strategies'
	@echo 'make playground  build/playground.html, plans and training in a browser: clang and lld; build/tiny, the same natively'
	@echo 'make reference  build/reference/index.html, all calls, types and switches, to search and to read in a browser'
	@echo 'make lesson-3  compiles and runs the program of lesson 3 of docs/course; 1 to 7'
	@echo 'make starters  a file for each exercise of the course and of docs/exercises.md, to write answers into: DIR=mine'
	@echo 'make exercise-3.1  whether mine/exercise-3.1.c is right, or what differs; exercise-5: of docs/exercises.md'
	@echo 'make grade     a table of DIR/STUDENT/exercise-N.c, and a log for each: build/class; ONLY="3.1 3.2"'
	@echo 'make slides    build/slides.html, the course to show in a class: one file'
	@echo 'make small     twelve small programs, each for one kind of training, and what they print'
	@echo 'make mcu       firmware of examples/mcu on the boards of QEMU that are installed: the table of docs/device.md'
	@echo 'make bench     every kernel and whole steps compared with the peak of this machine: build/bench.md, .json'
	@echo 'make speed     whole steps compared with PyTorch, where python3 has it: this processor in docs/speed.md, 15 minutes'
	@echo 'make offload   plans with and without offloading: docs/benchmarks/offload.tsv'
	@echo 'make ops       microseconds of every op, forward and backward, by all kernels: to compare two versions by'
	@echo 'make generate  milliseconds a token of GPT-2 124M, weights as f32, bf16, f16, int8, int4, compared with the memory'
	@echo 'make accuracy  how far sums over many rows are from binary64: docs/accuracy.md'
	@echo 'make threads   milliseconds a step while other programs use the processor'
	@echo 'make predict   predicted and measured time of a step, at five budgets'
	@echo 'make small_models  tiny models compared with C loops written for them; the cost of a step and an instruction'
	@echo 'make fastest   the plan predicted best and the fastest of its trials, at ten settings'
	@echo 'make depth     memory and time over depth and plan: docs/depth.md, docs/depth.svg'
	@echo 'make simulate  a step of 8 to 1,024 processes, simulated from its plan'
	@echo 'make ablate    bytes and work of plans of networks and random graphs: to compare searches by (docs/search.md)'
	@echo 'make plans     bytes against time for every way to plan: docs/benchmarks/plans.tsv, docs/plans.svg'
	@echo 'make size      what firmware takes of flash, memory and stack: the table of docs/device.md'
	@echo 'make fits      the largest networks that train in 32 to 512 KB: a table of docs/device.md'
	@echo 'make lora-memory     LoRA on a stack of Llama 13B, planned: the table of docs/finetuning.md'
	@echo 'make methods   ten ways to fine-tune, compared: the table of docs/finetuning.md'
	@echo 'make pictures  graphs, what strategies keep, timelines, a frontier: docs/graph.svg, docs/steps.svg, ...'
	@echo 'make profile      what a model has, where the milliseconds of a step go: tables of docs/memory.md, docs/time.md'
	@echo 'make accumulation-curves    gradient accumulation, right and wrong: docs/accumulation.svg'
	@echo 'make features  what leaving out each part saves: the tables of docs/parts.md, 8 minutes'
	@echo 'make readme    examples/quickstart.c and its output into README.md'
	@echo 'make index     what each file of examples/ is, needs, and its lines: the tables of examples/README.md'
	@echo 'make lib       build/libgradckpt.a, the header compiled once'
	@echo 'make install   header, library, headers of examples/, pkg-config file, CMake package under DESTDIR and PREFIX (now $(PREFIX))'
	@echo 'make dist      build/gradckpt-$(VERSION).tar.gz'
	@echo 'make boards    libraries for Arduino, PlatformIO, ESP-IDF and Zephyr, in build/boards: zip and GNU tar'
	@echo 'make clean     remove build/'
	@echo 'Variables: CC ($(CC)), CFLAGS ($(CFLAGS)), OPENMP ($(OPENMP)), JOBS ($(JOBS)); V=1 shows what is run'

examples: $(EXAMPLES)

# Make again, with a job for each processor.
PARALLEL = MAKEFLAGS= $(MAKE) --no-print-directory -j$(JOBS) CC='$(CC)' CFLAGS='$(CFLAGS)' WARNINGS='$(WARNINGS)' \
    OPENMP='$(OPENMP)' OPENBLAS='$(OPENBLAS)' V='$(V)'
run:
	@$(PARALLEL) build/gpt
	@echo 'training for about a minute'
	build/gpt --steps 1500 --min-lr 1e-4 --micro-batch 4 --budget 17M --eval-every 500 \
	    --sample 400 --prompt 'static int gckpti_'
	@echo
	@echo 'next: what every budget costs, before anything is trained:  build/gpt --plan --micro-batch 4 | more'
	@echo '      the same weights in fewer bytes:  build/gpt --steps 1500 --min-lr 1e-4 --micro-batch 4 --budget 15M'
	@echo '      a text of your own:  build/gpt --data FILE --steps 1500 --save my.safetensors --sample 400'
	@echo '      a program of your own:  docs/tasks.md'

# Validation loss 1.65 or lower within 10 minutes on 2 cores, in 16 MB (docs/learning.md); the text is
# in the public domain. It goes on where it was interrupted with: build/gpt --resume build/shakespeare.safetensors
shakespeare:
	@$(PARALLEL) build/gpt
	build/gpt --data examples/shakespeare.txt --layers 4 --heads 4 --dim 128 --context 128 --batch 16 \
	    --micro-batch auto --budget 16MB --steps 3000 --lr 3e-3 --min-lr 1e-4 --dropout 0.05 --eval-every 500 \
	    --save build/shakespeare.safetensors --sample 500 --prompt 'ROMEO:'

# The first seed of random tests, a number below 2^20 from the hash of the commit; 1 outside a repository.
ifeq ($(origin SEED),undefined)
SEED := $(shell h=$$(git rev-parse -q --verify HEAD 2>/dev/null | cut -c 1-5); printf '%d' "0x$${h:-1}")
endif
export SEED
# Each log is a target: tests run at the same time as other tests and compilers. run.sh prints a line for each log,
# then the sum.
test:
	@rm -f $(LOGS)
	@$(PARALLEL) -k SEED='$(SEED)' $(LOGS) || true
	@sh tests/run.sh sum $(LOGS)

programs: $(TESTS) $(EXAMPLES)

check:
	@CC='$(CC)' JOBS='$(JOBS)' sh tests/check_all.sh

check-all:
	@CC='$(CC)' JOBS='$(JOBS)' sh tests/check_all.sh all

# Every program under the shim's four schedules, streams eager in two of them and lazy in the others.
CUDA_RUNS = $(foreach s,0 1 2 3,$(patsubst %,build/shim/%.$(s).log,$(CUDA_TESTS) nccl_ranks)) build/shim/test_cuda_shim.0.log
test-cuda:
	@rm -f $(CUDA_RUNS)
	@$(PARALLEL) -k CXX='$(CXX)' SHIM_FLAGS='$(SHIM_FLAGS)' $(CUDA_RUNS) || true
	@sh tests/run.sh sum $(CUDA_RUNS)

cuda: build/gradckpt_cuda.o

gpu:
	sh tests/cuda/gpu.sh $(STAGES)

# By nvcc, or all of it on the processor.
gpu-programs: $(addprefix build/cuda/,$(CUDA_TESTS)) build/gpt-cuda build/finetune-cuda build/predict-cuda build/bench-cuda
shim-programs: $(addprefix build/shim/,$(CUDA_TESTS)) build/gpt-shim build/predict-shim build/bench-shim build/launches

mpi: mpi-programs
	@sh tests/ranks/test_mpi.sh

mpi-programs: build/gpt build/gpt-mpi build/mpi_transport build/accumulation-mpi

scaling: build/scaling
	sh tests/bench/scaling.sh

slow-link: build/limited
	sh tests/bench/slow_link.sh

predict-mpi: build/mpi_predict
	for n in 1 2; do OMP_NUM_THREADS=1 mpirun $$([ "$$(id -u)" -ne 0 ] || echo --allow-run-as-root) --oversubscribe \
	    -n $$n build/mpi_predict || exit 1; done

coverage:
	@JOBS='$(JOBS)' sh tests/coverage.sh

SECONDS = 60
# A million steps in runs of 50; 20,000 without an argument: build/long 1000000
build/long: tests/long/long.c build/gradckpt.o
	$(LINKED) -DPLAN_CHECK_OFF='"a long run"' -Itests -o $@ $< build/gradckpt.o $(BLAS_LIBS) -lm -pthread

fuzz:
	@sh tests/fuzz/fuzz.sh $(SECONDS)

small: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o $(BLAS_LIBS)' SHOW=1 sh tests/examples/test_small.sh

mcu: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o $(BLAS_LIBS)' JOBS='$(JOBS)' SHOW=1 sh tests/firmware/test_mcu.sh

bench: build/bench
	build/bench --markdown build/bench.md

# SPEED=--quick: a try.
PYTHON = python3
speed: build/bench
	$(PYTHON) tests/bench/speed.py $(SPEED)

generate: build/generate
	build/generate

predict: build/predict
	build/predict

fastest: build/fastest
	build/fastest
small_models: build/small_models
	build/small_models

accuracy: build/accuracy
	build/accuracy

threads: build/threads
	@(unset OMP_WAIT_POLICY; build/threads) && OMP_WAIT_POLICY=passive build/threads && \
	    OMP_WAIT_POLICY=active build/threads

depth: build/depth
	build/depth docs/depth.md docs/depth.svg

ablate: build/ablate
	build/ablate

offload: build/offload
	build/offload > build/offload.md
	PROCESSOR=- THREADS=- sh tests/bench/record.sh offload build/offload.md planned

ops: build/ops
	build/ops

# The rows of its tables that are recorded.
PLANS_ROWS = per block|rotor with options|optimal|chosen|(chosen, )?(proven: none in|gap)|MB [0-9]+|GPT-2 124M, batch 4 of 1024|SmolLM2-135M, 2048 tokens|GPT, 1000 layers
plans: build/plans
	build/plans build/plans.md docs/plans.svg
	PROCESSOR=- THREADS=1 ROWS='^($(PLANS_ROWS))$$' sh tests/bench/record.sh plans build/plans.md

simulate: build/simulate
	build/simulate
	build/simulate --model llama-7b --budget 40GB

fits: build/fits
	build/fits

lora-memory: build/stack
	build/stack

size: | build
	@CC='$(CC)' sh tests/firmware/size.sh > build/size.md || { cat build/size.md; exit 1; }
	@cat build/size.md
	@! grep -q '| ? |' build/size.md && sh tests/table.sh 'make size' build/size.md docs/device.md

methods: build/finetune
	rm -rf build/methods
	build/finetune --new 4x128x4x128 --model build/methods
	cat README.md docs/*.md > build/methods/prose.txt
	build/finetune --model build/methods --method full --data gradckpt.h --lr 1e-3 --min-lr 1e-4 --steps 600 \
	    --warmup 50 --eval-every 300 --eval-iters 8 --save build/methods/c
	build/finetune --model build/methods/c --method all --data build/methods/prose.txt --retention-data gradckpt.h \
	    --steps 150 --eval-every 50 --eval-iters 4 --save build/methods/tuned

pictures: build/steps build/graph build/gpt
	build/steps docs/steps.svg
	build/graph docs/neuron.svg docs/graph.svg
	build/gpt --plan --threads 1 --timeline docs/timeline.svg > build/timeline.txt
	build/gpt --plan --threads 1 --budget 20M --timeline docs/timeline-20M.svg \
	    --frontier docs/frontier.svg > build/timeline.txt

# Layers and bytes, and where the time goes, between <!-- make profile --> and <!-- --> of two pages.
profile: build/gpt
	(echo '```text' && build/gpt --budget 14M --micro-batch auto --threads 1 --summary | sed '1,/^$$/d' && echo '```') > build/summary.md
	(echo '```text' && build/gpt --budget 14M --micro-batch auto --threads 1 --profile | sed '1,/^$$/d' && echo '```') > build/profile.md
	sh tests/table.sh 'make profile' build/summary.md docs/memory.md
	sh tests/table.sh 'make profile' build/profile.md docs/time.md

playground: build/playground.html build/tiny
	@echo 'open build/playground.html in a browser'
build/playground.html: $(wildcard docs/playground/*) examples/sample.h gradckpt.h
	sh docs/playground/build.sh $@
build/tiny: docs/playground/tiny.c $(wildcard docs/playground/*.h) examples/sample.h examples/options.h build/gradckpt.o
	$(LINKED) -Iexamples -o $@ $< build/gradckpt.o $(BLAS_LIBS)

reference: build/reference/index.html
	@echo 'open $< in a browser'
build/reference/index.html: $(wildcard docs/reference/*) docs/ops.md gradckpt.h
	@mkdir -p $(@D)
	awk -v css=docs/reference/page.css -v js=docs/reference/page.js -f docs/reference/reference.awk docs/ops.md gradckpt.h > $@.new
	mv $@.new $@

# The course: docs/course/README.md. Programs are tries: compiled at -O0, in a moment, and linked with the bodies.
COURSE_LINKED = $(CC) $(subst -O2,-O0,$(CFLAGS)) -Wall -Wno-unused $(OPENMP) $(BLAS) -Ibuild/api -I. -DGRADCKPT_IMPLEMENTED \
    build/gradckpt.o $(BLAS_LIBS)
COURSE = CC='$(CC)' LINKED='$(COURSE_LINKED)' ONLY='$(ONLY)' sh docs/course/tools/course.sh
COURSE_NEEDS = build/gradckpt.o build/api/gradckpt.h build/class/list
DIR = mine
FILE = $(DIR)/$@.c
build/class/list: docs/exercises.md $(wildcard docs/course/*.md docs/course/tools/*)
	$(COURSE) prepare
lesson-%: $(COURSE_NEEDS)
	$(COURSE) lesson $*
exercise-%: $(COURSE_NEEDS)
	@$(COURSE) exercise $* '$(FILE)'
starters: build/class/list
	$(COURSE) starters '$(DIR)'
grade: $(COURSE_NEEDS)
	$(COURSE) grade '$(DIR)'
slides: build/slides.html
	@echo 'open $< in a browser: arrows or a swipe turn the pages'
build/slides.html: $(wildcard docs/course/* docs/course/tools/*)
	@mkdir -p $(@D)
	awk -v css=docs/course/tools/slides.css -v js=docs/course/tools/slides.js -f docs/course/tools/slides.awk \
	    $(sort $(wildcard docs/course/[0-9]-*.md)) > $@.new
	mv $@.new $@

# Between <!-- make index --> and <!-- -->.
index: | build
	sh examples/index.sh > build/index.md
	sh tests/table.sh 'make index' build/index.md examples/README.md

features:
	@mkdir -p build
	CC='$(CC)' sh tests/compile/features.sh table > build/parts.md
	sh tests/table.sh 'make features' build/parts.md docs/parts.md

accumulation-curves: build/accumulation
	build/accumulation docs/accumulation.svg

readme: build/quickstart
	sh tests/readme.sh

# Compile lines are shown by V=1.
ifneq ($(V),1)
.SILENT:
endif

build:
	@mkdir -p build

# gradckpt.h is put together from src/, gradckpt_cuda.cu from src/cuda/. A copy that somebody warn_if_edited builds as it is; the
# check refuses it.
header: | build
	sh src/header.sh src > build/header.h
	cmp -s build/header.h gradckpt.h || cp build/header.h gradckpt.h
	sh src/header.sh src/cuda > build/header.cu
	cmp -s build/header.cu gradckpt_cuda.cu || cp build/header.cu gradckpt_cuda.cu
# $(call warn_if_edited,DIR,FILE)
warn_if_edited = [ ! -d src ] || sh src/header.sh $(1) 2> /dev/null | cmp -s - $(2) || \
    echo 'note: $(2) is not what $(1)/ gives: make header would overwrite it; it is built as it is'

# Between <!-- make architecture --> and <!-- -->.
architecture: | build
	sh tests/layout/layers.sh src > build/architecture.md
	sh tests/table.sh 'make architecture' build/architecture.md docs/architecture.md

# Changes when compiler or options do; then everything is built again.
$(OBJ_DIR)/options: always
	@mkdir -p $(@D)
	@echo '$(COMPILE)' | cmp -s - $@ || echo '$(COMPILE)' > $@

# Of the library, too: -fPIC, so that it can go into a shared one, takes no time that could be measured.
ifeq ($(FROM),src) # the same of the files of src/: tests/coverage.sh
build/gradckpt.o: $(OBJ_DIR)/libsrc.a
	$(LD) -r --whole-archive $< -o $@
else
build/gradckpt.o: tests/compile/implementation.c gradckpt.h $(OBJ_DIR)/options
	@$(call warn_if_edited,src,gradckpt.h)
	@echo 'compiling gradckpt.h, some 40 s'
	$(COMPILE) -fPIC -c -o $@ $<
endif

lib: build/libgradckpt.a
build/libgradckpt.a: build/gradckpt.o
	rm -f $@
	$(AR) rcs $@ $<

build/api/gradckpt.h: src/api.h
	@mkdir -p $(@D)
	cp $< $@
build/plan_check.o: tests/compile/plan_check.c build/api/gradckpt.h $(OBJ_DIR)/options
	$(LINKED) $(DEPENDS) -DPLAN_CHECK_LINKED -c -o $@ $<

# The files of src/, each by itself: in $(OBJ_DIR)/libsrc.a.
ISAS = 0 1 2 3
KERNEL_OBJECTS := $(ISAS:%=$(OBJ_DIR)/src/kernels/%.o)
SRC_OBJECTS := $(patsubst %.c,$(OBJ_DIR)/src/%.o,$(shell awk '$$1 ~ /\/.*\.c$$/ && $$1 !~ /^kernels/ { print $$1 }' src/MANIFEST))
$(OBJ_DIR)/libsrc.a: $(SRC_OBJECTS) $(KERNEL_OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $^
# The same as one object, for scripts that link by a page's line with a gradckpt.o.
build/libsrc.o: $(SRC_OBJECTS) $(KERNEL_OBJECTS)
	$(LD) -r -o $@ $^
$(KERNEL_OBJECTS): $(OBJ_DIR)/src/kernels/%.o: src/kernels/all.c $(OBJ_DIR)/options
	@mkdir -p $(@D)
	$(COMPILE_SRC) $(DEPENDS) -DGCKPTI_ISA=$* -c -o $@ $<
# These compute.
$(KERNEL_OBJECTS) $(filter $(addprefix $(OBJ_DIR)/src/,num/% ops/% cpu/%),$(SRC_OBJECTS)): OPT_LEVEL = -O2
$(SRC_OBJECTS): $(OBJ_DIR)/src/%.o: src/%.c $(OBJ_DIR)/options
	@mkdir -p $(@D)
	@$(if $(wildcard $(OBJ_DIR)/libsrc.a),,$(if $(filter %/base/host.o,$@),echo 'compiling src/: some 40 s on 2 processors'))
	$(COMPILE_SRC) $(DEPENDS) -c -o $@ $<

$(EXAMPLES:build/%=build/o/%.o): build/o/%.o: examples/%.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(LINKED) $(DEPENDS) -c -o $@ $<
$(EXAMPLES): build/%: build/o/%.o $(OBJ_DIR)/libsrc.a
	$(LINK) -o $@ $(filter %.o %.a,$^) $(BLAS_LIBS)

$(TESTS:build/%=build/o/%.o): build/o/%.o: %.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(subst -O2,$(TEST_OPT),$(if $(filter build/$*,$(INTERNAL_TESTS)),$(COMPILE) -Isrc,$(LINKED))) -Ibuild/api -Itests \
	    $(DEPENDS) -DPLAN_CHECK_LINKED -c -o $@ $<
$(TESTS): build/%: build/o/%.o build/plan_check.o
	$(LINK) -o $@ $(filter %.o %.a,$^) $(BLAS_LIBS) $(LIBS)
$(TESTS): LIBS = -lm
$(TESTS): $(OBJ_DIR)/libsrc.a
# Most tests compute little themselves.
TEST_OPT = -O0
build/o/test_bf16.o build/o/test_kernels.o build/o/test_numerics.o: TEST_OPT = -O1
build/o/test_amx.o build/o/test_ops.o build/o/test_accuracy.o build/o/test_user_ops.o build/o/test_convolutions.o: TEST_OPT = -O2
build/o/test_search.o build/o/test_random.o build/o/test_ranks%.o build/o/test_recurrent.o: TEST_OPT = -O1
build/test_ops: build/ref.o
build/ref.o: tests/ops/ref.c $(OBJ_DIR)/options
	$(COMPILE) $(DEPENDS) -c -o $@ $<
build/test_offload build/test_threads build/test_ranks build/test_ranks_backend build/test_ranks_faults build/test_ranks_random: LIBS = -lm -pthread
build/test_simulate build/overlap: LIBS = -lm -pthread
-include $(wildcard build/*.d build/o/*.d $(OBJ_DIR)/src/*/*.d)

$(TESTS:=.log): build/%.log: build/%
	@./$< > $@ 2>&1; echo "exit status $$?" >> $@; sh tests/run.sh each $@
$(SCRIPTS:=.log): build/%.log: %.sh tests/checks.sh $(EXAMPLES) build/libsrc.o
	@CC='$(CC)' LINKED='$(LINKED) build/libsrc.o $(BLAS_LIBS)' sh $< > $@ 2>&1; \
	    echo "exit status $$?" >> $@; sh tests/run.sh each $@

build/gradckpt_cuda.o: gradckpt_cuda.cu gradckpt.h $(OBJ_DIR)/options
	@$(call warn_if_edited,src/cuda,$<)
	$(NVCC) -O3 -std=c++17 -fmad=false -Xcompiler -Wall $(CUDA_CODE) -c -o $@ $<

# Of the tests, each as its own object; those that use public names only share one of the header.
build/o build/shim build/cuda:
	@mkdir -p $@

build/shim/gradckpt_cuda.o: gradckpt_cuda.cu gradckpt.h tests/cuda/cuda_shim.h $(OBJ_DIR)/options | build/shim
	@$(call warn_if_edited,src/cuda,$<)
	$(COMPILE_SHIM) -include tests/cuda/cuda_shim.h -x c++ -c -o $@ $<

build/shim/gradckpt.o: tests/compile/implementation.c gradckpt.h $(OBJ_DIR)/options | build/shim
	$(filter-out -fopenmp,$(COMPILE)) -c -o $@ $<

IS_INTERNAL = $(shell grep -lE '^$(HASH)include "($(subst $(SPACE),|,$(LAYERS)))/|run/test_backend.c' $<)
COMPILE_CUDA_TEST = $(CC) $(subst -O2,-O1,$(CFLAGS)) -Wall -Wextra -Wno-unused-function -I. -Itests \
    $(if $(IS_INTERNAL),-Isrc,-DGRADCKPT_IMPLEMENTED)
$(addprefix build/shim/,$(CUDA_TESTS) nccl_ranks): build/shim/%: tests/cuda/%.c gradckpt.h build/shim/gradckpt_cuda.o build/shim/gradckpt.o build/libsrc.a
	$(COMPILE_CUDA_TEST) $(DEPENDS) -DGCKPT_CUDA_SHIM -c -o $@.o $<
	$(CXX) $(LINK_FLAGS) -o $@ $@.o build/shim/gradckpt_cuda.o $(filter %_engine.o,$^) \
	    $(if $(IS_INTERNAL),build/libsrc.a $(OPENMP),build/shim/gradckpt.o) -lm -pthread
-include $(wildcard build/shim/*.d)

# examples/nccl.h on the shim's NCCL.
build/shim/nccl_ranks: build/shim/nccl_transport.o
build/shim/nccl_transport.o: tests/cuda/nccl_transport.cpp tests/cuda/nccl.h tests/cuda/cuda_shim.h examples/nccl.h gradckpt.h $(OBJ_DIR)/options | build/shim
	$(COMPILE_SHIM) -Itests/cuda -include tests/cuda/cuda_shim.h -c -o $@ $<

build/shim/test_cuda_shim: tests/cuda/test_cuda_shim.cpp tests/cuda/cuda_shim.h tests/check.h $(OBJ_DIR)/options | build/shim
	$(CXX) -std=c++17 $(SHIM_FLAGS) $(LINK_FLAGS) -Itests -o $@ $<

# NAME.0.log .. NAME.3.log: by schedule; eager streams in the even ones
define SHIM_RUN
build/shim/%.$(1).log: build/shim/%
	@CUDA_SHIM_SCHEDULE=$(1) CUDA_SHIM_LAZY=$$$$(($(1) % 2)) ./$$< > $$@ 2>&1; \
	    echo "exit status $$$$?" >> $$@; sh tests/run.sh each $$@
endef
$(foreach s,0 1 2 3,$(eval $(call SHIM_RUN,$(s))))

# On a device.
$(addprefix build/cuda/,$(CUDA_TESTS)): build/cuda/%: tests/cuda/%.c gradckpt.h build/gradckpt_cuda.o build/shim/gradckpt.o build/libsrc.a | build/cuda
	$(COMPILE_CUDA_TEST) -o $@ $< build/gradckpt_cuda.o $(if $(IS_INTERNAL),build/libsrc.a $(OPENMP),build/shim/gradckpt.o) \
	    $(CUDA_LIBS) -lm -pthread
build/gpt-cuda build/finetune-cuda: build/%-cuda: examples/%.c $(wildcard examples/*.h) build/gradckpt.o build/gradckpt_cuda.o
	$(LINKED) -DSESSION_CUDA -o $@ $< build/gradckpt.o build/gradckpt_cuda.o $(BLAS_LIBS) $(CUDA_LIBS) -lm
# By mpicc.
MPI_COMPILE = $(MPICC) $(CFLAGS) -ffp-contract=off $(WARNINGS) $(OPENMP) $(BLAS) -I. -Itests -DGRADCKPT_IMPLEMENTED
build/gpt-mpi: examples/gpt.c $(wildcard examples/*.h) build/libsrc.a
	$(MPI_COMPILE) -DGPT_MPI -o $@ $< build/libsrc.a $(BLAS_LIBS)
build/accumulation-mpi: examples/accumulation.c $(wildcard examples/*.h) build/libsrc.a
	$(MPI_COMPILE) -DACCUMULATION_MPI -o $@ $< build/libsrc.a $(BLAS_LIBS)
build/mpi_transport build/mpi_predict build/scaling: $(wildcard examples/*.h tests/*.h tests/ranks/*.h tests/bench/*.h) build/libsrc.a
build/mpi_transport build/mpi_predict: build/%: tests/ranks/%.c
	$(MPI_COMPILE) -o $@ $< build/libsrc.a $(BLAS_LIBS)
build/limited: tests/bench/slow_link.c $(wildcard examples/*.h tests/bench/*.h) build/gradckpt.o
	$(LINKED) -Itests -I. -o $@ $< build/gradckpt.o $(BLAS_LIBS) -lm
build/scaling: tests/bench/scaling.c
	$(MPI_COMPILE) -o $@ $< build/libsrc.a $(BLAS_LIBS)
build/predict-cuda: tests/bench/predict.c tests/bench/model.h $(wildcard examples/*.h) build/gradckpt.o build/gradckpt_cuda.o
	$(LINKED) -DBENCH_CUDA -Iexamples -o $@ $< build/gradckpt.o build/gradckpt_cuda.o $(BLAS_LIBS) $(CUDA_LIBS) -lm
build/bench-cuda: tests/bench/cuda.cu gradckpt_cuda.cu gradckpt.h | build
	$(NVCC) -O3 -std=c++17 -fmad=false $(CUDA_CODE) -I. -o $@ $< -lcublas
# The same with the shim's kernels and a cuBLAS of its own: what tests/cuda/gpu.sh runs is right before a device does.
build/gpt-shim.o: examples/gpt.c $(wildcard examples/*.h) build/gradckpt.o
	$(LINKED) -DSESSION_CUDA -c -o $@ $<
build/predict-shim.o: tests/bench/predict.c tests/bench/model.h $(wildcard examples/*.h) build/gradckpt.o
	$(LINKED) -DBENCH_CUDA -Iexamples -c -o $@ $<
build/gpt-shim build/predict-shim: build/%-shim: build/%-shim.o build/gradckpt.o build/shim/gradckpt_cuda.o
	$(CXX) $(LINK_FLAGS) $(OPENMP) -o $@ $< build/gradckpt.o build/shim/gradckpt_cuda.o $(BLAS_LIBS) -lm -pthread
build/bench-shim: tests/bench/cuda.cu tests/cuda/cublas_v2.h tests/cuda/cuda_shim.h gradckpt_cuda.cu gradckpt.h | build
	$(COMPILE_SHIM) -DGCKPT_CUDA_WIDE=1024 -Itests/cuda -include tests/cuda/cuda_shim.h -x c++ -o $@ $<
# Counts what a step launches; no kernel runs.
build/launches: tests/bench/launches.cu tests/bench/model.h tests/cuda/cuda_shim.h gradckpt_cuda.cu gradckpt.h | build
	$(CXX) -std=c++17 -O1 -DGCKPT_CUDA_SHIM -I. -Itests/cuda -x c++ -o $@ $<

BENCHES = build/ablate build/accuracy build/bench build/overlap build/depth build/fastest build/fits build/generate build/offload build/ops build/plans \
          build/predict build/small_models build/stack build/threads
$(BENCHES:build/%=build/o/%.o): build/o/%.o: tests/bench/%.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(LINKED) -Ibuild/api -Iexamples $(BENCH_INCLUDES) $(DEPENDS) -c -o $@ $<
$(BENCHES): build/%: build/o/%.o build/gradckpt.o
	$(LINK) -o $@ $(filter %.o,$^) $(BLAS_LIBS) -lm $(filter -pthread,$(LIBS))
build/o/ablate.o: BENCH_INCLUDES = -Itests
build/o/plans.o build/o/fits.o: BENCH_INCLUDES = -Isrc # fields of structs, nothing to call
build/small_models: build/by_hand.o
build/by_hand.o: tests/bench/by_hand.c tests/bench/by_hand.h $(OBJ_DIR)/options
	$(CC) -std=gnu99 -O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math $(WARNINGS) -c -o $@ $<

VERSION = $(shell awk '/define GCKPT_VERSION_/ { v = v s $$3; s = "." } END { print v }' gradckpt.h)
INCLUDE = $(DESTDIR)$(PREFIX)/include
LIBRARIES = $(DESTDIR)$(LIBDIR)
SHARE = $(DESTDIR)$(PREFIX)/share/gradckpt
# Where LIBDIR is below PREFIX, the CMake package finds all from where it lies itself, and may be moved. Who links
# needs what the object was compiled with: OPENMP, BLAS_LIBS.
install: build/libgradckpt.a
	mkdir -p '$(INCLUDE)' '$(SHARE)/examples' '$(LIBRARIES)/pkgconfig' '$(LIBRARIES)/cmake/gradckpt'
	cp gradckpt.h '$(INCLUDE)'
	cp gradckpt_cuda.cu '$(SHARE)'
	cp examples/*.h examples/README.md '$(SHARE)/examples'
	cp build/libgradckpt.a '$(LIBRARIES)'
	cp examples/packaging/cmake/gradckptConfig.cmake examples/packaging/cmake/gradckptConfigVersion.cmake \
	    '$(LIBRARIES)/cmake/gradckpt'
	prefix='$(PREFIX)' && libdir='$(LIBDIR)' && root=$$prefix && below=$${libdir#"$$prefix"/} && \
	if [ "$$below" != "$$libdir" ]; then \
	    libdir='$${prefix}'/$$below && \
	    root='$${gradckpt_here}/../../'$$(echo "$$below" | sed 's,[^/][^/]*,..,g'); \
	fi && \
	printf '%s\n' "prefix=$$prefix" 'includedir=$${prefix}/include' "libdir=$$libdir" \
	    'examples=$${prefix}/share/gradckpt/examples' '' 'Name: gradckpt' \
	    'Description: trains neural networks inside a byte budget, to the same bits' \
	    'Version: $(VERSION)' 'Cflags: -I$${includedir} -ffp-contract=off' \
	    'Libs: $(strip -L$${libdir} -lgradckpt $(OPENMP) $(BLAS_LIBS))' > '$(LIBRARIES)/pkgconfig/gradckpt.pc' && \
	printf '%s\n' 'get_filename_component(gradckpt_here "$${CMAKE_CURRENT_LIST_DIR}" REALPATH)' \
	    "set(gradckpt_root \"$$root\")" 'set(gradckpt_archive "$${gradckpt_here}/../../libgradckpt.a")' \
	    'set(gradckpt_link "$(strip $(OPENMP) $(BLAS_LIBS))")' > '$(LIBRARIES)/cmake/gradckpt/gradckptInstalled.cmake'
	chmod 644 '$(INCLUDE)/gradckpt.h' '$(SHARE)/gradckpt_cuda.cu' '$(SHARE)'/examples/* '$(LIBRARIES)/libgradckpt.a' \
	    '$(LIBRARIES)/pkgconfig/gradckpt.pc' '$(LIBRARIES)'/cmake/gradckpt/*.cmake

# What git tracks, as it is now (`stash create` fails where files have new times only: hence the refresh); outside a
# repository, as in what such an archive unpacks to, all of it.
ARCHIVED = .ci .clang-format .gitattributes .gitignore LICENSE Makefile README.md docs examples gradckpt.h gradckpt_cuda.cu src tests
dist: | build
	if [ -e .git ] && git rev-parse -q --verify HEAD > /dev/null; then \
	    git update-index -q --refresh > /dev/null; \
	    changed=$$(git -c user.name=dist -c user.email=dist stash create) && \
	    git archive --prefix=gradckpt-$(VERSION)/ "$${changed:-HEAD}"; \
	else \
	    tar -cf - --sort=name --owner=0 --group=0 --numeric-owner --transform='s,^,gradckpt-$(VERSION)/,' $(ARCHIVED); \
	fi > build/gradckpt-$(VERSION).tar
	gzip -9nf build/gradckpt-$(VERSION).tar

# The header as boards' own tools take it; sketches get plans that are printed now.
boards: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o $(BLAS_LIBS)' sh examples/packaging/boards.sh

clean:
	rm -rf build

always:

.PHONY: always all help examples programs header architecture run shakespeare test test-cuda cuda gpu gpu-programs shim-programs check check-all mpi mpi-programs predict-mpi scaling slow-link coverage fuzz small mcu bench speed generate accuracy threads predict fastest small_models depth plans ablate offload ops simulate fits lora-memory size methods features accumulation-curves pictures profile playground reference starters grade slides index readme lib install dist boards clean
