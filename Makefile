# Everything that a contributor runs; CONTRIBUTING.md says when.

GO   ?= go
TOOL  = $(GO) tool -modfile=tools/go.mod

# How long `make fuzz` runs each fuzz target.
FUZZTIME ?= 20s

# The image, made by docker or by buildah:
#   make image VERSION=v1.2.3 IMAGE=registry.example.com/pact-signer
IMAGE   ?= pact-signer
VERSION ?=
BUILDER ?= $(or $(shell command -v docker),$(shell command -v buildah))

.PHONY: build image test servers chaos soak load lint generate generate-check bench fuzz

build:
	$(GO) build -o bin/ ./cmd/...

image:
	@test -n "$(BUILDER)" || { echo "make image needs docker or buildah: install one, or set BUILDER"; exit 1; }
	$(BUILDER) build -t $(IMAGE):$(or $(VERSION),dev) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git describe --always --abbrev=40 --exclude '*' --dirty) .

# All tests, under the race detector.
test: servers
	$(GO) test -race -timeout 30m ./...

# Vault, Redis, Chromium and what checks chart and image, as far as they are not there.
servers:
	@$(GO) run ./test/servers/get

# Everything that can go wrong with a fleet, as long as it lasts in the field;
# writes docs/chaos.md. A short form is part of `make test`.
chaos: servers
	$(GO) test ./test/chaos -run TestChaos -full -write -v -timeout 60m

# Rotations under load, a few hundred of them. Some are part of `make test`.
soak: servers
	$(GO) test ./test/soak -rotations 200 -timeout 60m

# How fast it is; writes docs/load.md.
load: servers
	$(GO) run ./test/load -write docs/load.md

lint: generate-check
	@bad=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  if [ -n "$$bad" ]; then echo "gofmt wants to change:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

# The generated code under proto/, from the .proto files and each one's gateway.yaml.
generate:
	$(TOOL) buf lint
	$(TOOL) buf generate --path proto/pact/signer
	$(TOOL) buf generate --path proto/pact/agent --template buf.gen.agent.yaml

# Fails if `make generate` would change anything.
generate-check: generate
	@changed=$$(git status --porcelain -- proto); \
	  if [ -n "$$changed" ]; then echo "proto/ is not as generated; run make generate and commit:"; echo "$$changed"; git diff -- proto; exit 1; fi

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Every fuzz target in turn.
fuzz:
	@$(GO) list -f '{{.ImportPath}}' ./... | while read -r pkg; do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done
