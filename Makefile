# `make` lists the targets. They need Go and its module proxy; image needs docker or buildah too, promtool and what begins with e2e apt.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
IMAGE   ?= csi-rdma-gate:$(VERSION)

# What builds the image: docker, or buildah where that is installed.
BUILDER ?= $(if $(shell command -v buildah),buildah,docker)

LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# The gate, and the tests whose dependencies the gate shall not have.
MODULES := . test/examples test/image test/monitoring test/story test/kubelet test/volumemanager test/csi-sanity test/e2e-rdma test/e2e

GOLANGCI_LINT := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK   := $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0

# The race detector needs cgo and a C compiler.
RACE = $(shell set -- $$($(GO) env CC); [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$1" >/dev/null && echo -race)

# Go would ask git for a revision and fail where the clone belongs to another user. VERSION says it already.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

.PHONY: help build run test promtool e2e-image e2e-rdma e2e lint bench image clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile

build: ## build the gate and the fake CSI driver into build/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o build/ ./cmd/csi-rdma-gate ./test/driver

run: build ## tell the story of a pulled cable on the terminal; HOST_ROOT=/ looks at this machine instead, FLAGS go to the gate
	$(GO) build -C test/story -o ../../build/story ./cmd/run
	build/story -gate build/csi-rdma-gate -driver build/driver $(if $(HOST_ROOT),-host-root $(HOST_ROOT)) $(if $(FLAGS),-- $(FLAGS))

# The tests below test/ build the gate by themselves, so Go does not see when a result is out of date: -count=1.
test: ## run every test
	$(GO) test $(RACE) ./...
	$(GO) test -C test/examples -count=1 ./...
	$(GO) test -C test/monitoring -count=1 ./...
	$(GO) test -C test/story -count=1 ./...
	$(GO) test -C test/kubelet -count=1 ./...
	$(GO) test -C test/volumemanager -count=1 -parallel=16 ./...
	$(GO) test -C test/volumemanager -count=1 -parallel=16 -modfile=kubernetes-1.37.mod -tags=kubernetes_1_37 ./...
	$(GO) test -C test/csi-sanity -count=1 ./...
	$(GO) test -C test/e2e-rdma ./...
	$(GO) test -C test/e2e ./...

promtool: ## get Debian's promtool and prometheus into build/, for test/monitoring (apt); to install the package would start a server
	rm -rf build/prometheus.deb && mkdir -p build/prometheus.deb
	cd build/prometheus.deb && apt-get -qq -o APT::Sandbox::User=root download prometheus && dpkg-deb -x *.deb .
	mv build/prometheus.deb/usr/bin/promtool build/prometheus.deb/usr/bin/prometheus build/
	rm -rf build/prometheus.deb

e2e-image: ## build the image with buildah and run it with runc as the examples have it (root, apt)
	$(GO) test -C test/image -count=1 -timeout=20m ./...

e2e-rdma: build ## break a real RDMA stack, in a virtual machine (qemu, apt), and see the gate close and open
	CGO_ENABLED=0 $(GO) build -C test/e2e-rdma -trimpath -o ../../build/e2e-rdma/ . ./guest
	build/e2e-rdma/e2e-rdma -gate build/csi-rdma-gate -driver build/driver -guest build/e2e-rdma/guest -cache build/e2e-rdma $(FLAGS)

e2e: build ## run the gate on real Kubernetes nodes that are made here, in namespaces of their own (root, apt); FLAGS="-run=story -kubernetes=1.36.3"
	CGO_ENABLED=0 $(GO) build -trimpath -o build/ ./test/registrar
	CGO_ENABLED=0 $(GO) build -C test/e2e -trimpath -o ../../build/e2e/ .
	build/e2e/e2e $(FLAGS)

lint: ## run the linters of .golangci.yml, and govulncheck where its database can be reached
	for m in $(MODULES); do (cd $$m && $(GOLANGCI_LINT) run ./...) || exit; done
	@for m in $(MODULES); do \
		if out=$$(cd $$m && $(GOVULNCHECK) ./... 2>&1); then echo "govulncheck: $$m: nothing found"; continue; fi; \
		case $$out in \
		*'fetching vulnerabilities'*) echo 'govulncheck: skipped, its database cannot be reached'; break;; \
		*) echo "$$out"; exit 1;; \
		esac; \
	done

bench: ## run the benchmarks, and time a probe beside rdma link, ibstat and ibv_devinfo, in a virtual machine (qemu, apt)
	$(GO) test -run='^$$' -bench=. -benchmem -benchtime=1s -count=5 ./...
	CGO_ENABLED=0 $(GO) build -C test/e2e-rdma -trimpath -o ../../build/e2e-rdma/ . ./guest
	build/e2e-rdma/e2e-rdma -guest build/e2e-rdma/guest -cache build/e2e-rdma -bench

image: ## build the container image; BASE=… chooses what it builds on, PLATFORM=linux/arm64 what for, BUILDER=… docker or buildah
	$(BUILDER) build $(BUILDER_FLAGS) --build-arg BUILDPLATFORM=linux/$$($(GO) env GOHOSTARCH) --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) \
		$(if $(PLATFORM),--platform=$(PLATFORM)) $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(GO_IMAGE),--build-arg GO_IMAGE=$(GO_IMAGE)) -t $(IMAGE) .

clean: ## remove build/
	rm -rf build
