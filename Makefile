# gradckpt.h is one header and is used without building. This file builds the examples and tests, builds the header as
# a library (make lib, make install), and generates the header from src/ (make header). `make help` lists the targets.
# They need a C compiler, make and sh; `make check` also uses other compilers and emulators.

CC = cc
CFLAGS = -O2 -std=gnu99
WARNINGS = -Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion \
           -Wcast-qual -Wcast-align -Wundef -Wstrict-prototypes
PREFIX = /usr/local
LIBDIR = $(PREFIX)/lib
DESTDIR =

# -fopenmp if the compiler supports it; OPENMP= switches it off. The results have the same bits.
HASH := \#
OPENMP := $(shell d=$$(mktemp -d) && \
    printf '$(HASH)include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' > $$d/t.c && \
    $(CC) -fopenmp $$d/t.c -o $$d/t 2>/dev/null && $$d/t && echo -fopenmp; rm -rf "$$d")
# OpenMP's threads sleep between steps; during a step the header makes them wait actively (docs/building.md).
OMP_WAIT_POLICY ?= passive
export OMP_WAIT_POLICY
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# -ffp-contract=off keeps the compiler from fusing products and sums in the programs, so that their bits are the same
# everywhere.
COMPILE = $(CC) $(CFLAGS) -ffp-contract=off $(WARNINGS) $(OPENMP) -I.
# Programs that use only public names include the declarations alone, build/api/gradckpt.h; GRADCKPT_IMPLEMENTED says
# that the definitions are linked. Examples and tests are linked with build/libsrc.a, whose objects are the files of
# src/, so that a change in one file recompiles only that file. Benchmarks and other programs are linked with
# build/gradckpt.o.
LINKED = $(subst -I.,-Ibuild/api -I.,$(COMPILE)) -DGRADCKPT_IMPLEMENTED
LINK = $(CC) $(CFLAGS) $(OPENMP)
# Folder of the objects of src/, and optimisation of the files that compute little; tests/check_all.sh sets other
# values.
OBJ_DIR = build
OPT_LEVEL = -O1
COMPILE_SRC = $(subst -O2,$(OPT_LEVEL),$(COMPILE)) -Isrc
DEPENDS = -MMD -MP -MT $@ -MF $@.d

MPICC = mpicc
# The CUDA backend is compiled by nvcc and linked with -lcudart -lstdc++. Its tests need only a C++ compiler.
NVCC = nvcc
# Compute capabilities to compile for, if nvcc knows them (CUDA_ARCHS), and PTX of the first one, which any other device
# compiles at its first run. That takes minutes.
CUDA_WANTED = 80 90 100 120
CUDA_ARCHS = $(patsubst 90,90a,$(patsubst compute_%,%,$(filter $(CUDA_WANTED:%=compute_%),$(shell $(NVCC) --list-gpu-arch))))
CUDA_CODE = $(foreach a,$(or $(CUDA_ARCHS),$(error nvcc knows none of $(CUDA_WANTED): choose with CUDA_ARCHS=..)),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(firstword $(CUDA_ARCHS)),code=compute_$(firstword $(CUDA_ARCHS))
CUDA_LIBS = -L$(dir $(shell command -v $(NVCC)))../lib64 -lcudart -lstdc++
SHIM_FLAGS = -O2 -Wno-psabi -ffp-contract=off $(shell grep -qsw fma /proc/cpuinfo && echo -mfma)
COMPILE_SHIM = $(CXX) -std=c++17 $(SHIM_FLAGS) -DGCKPT_CUDA_SHIM -DGCKPT_CUDA_SLOT_BYTES=4096 -I.

SPACE := $(subst ,, )
LAYERS := $(shell awk 'sub("/$$", "", $$1) { print $$1 }' src/MANIFEST)
EXAMPLES = build/gpt build/finetune build/classify build/audit build/accumulation build/bytes build/quickstart build/digits build/strategies build/steps build/graph build/cnn build/simulate
# Each layer of src/ has a folder of tests, such as tests/plan/test_lowered.c.
vpath %.c $(wildcard tests/*/)
vpath test_%.sh $(wildcard tests/*/)
CUDA_TESTS = $(basename $(notdir tests/cuda/test_cuda.c $(sort $(wildcard tests/cuda/cuda_*.c))))
TESTS = $(patsubst %.c,build/%,$(sort $(notdir $(filter-out tests/cuda/%,$(wildcard tests/*/test_*.c)))))
SCRIPTS = build/test_programs build/test_from_scratch build/test_finetune build/test_classify build/test_objectives build/test_audit build/test_firmware build/test_small build/test_docs build/test_course build/test_layout
INTERNAL_TESTS := $(patsubst %.c,build/%,$(notdir $(filter-out tests/cuda/%,\
    $(shell grep -lE '^$(HASH)include "(($(subst $(SPACE),|,$(LAYERS)))/|backend.h)' tests/*/test_*.c))))
# The order in which tests start: long ones, then those that use internal names, then the others.
LONG_TESTS = $(SCRIPTS) build/test_kernels build/test_core build/test_bf16 build/test_fit build/test_plan
LOGS = $(addsuffix .log,$(LONG_TESTS) $(filter-out $(LONG_TESTS),$(INTERNAL_TESTS) $(filter-out $(INTERNAL_TESTS),$(TESTS))))

all: examples

define HELP
Start
  make run           compile, train a small GPT for about a minute, sample it
  make shakespeare   train it on Shakespeare in 16 MB, for about 8 minutes
  make examples      build the example programs: build/gpt, build/finetune, ...
  make small         build and run thirteen small programs
Learn
  make lesson-3      compile and run the program of a lesson of docs/course
  make exercise-5    check your answer mine/exercise-5.c (docs/exercises.md)
  make playground    build/playground.html, plans and training in a browser
  make reference     build/reference/index.html, every call, type and option
Use
  make lib           build/libgradckpt.a, the header compiled once
  make install       library, headers, pkg-config and CMake files below PREFIX
  make cuda          build/gradckpt_cuda.o, compiled by nvcc
  make mcu           run firmware on the boards that QEMU emulates
Change
  make header        put gradckpt.h and gradckpt_cuda.cu together from src/
                     EDITION=core PARTS=bf16: a smaller build/core/gradckpt.h
  make test          build and run all tests: 2 to 3 minutes on 2 cores
  make check         compilers, options, sanitizers, other machines: 30 minutes

make help-all lists all targets.
Variables: CC ($(CC)), CFLAGS ($(CFLAGS)), OPENMP ($(OPENMP)),
JOBS ($(JOBS)), PREFIX ($(PREFIX)); V=1 prints the commands.
endef
define HELP_ALL
Programs
  make all            the same as make examples
  make programs       build all tests and examples
  make mpi            build/gpt-mpi, for several processes, and test it: OpenMPI
  make clean          remove build/
Learn
  make relay          one training on four machines, and audits by five
  make starters       a file for each exercise, to write answers in: DIR=mine
  make grade          check DIR/STUDENT/exercise-N.c of a class: ONLY="3.1 3.2"
  make slides         build/slides.html, the course to show in a class
Tests
  make test-cuda      test gradckpt_cuda.cu without a device: about 4 minutes
  make gpu            all that needs a CUDA device: STAGES="build right"
  make gpu-programs   build the programs of make gpu by nvcc
  make shim-programs  build them for the CPU's simulation of CUDA
  make mpi-programs   build the programs of make mpi
  make check-all      all compilers and machines: before a release
  make coverage       lines and branches that tests run: clang, 35 minutes
  make fuzz           random bytes to each reader: libFuzzer, SECONDS=60
Measurements; most are recorded in docs/benchmarks/*.tsv
  make benchmarks     docs/benchmarks.md from docs/benchmarks/*.tsv
  make bench          kernels and steps compared with the peak: build/bench.md
  make speed          nets, ops and GPTs compared with PyTorch: 45 minutes
  make small_models   tiny models compared with C loops; the cost of a step
  make generate       milliseconds per token of GPT-2 124M
  make ops            microseconds of every op, to compare two versions
  make threads        milliseconds per step while other programs run
  make predict        predicted and measured time of a step at five budgets
  make fastest        the plan predicted best and the fastest that was tried
  make profile        where the milliseconds of a step go
  make accuracy       errors of sums and functions compared with binary64
  make plans          bytes and time of every way to plan: docs/plans.svg
  make depth          bytes and cost of every way to plan over depth
  make ablate         plans of many graphs, to compare versions of the search
  make offload        plans with and without offloading
  make overlap        offloading with and without overlap, measured
  make scaling        time and bytes of a step on 1 to 8 processes: OpenMPI
  make slow-link      two processes over a link of limited rate: root
  make predict-mpi    predicted and measured time of a step on 2 processes
  make simulate       a step of 8 to 1,024 processes, simulated from its plan
  make size           flash, memory and stack of firmware
  make fits           the largest networks that train in 32 to 512 KB
  make lora-memory    LoRA on a Llama of 13 billion weights, planned
  make methods        ten ways to fine-tune, compared
  make features       what leaving out each part saves: 8 minutes
Pages and pictures
  make architecture   the drawing of layers in docs/architecture.md
  make index          the tables of examples/README.md
  make ops-page       docs/ops.md from the comments in src/api.h
  make readme         the program of README.md and its output
  make pictures       the pictures of docs/ that examples draw
  make accumulation-curves  docs/accumulation.svg
Packages
  make dist           build/gradckpt-$(VERSION).tar.gz, and the editions core and mcu
  make boards         for Arduino, PlatformIO, ESP-IDF and Zephyr: zip, GNU tar
endef
help: ; @: $(info $(HELP))
help-all: ; @: $(info $(HELP)) $(info ) $(info $(HELP_ALL))

examples: $(EXAMPLES)

# Runs make again with a job for each processor.
PARALLEL = MAKEFLAGS= $(MAKE) --no-print-directory -j$(JOBS) CC='$(CC)' CFLAGS='$(CFLAGS)' WARNINGS='$(WARNINGS)' \
    OPENMP='$(OPENMP)' V='$(V)'
run:
	@$(PARALLEL) build/gpt
	@echo 'training for about a minute'
	build/gpt --steps 1500 --min-lr 1e-4 --micro-batch 4 --budget 17M --eval-every 500 \
	    --sample 400 --prompt 'static int gckpti_'
	@echo
	@echo 'next: the cost of every budget, before training:  build/gpt --plan --micro-batch 4 | more'
	@echo '      the same weights in fewer bytes:  build/gpt --steps 1500 --min-lr 1e-4 --micro-batch 4 --budget 15M'
	@echo '      train on your text:  build/gpt --data FILE --steps 1500 --save my.safetensors --sample 400'
	@echo '      write a program:  docs/tasks.md'

# Reaches a validation loss of 1.54 in 16 MB; the text is in the public domain. After an interruption, continue with
# build/gpt --resume build/shakespeare.safetensors
shakespeare:
	@$(PARALLEL) build/gpt
	build/gpt --data examples/shakespeare.txt --layers 4 --heads 4 --dim 128 --context 128 --batch 16 \
	    --micro-batch auto --budget 16MB --steps 3000 --lr 3e-3 --min-lr 1e-4 --dropout 0.05 --eval-every 500 \
	    --save build/shakespeare.safetensors --sample 500 --prompt 'ROMEO:'

# The first seed of random tests: the first 20 bits of the commit's hash, or 1 outside a repository.
ifeq ($(origin SEED),undefined)
SEED := $(shell h=$$(git rev-parse -q --verify HEAD 2>/dev/null | cut -c 1-5); printf '%d' "0x$${h:-1}")
endif
export SEED
# Each log is a target, so that tests run at the same time as other tests and compilers. run.sh prints a line for each
# log, then the sum.
test:
	@rm -f $(LOGS)
	@$(PARALLEL) -k SEED='$(SEED)' $(LOGS) || true
	@sh tests/run.sh sum $(LOGS)

programs: $(TESTS) $(EXAMPLES)

check:
	@CC='$(CC)' JOBS='$(JOBS)' sh tests/check_all.sh

check-all:
	@CC='$(CC)' JOBS='$(JOBS)' sh tests/check_all.sh all

# The CUDA tests on the CPU's simulation of CUDA (the shim): each program under four schedules, two with eager streams
# and two with lazy ones.
CUDA_RUNS = $(foreach s,0 1 2 3,$(patsubst %,build/shim/%.$(s).log,$(CUDA_TESTS) nccl_ranks)) build/shim/test_cuda_shim.0.log
test-cuda:
	@rm -f $(CUDA_RUNS)
	@$(PARALLEL) -k CXX='$(CXX)' SHIM_FLAGS='$(SHIM_FLAGS)' $(CUDA_RUNS) || true
	@sh tests/run.sh sum $(CUDA_RUNS)

cuda: build/gradckpt_cuda.o

gpu:
	sh tests/cuda/gpu.sh $(STAGES)

# The programs that make gpu runs: compiled by nvcc for a device, or compiled with the shim.
gpu-programs: $(addprefix build/cuda/,$(CUDA_TESTS)) build/gpt-cuda build/finetune-cuda build/predict-cuda build/bench-cuda
shim-programs: $(addprefix build/shim/,$(CUDA_TESTS)) build/gpt-shim build/predict-shim build/bench-shim build/launches

mpi: mpi-programs
	@sh tests/dist/test_mpi.sh

mpi-programs: build/gpt build/audit build/gpt-mpi build/mpi_transport build/accumulation-mpi

# $(call RECORD,TOPIC,NAME) prints the tables in build/NAME.md and records them in docs/benchmarks/TOPIC.tsv, as cases
# that begin with NAME. RECORD_PLANNED is for values that are the same on every machine.
RECORD = cat build/$(2).md && sh tests/bench/record.sh $(1) build/$(2).md $(2)
RECORD_PLANNED = cat build/$(2).md && PROCESSOR=- THREADS=- sh tests/bench/record.sh $(1) build/$(2).md $(2)

scaling: build/scaling
	sh tests/bench/scaling.sh > build/scaling.md
	export OMP_NUM_THREADS=1; $(call RECORD,distributed,scaling)

slow-link: build/limited
	sh tests/bench/slow_link.sh > build/slow-link.md
	export OMP_NUM_THREADS=1; ! grep skipped build/slow-link.md || exit 0; $(call RECORD,distributed,slow-link)

predict-mpi: build/mpi_predict
	for n in 1 2; do OMP_NUM_THREADS=1 mpirun $$([ "$$(id -u)" -ne 0 ] || echo --allow-run-as-root) --oversubscribe \
	    -n $$n build/mpi_predict || exit 1; done > build/predict-mpi.md
	export OMP_NUM_THREADS=1; $(call RECORD,distributed,predict-mpi)

coverage:
	@JOBS='$(JOBS)' sh tests/coverage.sh

SECONDS = 60
# Many steps in runs of 50: build/long [STEPS], 20,000 by default.
build/long: tests/long/long.c build/gradckpt.o
	$(LINKED) -DPLAN_CHECK_OFF='"a long run"' -Isrc -Itests -o $@ $< build/gradckpt.o -lm -pthread

fuzz:
	@sh tests/fuzz/fuzz.sh $(SECONDS)

small: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o' SHOW=1 sh tests/examples/test_small.sh

mcu: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o' JOBS='$(JOBS)' SHOW=1 sh tests/firmware/test_mcu.sh

bench: build/bench
	build/bench --markdown build/bench.md

# SPEED=--quick measures one short round and records nothing; SPEED=--check only compares losses.
PYTHON = python3
speed: build/bench build/nets
	$(PYTHON) tests/bench/speed.py $(SPEED)

generate: build/generate
	build/generate

predict: build/predict
	build/predict > build/predict.md || { cat build/predict.md; exit 1; }
	export OMP_NUM_THREADS=1; $(call RECORD,time,predict)

fastest: build/fastest
	build/fastest > build/fastest.md
	export OMP_NUM_THREADS=1; $(call RECORD,time,fastest)

small_models: build/small_models
	build/small_models > build/small_models.md
	export OMP_NUM_THREADS=1; $(call RECORD,speed,small_models)

accuracy: build/accuracy
	build/accuracy > build/accuracy.md
	$(call RECORD_PLANNED,accuracy,accuracy)

threads: build/threads
	@(unset OMP_WAIT_POLICY; build/threads) > build/threads.md && OMP_WAIT_POLICY=passive build/threads >> build/threads.md && \
	    OMP_WAIT_POLICY=active build/threads >> build/threads.md
	$(call RECORD,speed,threads)

depth: build/depth
	build/depth > build/depth.md
	export ROWS="^layers (12|24|48)$$"; $(call RECORD_PLANNED,depth,depth)

ablate: build/ablate
	build/ablate

offload: build/offload
	build/offload > build/offload.md
	cat build/offload.md && PROCESSOR=- THREADS=- sh tests/bench/record.sh offload build/offload.md planned

overlap: build/overlap
	build/overlap > build/overlap.md
	export OMP_NUM_THREADS=1; cat build/overlap.md && sh tests/bench/record.sh offload build/overlap.md run

ops: build/ops
	build/ops

# The rows of the tables of make plans that are recorded in docs/benchmarks/plans.tsv.
PLANS_ROWS = per block|rotor with options|optimal|chosen|(chosen, )?(proven: none in|gap)|MB [0-9]+|GPT-2 124M, batch 4 of 1024|SmolLM2-135M, 2048 tokens|GPT, 1000 layers
plans: build/plans
	build/plans build/plans.md docs/plans.svg
	PROCESSOR=- THREADS=1 ROWS='^($(PLANS_ROWS))$$' sh tests/bench/record.sh plans build/plans.md

simulate: build/simulate
	(build/simulate && build/simulate --model llama-7b --budget 40GB) > build/simulate.md
	$(call RECORD_PLANNED,distributed,simulate)

fits: build/fits
	build/fits > build/fits.md
	$(call RECORD_PLANNED,device,fits)

lora-memory: build/stack
	build/stack > build/lora-memory.md
	$(call RECORD_PLANNED,finetuning,lora-memory)

size: | build
	@CC='$(CC)' sh tests/firmware/size.sh > build/size.md || { cat build/size.md; exit 1; }
	@! grep '| ? |' build/size.md && $(call RECORD_PLANNED,device,size)

methods: build/finetune
	rm -rf build/methods
	build/finetune --new 4x128x4x128 --model build/methods
	cat README.md docs/*.md > build/methods/prose.txt
	build/finetune --model build/methods --method full --data gradckpt.h --lr 1e-3 --min-lr 1e-4 --steps 600 \
	    --warmup 50 --eval-every 300 --eval-iters 8 --save build/methods/c
	build/finetune --model build/methods/c --method all --data build/methods/prose.txt --retention-data gradckpt.h \
	    --steps 150 --eval-every 50 --eval-iters 4 --save build/methods/tuned > build/methods.md
	$(call RECORD,finetuning,methods)

pictures: build/steps build/graph build/gpt
	build/steps docs/steps.svg
	build/graph docs/neuron.svg docs/graph.svg
	build/gpt --plan --threads 1 --timeline docs/timeline.svg > build/timeline.txt
	build/gpt --plan --threads 1 --budget 20M --timeline docs/timeline-20M.svg \
	    --frontier docs/frontier.svg > build/timeline.txt

# Prints the layers and bytes of build/gpt's default model and the time of each op in its step.
profile: build/gpt
	build/gpt --budget 14M --micro-batch auto --threads 1 --summary
	build/gpt --budget 14M --micro-batch auto --threads 1 --profile

playground: build/playground.html build/tiny
	@echo 'open build/playground.html in a browser'
build/playground.html: $(wildcard docs/playground/* docs/playground/libc/* examples/*.h) docs/course/relay.h gradckpt.h
	sh docs/playground/build.sh $@
build/tiny: docs/playground/tiny.c $(wildcard docs/playground/*.h) examples/sample.h examples/options.h build/gradckpt.o
	$(LINKED) -Iexamples -o $@ $< build/gradckpt.o

reference: build/reference/index.html
	@echo 'open $< in a browser'
build/reference/index.html: $(wildcard docs/reference/*) docs/ops.md gradckpt.h
	@mkdir -p $(@D)
	awk -v css=docs/reference/page.css -v js=docs/reference/page.js -f docs/reference/reference.awk docs/ops.md gradckpt.h > $@.new
	mv $@.new $@

# The course (docs/course/README.md). Its programs are compiled at -O0, which is fast, and linked with build/gradckpt.o.
COURSE_LINKED = $(CC) $(subst -O2,-O0,$(CFLAGS)) -ffp-contract=off -Wall -Wno-unused $(OPENMP) -Ibuild/api -I. -DGRADCKPT_IMPLEMENTED \
    build/gradckpt.o
COURSE = CC='$(CC)' LINKED='$(COURSE_LINKED)' ONLY='$(ONLY)' sh docs/course/tools/course.sh
COURSE_NEEDS = build/gradckpt.o build/api/gradckpt.h build/class/list
DIR = mine
FILE = $(DIR)/$@.c
build/class/list: docs/exercises.md $(wildcard docs/course/*.md docs/course/scratch/*.md docs/course/tools/*)
	$(COURSE) prepare
lesson-%: $(COURSE_NEEDS)
	$(COURSE) lesson $*
exercise-%: $(COURSE_NEEDS)
	@$(COURSE) exercise $* '$(FILE)'
relay: build/gradckpt.o build/api/gradckpt.h build/shim/gradckpt_cuda.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o' sh docs/course/tools/relay.sh
	@[ "$$(wc -l < build/relay/audits.txt)" -lt 5 ] || cp build/relay/relay.svg docs/relay.svg
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

# Generates the log of measured values from the files that tests/bench/record.sh writes.
benchmarks: | build
	LC_ALL=C awk -f tests/bench/log.awk docs/benchmarks/*.tsv > build/benchmarks.md
	cmp -s build/benchmarks.md docs/benchmarks.md || cp build/benchmarks.md docs/benchmarks.md

# Generates docs/ops.md: a row for each op, with the first sentence of the comment in src/api.h and PyTorch's name.
ops-page: build/api/gradckpt.h | build
	awk -f docs/reference/ops.awk docs/reference/ops.txt $< > build/ops.md
	cmp -s build/ops.md docs/ops.md || cp build/ops.md docs/ops.md

# Replaces the text between <!-- make index --> and <!-- -->.
index: | build
	sh examples/index.sh > build/index.md
	sh tests/table.sh 'make index' build/index.md examples/README.md

features: | build
	CC='$(CC)' sh tests/compile/features.sh table > build/features.md
	export OMP_NUM_THREADS=1; cat build/features.md && sh tests/bench/record.sh features build/features.md

accumulation-curves: build/accumulation
	build/accumulation docs/accumulation.svg

readme: build/quickstart
	sh tests/readme.sh

# V=1 prints the commands.
ifneq ($(V),1)
.SILENT:
endif

build:
	@mkdir -p build

# Generates gradckpt.h from src/ and gradckpt_cuda.cu from src/cuda/. A generated file that was edited by hand is
# built as it is, with a note; make check refuses it. With EDITION (src/EDITIONS), writes build/EDITION/gradckpt.h instead,
# without the lines of the parts that the edition and PARTS ("dist -losses") lack.
EDITION =
PARTS =
header: | build
ifneq ($(EDITION),)
	mkdir -p build/$(EDITION)
	sh src/header.sh src $(EDITION) "$(PARTS)" > build/header.h
	mv build/header.h build/$(EDITION)/gradckpt.h
else
	sh src/header.sh src > build/header.h
	cmp -s build/header.h gradckpt.h || cp build/header.h gradckpt.h
	sh src/header.sh src/cuda > build/header.cu
	cmp -s build/header.cu gradckpt_cuda.cu || cp build/header.cu gradckpt_cuda.cu
endif
# $(call warn_if_edited,DIR,FILE) prints a note if FILE is not what DIR generates.
warn_if_edited = [ ! -d src ] || sh src/header.sh $(1) 2> /dev/null | cmp -s - $(2) || \
    echo 'note: $(2) differs from what make header generates from $(1)/; it is built as it is'

# Replaces the text between <!-- make architecture --> and <!-- -->.
architecture: | build
	sh tests/layout/layers.sh src > build/architecture.md
	sh tests/table.sh 'make architecture' build/architecture.md docs/architecture.md

# Changes when the compiler or its options change; then everything is built again.
$(OBJ_DIR)/options: always
	@mkdir -p $(@D)
	@echo '$(COMPILE)' | cmp -s - $@ || echo '$(COMPILE)' > $@

# The object is also that of make lib: -fPIC allows it in a shared library and costs no measurable time.
ifeq ($(FROM),src) # tests/coverage.sh builds it from the files of src/
build/gradckpt.o: $(OBJ_DIR)/libsrc.a
	$(LD) -r --whole-archive $< -o $@
else
build/gradckpt.o: tests/compile/implementation.c gradckpt.h $(OBJ_DIR)/options
	@$(call warn_if_edited,src,gradckpt.h)
	@echo 'compiling gradckpt.h, about 19 s'
	$(COMPILE) -fPIC -c -o $@ $<
endif

lib: build/libgradckpt.a
build/libgradckpt.a: build/gradckpt.o
	rm -f $@
	$(AR) rcs $@ $<

build/api/gradckpt.h: src/api.h $(wildcard src/*/api.h)
	@mkdir -p $(@D)
	awk '/^#include "[a-z0-9_]+\/api\.h"$$/ { split($$0, at, "\""); while ((getline < ("src/" at[2])) > 0) print; next } { print }' $< > $@
build/plan_check.o: tests/compile/plan_check.c build/api/gradckpt.h $(OBJ_DIR)/options
	$(LINKED) -Isrc $(DEPENDS) -DPLAN_CHECK_LINKED -c -o $@ $<

# $(OBJ_DIR)/libsrc.a has the files of src/, each compiled separately, except that those of a layer in ONE_TEXT are one text.
ISAS = 0 2 3
ONE_TEXT := store graph ops plan search run files export
layer_files = $(shell awk '$$1 ~ /\/$$/ { layer = $$1 } layer == "$1/" && $$1 ~ /\/.*\.[ch]$$/ { print $$1 }' src/MANIFEST)
KERNEL_OBJECTS := $(ISAS:%=$(OBJ_DIR)/src/kernels/%.o)
SRC_OBJECTS := $(patsubst %.c,$(OBJ_DIR)/src/%.o,$(filter-out $(foreach layer,$(ONE_TEXT),$(call layer_files,$(layer))),$(shell awk '$$1 == "kernels/" { exit } $$1 ~ /\/.*\.c$$/ { print $$1 }' src/MANIFEST)))
TEXT_OBJECTS := $(ONE_TEXT:%=$(OBJ_DIR)/src/%/all.o)
COMPUTING := $(patsubst %.c,$(OBJ_DIR)/src/%.o,$(shell awk '$$1 ~ /\/$$/ { layer = $$1 } layer ~ /^(num|cpu)\/$$/ && $$1 ~ /\.c$$/ { print $$1 }' src/MANIFEST))
$(OBJ_DIR)/libsrc.a: $(SRC_OBJECTS) $(TEXT_OBJECTS) $(KERNEL_OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $^
# build/libsrc.o has the same files as one object, for scripts that run compile lines of pages, which link a
# gradckpt.o.
build/libsrc.o: $(SRC_OBJECTS) $(TEXT_OBJECTS) $(KERNEL_OBJECTS)
	$(LD) -r -o $@ $^
$(KERNEL_OBJECTS): $(OBJ_DIR)/src/kernels/%.o: src/kernels/all.c $(OBJ_DIR)/options
	@mkdir -p $(@D)
	$(COMPILE_SRC) $(DEPENDS) -DGCKPTI_ISA=$* -c -o $@ $<
# The files that compute are compiled at -O2.
$(KERNEL_OBJECTS) $(COMPUTING) $(OBJ_DIR)/src/ops/all.o: OPT_LEVEL = -O2
$(SRC_OBJECTS): $(OBJ_DIR)/src/%.o: src/%.c $(OBJ_DIR)/options
	@mkdir -p $(@D)
	@$(if $(wildcard $(OBJ_DIR)/libsrc.a),,$(if $(filter %/base/host.o,$@),echo 'compiling src/: about 40 s on 2 processors'))
	$(COMPILE_SRC) $(DEPENDS) -c -o $@ $<
$(TEXT_OBJECTS): $(OBJ_DIR)/src/%/all.o: src/MANIFEST $(OBJ_DIR)/options
	@mkdir -p $(@D)
	printf '#include "%s"\n' $(filter-out %/per_isa_begin.h %/loops.h %/rows.h %/isa_end.h %/per_isa_end.h,$(call layer_files,$*)) | $(COMPILE_SRC) $(DEPENDS) -c -o $@ -x c -

$(EXAMPLES:build/%=build/o/%.o): build/o/%.o: examples/%.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(LINKED) $(DEPENDS) -c -o $@ $<
$(EXAMPLES): build/%: build/o/%.o $(OBJ_DIR)/libsrc.a
	$(LINK) -o $@ $(filter %.o %.a,$^)

$(TESTS:build/%=build/o/%.o): build/o/%.o: %.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(subst -O2,$(TEST_OPT),$(if $(filter build/$*,$(INTERNAL_TESTS)),$(COMPILE) -Isrc,$(LINKED))) -Ibuild/api -Itests \
	    $(DEPENDS) -DPLAN_CHECK_LINKED -c -o $@ $<
$(TESTS): build/%: build/o/%.o build/plan_check.o
	$(LINK) -o $@ $(filter %.o %.a,$^) $(LIBS)
$(TESTS): LIBS = -lm
$(TESTS): $(OBJ_DIR)/libsrc.a
# Most tests compute little themselves and are compiled at -O0.
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
	@CC='$(CC)' LINKED='$(LINKED) build/libsrc.o' sh $< > $@ 2>&1; \
	    echo "exit status $$?" >> $@; sh tests/run.sh each $@

build/gradckpt_cuda.o: gradckpt_cuda.cu gradckpt.h $(OBJ_DIR)/options
	@$(call warn_if_edited,src/cuda,$<)
	$(NVCC) -O3 -std=c++17 -fmad=false -Xcompiler -Wall $(CUDA_CODE) -c -o $@ $<

# Folders of objects: programs, CUDA tests on the shim, CUDA tests on a device.
build/o build/shim build/cuda:
	@mkdir -p $@

build/shim/gradckpt_cuda.o: gradckpt_cuda.cu gradckpt.h tests/cuda/cuda_shim.h $(OBJ_DIR)/options | build/shim
	@$(call warn_if_edited,src/cuda,$<)
	$(COMPILE_SHIM) -include tests/cuda/cuda_shim.h -x c++ -c -o $@ $<

build/shim/gradckpt.o: tests/compile/implementation.c gradckpt.h $(OBJ_DIR)/options | build/shim
	$(filter-out -fopenmp,$(COMPILE)) -c -o $@ $<

IS_INTERNAL = $(shell grep -lE '^$(HASH)include "($(subst $(SPACE),|,$(LAYERS)))/|devices/test_backend.c' $<)
COMPILE_CUDA_TEST = $(CC) $(subst -O2,-O1,$(CFLAGS)) -Wall -Wextra -Wno-unused-function -I. -Itests \
    -Isrc $(if $(IS_INTERNAL),,-DGRADCKPT_IMPLEMENTED)
$(addprefix build/shim/,$(CUDA_TESTS) nccl_ranks): build/shim/%: tests/cuda/%.c gradckpt.h build/shim/gradckpt_cuda.o build/shim/gradckpt.o build/libsrc.a
	$(COMPILE_CUDA_TEST) $(DEPENDS) -DGCKPT_CUDA_SHIM -c -o $@.o $<
	$(CXX) $(LINK_FLAGS) -o $@ $@.o build/shim/gradckpt_cuda.o $(filter %_transport.o,$^) \
	    $(if $(IS_INTERNAL),build/libsrc.a $(OPENMP),build/shim/gradckpt.o) -lm -pthread
-include $(wildcard build/shim/*.d)

# Tests examples/nccl.h with the shim's NCCL.
build/shim/nccl_ranks: build/shim/nccl_transport.o
build/shim/nccl_transport.o: tests/cuda/nccl_transport.cpp tests/cuda/nccl.h tests/cuda/cuda_shim.h examples/nccl.h gradckpt.h $(OBJ_DIR)/options | build/shim
	$(COMPILE_SHIM) -Itests/cuda -include tests/cuda/cuda_shim.h -c -o $@ $<

build/shim/test_cuda_shim: tests/cuda/test_cuda_shim.cpp tests/cuda/cuda_shim.h tests/check.h $(OBJ_DIR)/options | build/shim
	$(CXX) -std=c++17 $(SHIM_FLAGS) $(LINK_FLAGS) -Itests -o $@ $<

# NAME.0.log to NAME.3.log are the logs of the four schedules; the even ones have eager streams.
define SHIM_RUN
build/shim/%.$(1).log: build/shim/%
	@CUDA_SHIM_SCHEDULE=$(1) CUDA_SHIM_LAZY=$$$$(($(1) % 2)) ./$$< > $$@ 2>&1; \
	    echo "exit status $$$$?" >> $$@; sh tests/run.sh each $$@
endef
$(foreach s,0 1 2 3,$(eval $(call SHIM_RUN,$(s))))

# CUDA tests for a device.
$(addprefix build/cuda/,$(CUDA_TESTS)): build/cuda/%: tests/cuda/%.c gradckpt.h build/gradckpt_cuda.o build/shim/gradckpt.o build/libsrc.a | build/cuda
	$(COMPILE_CUDA_TEST) -o $@ $< build/gradckpt_cuda.o $(if $(IS_INTERNAL),build/libsrc.a $(OPENMP),build/shim/gradckpt.o) \
	    $(CUDA_LIBS) -lm -pthread
build/gpt-cuda build/finetune-cuda: build/%-cuda: examples/%.c $(wildcard examples/*.h) build/gradckpt.o build/gradckpt_cuda.o
	$(LINKED) -DSESSION_CUDA -o $@ $< build/gradckpt.o build/gradckpt_cuda.o $(CUDA_LIBS) -lm
# Programs compiled by mpicc.
MPI_COMPILE = $(MPICC) $(CFLAGS) -ffp-contract=off $(WARNINGS) $(OPENMP) -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED
build/gpt-mpi: examples/gpt.c $(wildcard examples/*.h) build/libsrc.a
	$(MPI_COMPILE) -DGPT_MPI -o $@ $< build/libsrc.a
build/accumulation-mpi: examples/accumulation.c $(wildcard examples/*.h) build/libsrc.a
	$(MPI_COMPILE) -DACCUMULATION_MPI -o $@ $< build/libsrc.a
build/mpi_transport build/mpi_predict build/scaling: $(wildcard examples/*.h tests/*.h tests/dist/*.h tests/bench/*.h) build/libsrc.a
build/mpi_transport build/mpi_predict: build/%: tests/dist/%.c
	$(MPI_COMPILE) -o $@ $< build/libsrc.a
build/limited: tests/bench/slow_link.c $(wildcard examples/*.h tests/bench/*.h) build/gradckpt.o
	$(LINKED) -Itests -I. -o $@ $< build/gradckpt.o -lm
build/scaling: tests/bench/scaling.c
	$(MPI_COMPILE) -o $@ $< build/libsrc.a
build/predict-cuda: tests/bench/predict.c tests/bench/model.h $(wildcard examples/*.h) build/gradckpt.o build/gradckpt_cuda.o
	$(LINKED) -DBENCH_CUDA -Iexamples -o $@ $< build/gradckpt.o build/gradckpt_cuda.o $(CUDA_LIBS) -lm
build/bench-cuda: tests/bench/cuda.cu gradckpt_cuda.cu gradckpt.h | build
	$(NVCC) -O3 -std=c++17 -fmad=false $(CUDA_CODE) -I. -o $@ $< -lcublas
# The programs of make gpu with the shim's kernels and cuBLAS: for a test of tests/cuda/gpu.sh that needs no device.
build/gpt-shim.o: examples/gpt.c $(wildcard examples/*.h) build/gradckpt.o
	$(LINKED) -DSESSION_CUDA -c -o $@ $<
build/predict-shim.o: tests/bench/predict.c tests/bench/model.h $(wildcard examples/*.h) build/gradckpt.o
	$(LINKED) -DBENCH_CUDA -Iexamples -c -o $@ $<
build/gpt-shim build/predict-shim: build/%-shim: build/%-shim.o build/gradckpt.o build/shim/gradckpt_cuda.o
	$(CXX) $(LINK_FLAGS) $(OPENMP) -o $@ $< build/gradckpt.o build/shim/gradckpt_cuda.o -lm -pthread
build/bench-shim: tests/bench/cuda.cu tests/cuda/cublas_v2.h tests/cuda/cuda_shim.h gradckpt_cuda.cu gradckpt.h | build
	$(COMPILE_SHIM) -Itests/cuda -include tests/cuda/cuda_shim.h -x c++ -o $@ $<
# Counts the kernel launches of a step and runs none of them.
build/launches: tests/bench/launches.cu tests/bench/model.h tests/cuda/cuda_shim.h gradckpt_cuda.cu gradckpt.h | build
	$(CXX) -std=c++17 -O1 -Wno-psabi -DGCKPT_CUDA_SHIM -I. -Itests/cuda -x c++ -o $@ $<

BENCHES = build/ablate build/accuracy build/bench build/overlap build/depth build/fastest build/fits build/generate build/offload build/ops build/plans \
          build/nets build/predict build/small_models build/stack build/storage build/threads
$(BENCHES:build/%=build/o/%.o): build/o/%.o: tests/bench/%.c build/api/gradckpt.h $(OBJ_DIR)/options | build/o
	$(LINKED) -Ibuild/api -Iexamples $(BENCH_INCLUDES) $(DEPENDS) -c -o $@ $<
$(BENCHES): build/%: build/o/%.o build/gradckpt.o
	$(LINK) -o $@ $(filter %.o,$^) -lm $(filter -pthread,$(LIBS))
build/o/ablate.o: BENCH_INCLUDES = -Isrc -Itests
build/o/plans.o build/o/fits.o: BENCH_INCLUDES = -Isrc # they read fields of internal structs
build/small_models: build/by_hand.o
build/by_hand.o: tests/bench/by_hand.c tests/bench/by_hand.h $(OBJ_DIR)/options
	$(CC) -std=gnu99 -O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math $(WARNINGS) -c -o $@ $<

VERSION = $(shell awk '/define GCKPT_VERSION_/ { v = v s $$3; s = "." } END { print v }' gradckpt.h)
INCLUDE = $(DESTDIR)$(PREFIX)/include
LIBRARIES = $(DESTDIR)$(LIBDIR)
SHARE = $(DESTDIR)$(PREFIX)/share/gradckpt
# If LIBDIR is below PREFIX, the CMake package finds its files relative to itself, so the installation may be moved.
# Programs are linked with the options that the object was compiled with: OPENMP.
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
	    'Libs: $(strip -L$${libdir} -lgradckpt $(OPENMP))' > '$(LIBRARIES)/pkgconfig/gradckpt.pc' && \
	printf '%s\n' 'get_filename_component(gradckpt_here "$${CMAKE_CURRENT_LIST_DIR}" REALPATH)' \
	    "set(gradckpt_root \"$$root\")" 'set(gradckpt_archive "$${gradckpt_here}/../../libgradckpt.a")' \
	    'set(gradckpt_link "$(strip $(OPENMP))")' > '$(LIBRARIES)/cmake/gradckpt/gradckptInstalled.cmake'
	chmod 644 '$(INCLUDE)/gradckpt.h' '$(SHARE)/gradckpt_cuda.cu' '$(SHARE)'/examples/* '$(LIBRARIES)/libgradckpt.a' \
	    '$(LIBRARIES)/pkgconfig/gradckpt.pc' '$(LIBRARIES)'/cmake/gradckpt/*.cmake

# Archives the tracked files as they are now; outside a repository (in an unpacked archive), all files of ARCHIVED.
# `git stash create` fails if only the times of files have changed, so the index is refreshed before.
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
	for edition in core mcu; do sh src/header.sh src $$edition > build/gradckpt-$(VERSION)-$$edition.h || exit 1; done

# Packages the header for the tools of boards. The sketches in the packages get plans that this target prints.
boards: build/gradckpt.o
	@CC='$(CC)' LINKED='$(LINKED) build/gradckpt.o' sh examples/packaging/boards.sh

clean:
	rm -rf build

always:

.PHONY: always all help help-all benchmarks overlap examples programs header architecture run shakespeare test \
    test-cuda cuda gpu gpu-programs shim-programs check check-all mpi mpi-programs predict-mpi scaling slow-link \
    coverage fuzz small mcu bench speed generate accuracy threads predict fastest small_models depth plans ablate \
    offload ops simulate fits lora-memory size methods features accumulation-curves pictures profile playground \
    reference relay starters grade slides index ops-page readme lib install dist boards clean
