# BASE may be any image: the binary is static and needs nothing from it. A distroless static image adds certificates and
# a user list for scanners that want to name what they look at.
ARG BASE=scratch

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ARG VERSION=dev
# The second name is what probes of existing manifests call: /csi-node-driver-registrar --mode=kubelet-registration-probe.
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/csi-rdma-gate ./cmd/csi-rdma-gate \
    && ln -s csi-rdma-gate /out/csi-node-driver-registrar

FROM $BASE
COPY --from=build /out/ /
# The sockets lie in directories of root. The manifest takes every capability away: see examples/daemonset.yaml.
USER 0:0
ENTRYPOINT ["/csi-rdma-gate"]
