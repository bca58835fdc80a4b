# SPDX-License-Identifier: Apache-2.0
# A front door to Meson and Ninja. `make help` lists what there is.
BUILD ?= build
PREFIX ?= /usr/local

SLICES ?= 20
SLICE ?= 1s
SPACE ?= 20GiB

.PHONY: all test check check-deep check-engines mutants faults replay bench bench-peers bench-engines bench-prestage bench-choice bench-hot bench-prefill check-gpu demo demo-pod install format clean help deps deps-check

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja: | deps
	@tools/setup.sh $(BUILD) --prefix $(PREFIX)

deps:
	@tools/deps.sh build

deps-check:
	@tools/deps.sh build check bench demo

# Two more than there are cores: some tests only wait.
test: all
	@meson test -C $(BUILD) --no-rebuild --suite unit --no-suite slow --print-errorlogs \
		--num-processes $$(($$(nproc) + 2))

check: deps-check
	@tools/check.sh

check-deep: deps-check
	@tools/check.sh deep

check-engines:
	@tools/deps.sh build check demo
	@$(MAKE) --no-print-directory all
	@tools/check-engines.sh $(ENGINES)

mutants: all
	@tools/mutants $(BUILD) $(MUTANTS)

bench: all
	@tools/deps.sh bench
	@bench/bench.py --build $(BUILD) --slices $(SLICES) --slice $(SLICE) --space $(SPACE) \
		$(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(BENCHES)

# Less of everything than `make bench`: three to four sides take turns, with each peer and size.
bench-peers: SLICES = 6
bench-peers: SLICE = 500ms
bench-peers: SPACE = 2GiB
bench-peers: all
	@tools/deps.sh peers
	@bench/bench_peers.py --build $(BUILD) --slices $(SLICES) --slice $(SLICE) --space $(SPACE) \
		$(if $(SIZES),--sizes $(SIZES)) $(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(PEERS)

# Conversations with hints and without: arrived in time, stalls, bytes for nothing, others' latency.
bench-prestage: all
	@bench/bench_prestage.py --build $(BUILD) $(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(PRESTAGE)

# On a GPU, with PyTorch: a prefix computed, and loaded by another process.
bench-prefill: all
	@bench/bench_prefill.py --build $(BUILD) --json $(BUILD)/prefill.json $(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(PREFILL)

# What a real GPU's driver says to what the fake one of the tests says.
check-gpu: all
	@test/gpu/gpu.py --build $(BUILD) $(if $(BENCH_DIR),--dir $(BENCH_DIR))

# Eight clients on one block beside eight on different ones, and gets of a pod that is gone.
bench-hot: all
	@bench/bench_hot.py --build $(BUILD) --json $(BUILD)/hot.json $(if $(BENCH_DIR),--dir $(BENCH_DIR))

# Load or compute, on throttled paths to a real pod, by a model of an engine, with small and large
# prefixes, or by llama.cpp or vLLM.
bench-choice: all
	@$(if $(LLAMA),tools/deps.sh demo)
	@bench/bench_choice.py --build $(BUILD) $(if $(LLAMA),--llama) $(if $(VLLM),--vllm) \
		$(if $(CHOICE),,--name choice$(if $(LLAMA),_llama)$(if $(VLLM),_vllm)) $(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(CHOICE)
	@$(if $(LLAMA)$(VLLM)$(CHOICE),,bench/bench_choice.py --build $(BUILD) --block-kib 2048 --paths 0,10000000,0 \
		--rounds 2 --full-rounds 20 --name choice_large $(if $(BENCH_DIR),--dir $(BENCH_DIR)))
	@$(if $(LLAMA)$(VLLM)$(CHOICE),,bench/bench_choice.py --build $(BUILD) --inside --paths 10000000,0,10000000,0,1000000,0 \
		--rounds 3 --name choice_inside $(if $(BENCH_DIR),--dir $(BENCH_DIR)))
	@$(if $(LLAMA)$(VLLM)$(CHOICE),,bench/bench_choice.py --build $(BUILD) --inside --block-kib 2048 --paths 0,10000000,0 \
		--rounds 2 --full-rounds 20 --name choice_inside_large $(if $(BENCH_DIR),--dir $(BENCH_DIR)))

bench-engines: ROUNDS = 7
bench-engines: all
	@tools/deps.sh peers
	@bench/bench_engines.py --build $(BUILD) --rounds $(ROUNDS) $(if $(SIDES),--sides $(SIDES)) \
		$(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(MATCHES)

# Of one fault alone, as in FAULT='black hole', into another file.
faults: all
	@test/faults/faults.py --bars $(if $(OTHER),--other $(OTHER)) $(BUILD) $(BUILD)/$(if $(FAULT),fault.json '$(FAULT)',faults.json)

# One seed of the simulated pod, step by step, as a failure prints it.
replay: all
	@test -n '$(SEED)' || { echo 'usage: make replay SEED=N [LIBICMS=1] [SIM="--large --brief"]'; exit 2; }
	@$(BUILD)/test/sim/$(if $(LIBICMS),pod_lib_test,pod_test) --seed $(SEED) $(SIM) --chatty --verbose

demo: deps
	@tools/deps.sh demo
	@demo/run.sh $(BUILD) $(if $(SECURE),--secure)

demo-pod: all
	@demo/living.py $(BUILD) --bars $(if $(MINUTES),--minutes $(MINUTES))

# A PREFIX that is given here counts, too: it is in the service files, so they are made again.
install: all
	$(if $(filter-out file,$(origin PREFIX)),@meson configure --prefix $(PREFIX) $(BUILD) && \
		ninja -C $(BUILD) > /dev/null)
	@meson install -C $(BUILD) --no-rebuild

format:
	@git ls-files -z -- '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format -i

clean:
	rm -rf build build-asan build-tsan build-fuzz

help:
	@echo 'make           compile into $(BUILD)/, with gcc'
	@echo 'make test      the tests for every edit, under a minute on two cores: suite unit without slow'
	@echo 'make check     all tests that fit in 25 minutes: gcc, clang with sanitizers, a Linux guest'
	@echo '               in QEMU, the demo in short form; ends with N passed, N failed, N skipped'
	@echo 'make check-deep  the long forms: ThreadSanitizer, long campaigns, fuzzing'
	@echo 'make check-engines  vLLM, LMCache, SGLang, NIXL, llama.cpp and Python on icms; they are'
	@echo '               installed into $(BUILD)/; ENGINES="nixl vllm" takes some'
	@echo 'make mutants   break lines of the sources, one at a time (test/mutants), and print which test'
	@echo '               notices; MUTANTS="agent store-index" takes those with such a name'
	@echo 'make faults    break a pod of four enclosures in several ways and measure what clients notice;'
	@echo '               writes $(BUILD)/faults.json; doc/faults.md has a table; FAULT_TIMES=5,'
	@echo '               FAULT="black hole" measures that one; with OTHER=DIR, the build folder of another'
	@echo '               version, "versions mixed" too'
	@echo 'make replay    one seed of the simulated pod again, every step of it printed; SEED=7, LIBICMS=1: with'
	@echo '               libicms as its clients, SIM="--large --brief": the other options of the run'
	@echo 'make bench     measure icms beside the ceilings of this machine; writes doc/benchmarks.md;'
	@echo '               SLICES=6 SLICE=500ms SPACE=4GiB shortens it, BENCHES="store wire" takes some,'
	@echo '               BENCH_DIR says where drive files go'
	@echo 'make bench-peers  measure icms beside other programs; writes doc/peers.md; PEERS="redis nixl"'
	@echo '               takes some, SIZES=256KiB,1MiB some sizes, SLICES, SLICE, SPACE, BENCH_DIR as above'
	@echo 'make bench-engines  vLLM with icms, with its own storage and with LMCache; a part of'
	@echo '               doc/benchmarks.md; MATCHES="reuse no-reuse" takes some, SIDES=fs,icms-agent'
	@echo '               some sides, ROUNDS=3 shortens it, BENCH_DIR as above'
	@echo 'make bench-prestage  conversations with hints (icms_prestage) and without, by a model of an'
	@echo '               engine; fails where bars are missed; PRESTAGE="--leads 2 --requests 80" are its options, BENCH_DIR as above'
	@echo 'make bench-hot  eight clients that ask for one block, beside as many that ask for different ones, and'
	@echo '               gets of a pod that is gone; fails where they miss their bars; BENCH_DIR as above'
	@echo 'make bench-choice  load or compute, on paths of several bandwidths, by a model of an engine; writes doc/benchmarks.md, fails likewise;'
	@echo '               LLAMA=1: by llama.cpp, VLLM=1: by vLLM; CHOICE="--paths 1000000 --rounds 2" are its options, BENCH_DIR as above'
	@echo 'make bench-prefill  on a GPU, with PyTorch: a prefix of up to 128k tokens computed, and loaded by another process from'
	@echo '               memory, pod and drive; PREFILL="--model DIR --tokens 2048,8192" are its options, BENCH_DIR as above'
	@echo 'make check-gpu  puts and gets of memory of a real GPU, in order of streams, and what engines do wrong; needs PyTorch'
	@echo 'make demo      a real model on a pod of two enclosures and two GPU servers; SECURE=1: with'
	@echo '               authentication, TLS and an encrypted volume'
	@echo 'make demo-pod  a pod of four enclosures and six servers, each a network namespace, that changes, fails and'
	@echo '               is repaired under load, by bars for a quiet machine; writes $(BUILD)/living.json and'
	@echo '               living.svg; MINUTES=60'
	@echo 'make install   into $(PREFIX); set PREFIX and DESTDIR as usual'
	@echo 'make format    clang-format over all C and C++ files'
	@echo 'make clean     remove what was built'
	@echo 'Missing Debian packages are installed first, by tools/deps.sh.'
