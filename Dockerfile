# Two arguments name the images that are pulled, so that this also builds where no registry can be reached:
#   GO_IMAGE  has Go, in PATH, and a shell.
#   BASE      is what the binary is laid on. It needs nothing from there: scratch will do, and a distroless static image adds
#             what scanners like to find (a release, certificates, a user list).
ARG GO_IMAGE=golang:1.26
ARG BASE=scratch

# Always on the builder's own platform: Go compiles for the other one from there, without emulation.
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unknown
ARG COMMIT
# Nothing of the time or the place goes into the binary: the same sources and the same Go give the same bytes.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" -o /out/csi-rdma-gate ./cmd/csi-rdma-gate
# What probes of existing manifests call: /csi-node-driver-registrar --mode=kubelet-registration-probe.
RUN ln -s csi-rdma-gate /out/csi-node-driver-registrar

# The platform is the default; buildah 1.28 would take over that of the stage above.
FROM --platform=$TARGETPLATFORM $BASE
ARG BASE
ARG VERSION=unknown
ARG COMMIT
LABEL org.opencontainers.image.title="csi-rdma-gate" \
      org.opencontainers.image.description="Sidecar that refuses CSI mounts while the node's RDMA hardware cannot carry them" \
      org.opencontainers.image.source="https://github.com/csi-rdma-gate/csi-rdma-gate" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.base.name="$BASE"
COPY --from=build /out/ /
# The sockets lie in directories of root. The manifest takes every capability away: see examples/daemonset.yaml.
USER 0:0
ENTRYPOINT ["/csi-rdma-gate"]
