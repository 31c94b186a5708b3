module github.com/csi-rdma-gate/csi-rdma-gate/test/story

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/csi-rdma-gate/csi-rdma-gate v0.0.0
	github.com/fsnotify/fsnotify v1.10.1
	github.com/moby/sys/mountinfo v0.7.3
	golang.org/x/sys v0.50.0
	google.golang.org/grpc v1.85.0
	k8s.io/kubelet v0.37.2
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/csi-rdma-gate/csi-rdma-gate => ../..
