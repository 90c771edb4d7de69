# Strict shell: a failing command fails its recipe, also in a pipe.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BUF_VERSION := 1.75.0
PROTOC_GEN_GO_VERSION := v1.36.12
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
PROTOC_GEN_ES_VERSION := 2.17.0
PROTOC_GEN_OPENAPIV2_VERSION := v2.33.0
# What Debian 12 and 13 and Ubuntu 24.04 have.
PROTOC_VERSION := 3.21.12
PROTOC_GRPC_VERSION := 1.51.1
STATICCHECK_VERSION := v0.8.1
HEALTH_PROBE_VERSION := v0.4.63

# Tools live in directories named by their version, so a new version is a new
# target and nothing of the machine's own is used.
TOOLS := $(CURDIR)/.tools
BUF := $(TOOLS)/buf-$(BUF_VERSION)/node_modules/.bin/buf
PROTOC_GEN_GO := $(TOOLS)/protoc-gen-go-$(PROTOC_GEN_GO_VERSION)/protoc-gen-go
PROTOC_GEN_GO_GRPC := $(TOOLS)/protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION)/protoc-gen-go-grpc
PROTOC_GEN_ES := $(TOOLS)/protoc-gen-es-$(PROTOC_GEN_ES_VERSION)/node_modules/.bin/protoc-gen-es
PROTOC_GEN_OPENAPIV2 := $(TOOLS)/protoc-gen-openapiv2-$(PROTOC_GEN_OPENAPIV2_VERSION)/protoc-gen-openapiv2
# Runs a command that finds protoc, and its plugin for Python.
WITH_PROTOC := $(TOOLS)/protoc-$(PROTOC_VERSION)/run
# Also the plugins and libraries for Java and C++.
WITH_JAVA_CPP := $(TOOLS)/java-cpp-$(PROTOC_VERSION)/run
# A browser and a proxy, for the tests of the edge.
CHROMIUM := $(TOOLS)/chromium/chromium
NGINX := $(TOOLS)/nginx/nginx
STATICCHECK := $(TOOLS)/staticcheck-$(STATICCHECK_VERSION)/staticcheck
HEALTH_PROBE := $(TOOLS)/grpc-health-probe-$(HEALTH_PROBE_VERSION)/grpc-health-probe

# Where what is built goes.
BIN := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
BUILD := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

# What is installed, or fetched. Set them to have the tests use another program.
FANFARE_TEST_CHROMIUM ?= $(or $(shell command -v chromium || command -v google-chrome),$(CHROMIUM))
FANFARE_TEST_NGINX ?= $(or $(shell PATH="$$PATH:/usr/sbin" command -v nginx),$(NGINX))
export FANFARE_TEST_CHROMIUM FANFARE_TEST_NGINX

EDGE_TOOLS := $(filter $(TOOLS)/%,$(FANFARE_TEST_CHROMIUM) $(FANFARE_TEST_NGINX))

# The race detector needs a C compiler. Without one the tests run without it.
RACE := $(if $(shell command -v gcc || command -v clang),-race)
GO_TEST := go test $(RACE) -p 2

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | while IFS=$$'\t' read -r t d; do printf '  %-15s %s\n' "$$t" "$$d"; done

.PHONY: build
build: ## Build bin/fanfare, one static file
	$(BUILD) -o '$(BIN)/fanfare' ./cmd/fanfare

.PHONY: run
run: build ## Build, and serve on the embedded store; FLAGS are for fanfare serve
	@'$(BIN)/fanfare' serve --drain-delay 0 $(FLAGS)

.PHONY: chat
chat: build $(filter $(TOOLS)/%,$(FANFARE_TEST_NGINX)) ## Build, and run the chat of examples/chat: three replicas behind nginx; CHAT are flags
	$(BUILD) -o '$(BIN)/chat' ./examples/chat
	@deploy/postgres.sh run '$(BIN)/chat' demo --fanfare '$(BIN)/fanfare' $(CHAT)

.PHONY: test
test: $(HEALTH_PROBE) $(EDGE_TOOLS) ## Run the tests, with the race detector, on PostgreSQL servers that they start themselves
	@bin=$$(deploy/postgres.sh bin); \
	echo "PostgreSQL binaries: $$bin$(if $(RACE),,; no C compiler found: the race detector is off)"; \
	FANFARE_TEST_POSTGRES_BIN="$$bin" FANFARE_TEST_HEALTH_PROBE='$(HEALTH_PROBE)' $(GO_TEST) -timeout 25m ./...
	@go test -C bench/charts ./...
	@$(MAKE) test-clients

.PHONY: test-clients
test-clients: build ## Run the tests of the clients for Python, TypeScript and web pages, but for those in a browser
	FANFARE_BIN='$(abspath $(BIN))/fanfare' clientlib/python/test.sh
	FANFARE_BIN='$(abspath $(BIN))/fanfare' clientlib/typescript/test.sh
	cd clientlib/browser && node --test --test-reporter="$${FANFARE_TEST_REPORTER:-dot}" test/*.test.js

.PHONY: test-long
test-long: $(HEALTH_PROBE) $(EDGE_TOOLS) ## Run the tests with the long forms of the soak and chaos tests (an hour)
	@bin=$$(deploy/postgres.sh bin); \
	FANFARE_LONG=1 FANFARE_TEST_POSTGRES_BIN="$$bin" FANFARE_TEST_HEALTH_PROBE='$(HEALTH_PROBE)' $(GO_TEST) -timeout 120m ./...

CADDY_VERSION := v2.11.9
CADDY := $(TOOLS)/caddy-$(CADDY_VERSION)/caddy

.PHONY: test-caddy
test-caddy: $(CADDY) ## Build Caddy, and test deploy/caddy with it; not part of make test
	go vet -tags caddy ./deploy/caddy
	@bin=$$(deploy/postgres.sh bin); \
	FANFARE_TEST_POSTGRES_BIN="$$bin" FANFARE_TEST_CADDY='$(CADDY)' $(GO_TEST) -tags caddy -timeout 10m ./deploy/caddy

$(CADDY):
	GOFLAGS=-mod=mod GOBIN='$(@D)' go install github.com/caddyserver/caddy/v2/cmd/caddy@$(CADDY_VERSION)

TIME ?= 10m
SEED ?=

.PHONY: chaos
chaos: ## Break everything around two replicas for TIME (10m) and check the guarantees; SEED repeats a run
	@bin=$$(deploy/postgres.sh bin); \
	FANFARE_CHAOS_TIME='$(TIME)' FANFARE_CHAOS_SEED='$(SEED)' FANFARE_TEST_POSTGRES_BIN="$$bin" \
	go test -count 1 -v -run '^TestChaosCampaign$$' -timeout 0 ./cmd/fanfare

.PHONY: bench
bench: build ## Measure everything that docs/performance.md tells, and draw it; 15 minutes with BENCH_TIME=1s
	$(BUILD) -o '$(BIN)/limits' ./bench/limits
	@bin=$$(deploy/postgres.sh bin); \
	FANFARE_TEST_POSTGRES_BIN="$$bin" bench/run.sh
	@$(MAKE) charts

.PHONY: charts
charts: ## Draw bench/results into docs/charts, and write them as a table
	mkdir -p docs/charts
	go build -C bench/charts -o '$(abspath $(BIN))/charts' .
	'$(BIN)/charts' --out docs/charts $(CHARTED) >bench/results/table.md

# In the order of the table.
CHARTED = $(wildcard $(addprefix bench/results/,sqlite.json postgresql.json postgresql-slow-disk.json))

.PHONY: bench-go
bench-go: ## Run the Go benchmarks
	@bin=$$(deploy/postgres.sh bin); \
	FANFARE_TEST_POSTGRES_BIN="$$bin" go test -p 1 -run '^$$' -bench . -benchmem -timeout 60m ./...

.PHONY: lint
lint: $(STATICCHECK) ## Check formatting, go vet, staticcheck, and the protocol as far as its tools are there
	@unformatted=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then printf 'gofmt would change:\n%s\n' "$$unformatted"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...
	cd bench/charts && go vet ./... && $(STATICCHECK) ./...
	cd proto/openapi && go vet ./... && $(STATICCHECK) ./...
	@$(call where-there,npm,lint-proto)
	@$(call where-there,npm apt-get,checkgenerate)
	@$(call where-there,npm apt-get javac g++,checkstubs)
	@$(call where-there,npm,checkconsole)

# $(call where-there,PROGRAMS,TARGET) makes a target if its programs are here, and else
# says that it is left out. Made by itself a target fails: $(call needs,PROGRAMS).
where-there = missing=; $(call find-missing,$(1)) \
	if [ -z "$$missing" ]; then $(MAKE) $(2); else echo "make $(2) is left out: there is no$$missing here"; fi
needs = missing=; $(call find-missing,$(1)) \
	if [ -n "$$missing" ]; then echo "$(notdir $@) needs$$missing, which is not here" >&2; exit 1; fi
find-missing = for program in $(1); do command -v "$$program" >/dev/null || missing+=" $$program"; done;

.PHONY: lint-proto
lint-proto: $(BUF) ## Check the protocol's style and format
	$(BUF) lint
	$(BUF) format --diff --exit-code

GENERATORS := $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(PROTOC_GEN_ES) $(PROTOC_GEN_OPENAPIV2)

.PHONY: generate
generate: $(GENERATORS) $(WITH_PROTOC) ## Generate gen/ from the protocol
	$(GENERATE)
	$(DESCRIBE) '$(CURDIR)/gen/openapi'

.PHONY: checkgenerate
checkgenerate: $(GENERATORS) $(WITH_PROTOC) ## Check that gen/ is what the protocol generates
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(GENERATE) --output "$$out"; \
	$(DESCRIBE) "$$out/gen/openapi"; \
	diff -r -x __pycache__ "$$out/gen" gen || { echo 'gen/ is out of date: run make generate'; exit 1; }

GENERATE = PATH='$(subst $() ,:,$(dir $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(PROTOC_GEN_ES)))':"$$PATH" $(WITH_PROTOC) $(BUF) generate

# Describes what is served over HTTP, in the directory that follows.
DESCRIBE = PATH='$(dir $(PROTOC_GEN_OPENAPIV2))':"$$PATH" $(BUF) generate --template buf.gen.openapi.yaml --output '$(BIN)/openapi' && \
	go run -C proto/openapi . ../fanfare/v1/http.yaml document.yaml '$(abspath $(BIN))/openapi/fanfare.swagger.json'

STUBS := $(BIN)/stubs

# Java and C++ are not in gen/: their code runs with the libraries of the very release
# that generated it.
.PHONY: checkstubs
checkstubs: ## Check that what the protocol generates for Java and C++ compiles
	@$(call needs,npm apt-get javac g++)
	@$(MAKE) '$(STUBS)/compiled'

$(STUBS)/compiled: buf.gen.java-cpp.yaml $(wildcard proto/fanfare/v1/*.proto) | $(BUF) $(WITH_JAVA_CPP)
	rm -rf '$(STUBS)'
	$(WITH_JAVA_CPP) $(BUF) generate --template buf.gen.java-cpp.yaml --output '$(STUBS)'
	find '$(STUBS)/java' -name '*.java' >'$(STUBS)/sources'
	$(WITH_JAVA_CPP) javac -nowarn -proc:none -d '$(STUBS)/classes' @'$(STUBS)/sources'
	cd '$(STUBS)/cpp' && $(WITH_JAVA_CPP) g++ -c -I. fanfare/v1/*.cc
	touch '$@'

CONSOLE := cmd/fanfare/internal/console/web

.PHONY: console
console: ## Build the console's page into cmd/fanfare/internal/console/dist
	@$(CONSOLE)/setup.sh
	cd $(CONSOLE) && node build.mjs

.PHONY: checkconsole
checkconsole: ## Check the console's types and format, and that dist is what its sources build
	@$(CONSOLE)/setup.sh
	cd $(CONSOLE) && npm run --silent check

.PHONY: clean
clean: ## Remove what was built, and the tools
	rm -rf bin .tools

$(BUF):
	@$(call needs,npm)
	npm install --silent --no-audit --no-fund --prefix '$(TOOLS)/buf-$(BUF_VERSION)' @bufbuild/buf@$(BUF_VERSION)

$(PROTOC_GEN_GO):
	GOBIN='$(@D)' go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO_VERSION)

$(PROTOC_GEN_GO_GRPC):
	GOBIN='$(@D)' go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GEN_GO_GRPC_VERSION)

$(PROTOC_GEN_ES):
	@$(call needs,npm)
	npm install --silent --no-audit --no-fund --prefix '$(TOOLS)/protoc-gen-es-$(PROTOC_GEN_ES_VERSION)' @bufbuild/protoc-gen-es@$(PROTOC_GEN_ES_VERSION)

$(PROTOC_GEN_OPENAPIV2):
	GOBIN='$(@D)' go install github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2@$(PROTOC_GEN_OPENAPIV2_VERSION)

$(WITH_PROTOC):
	deploy/debian.sh '$(@D)' protobuf-compiler=$(PROTOC_VERSION) protobuf-compiler-grpc=$(PROTOC_GRPC_VERSION)

$(WITH_JAVA_CPP):
	deploy/debian.sh '$(@D)' protobuf-compiler=$(PROTOC_VERSION) \
		libprotobuf-java=$(PROTOC_VERSION) protobuf-compiler-grpc-java-plugin libgrpc-java libguava-java libgeronimo-annotation-1.3-spec-java \
		libprotobuf-dev=$(PROTOC_VERSION) protobuf-compiler-grpc=$(PROTOC_GRPC_VERSION) libgrpc++-dev=$(PROTOC_GRPC_VERSION)

$(CHROMIUM):
	deploy/debian.sh '$(@D)' chromium fonts-dejavu-core
	printf '#!/bin/sh\nexec "$(@D)/run" "$(@D)/usr/lib/chromium/chromium" "$$@"\n' >'$@'
	chmod +x '$@'

$(NGINX):
	deploy/debian.sh '$(@D)' nginx
	printf '#!/bin/sh\nexec "$(@D)/run" "$(@D)/usr/sbin/nginx" "$$@"\n' >'$@'
	chmod +x '$@'

$(STATICCHECK):
	GOBIN='$(@D)' go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

$(HEALTH_PROBE):
	GOBIN='$(@D)' go install github.com/grpc-ecosystem/grpc-health-probe@$(HEALTH_PROBE_VERSION)
