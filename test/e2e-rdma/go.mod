module github.com/csi-rdma-gate/csi-rdma-gate/test/e2e-rdma

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/csi-rdma-gate/csi-rdma-gate v0.0.0
	github.com/csi-rdma-gate/csi-rdma-gate/test/story v0.0.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.50.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5
	google.golang.org/grpc v1.85.0
)

require (
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	k8s.io/kubelet v0.37.2 // indirect
)

replace github.com/csi-rdma-gate/csi-rdma-gate => ../..

replace github.com/csi-rdma-gate/csi-rdma-gate/test/story => ../story
