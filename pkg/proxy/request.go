package proxy

import (
	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// request is what the gate reads of a call that makes or ends a mount. The call itself goes on in
// its own bytes.
type request struct {
	method string
	volume string
	// path is the staging path of Stage and Unstage, the target path of Publish and Unpublish.
	path string
	// malformed says what is missing; empty when all is there.
	malformed string
	// attributes are what --gate-volumes looks at.
	attributes attributes
}

// attributes of a volume that may say whether it needs RDMA.
type attributes struct {
	volumeContext, publishContext map[string]string
	mountFlags                    []string
}

// published says that path is a target path, not a staging path.
func (r *request) published() bool {
	return r.method == csi.Node_NodePublishVolume_FullMethodName || r.method == csi.Node_NodeUnpublishVolume_FullMethodName
}

func decodeStage(f frame) *request {
	var m csi.NodeStageVolumeRequest
	err := unmarshal(f, &m)
	return newMount(csi.Node_NodeStageVolume_FullMethodName, &m, m.GetStagingTargetPath(), "staging_target_path", err)
}

func decodePublish(f frame) *request {
	var m csi.NodePublishVolumeRequest
	err := unmarshal(f, &m)
	return newMount(csi.Node_NodePublishVolume_FullMethodName, &m, m.GetTargetPath(), "target_path", err)
}

func decodeUnstage(f frame) *request {
	var m csi.NodeUnstageVolumeRequest
	_ = unmarshal(f, &m) // what the gate cannot read the driver will refuse
	return &request{method: csi.Node_NodeUnstageVolume_FullMethodName, volume: m.GetVolumeId(), path: m.GetStagingTargetPath()}
}

func decodeUnpublish(f frame) *request {
	var m csi.NodeUnpublishVolumeRequest
	_ = unmarshal(f, &m)
	return &request{method: csi.Node_NodeUnpublishVolume_FullMethodName, volume: m.GetVolumeId(), path: m.GetTargetPath()}
}

// mountMessage is what the requests of Stage and Publish have in common.
type mountMessage interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
	GetVolumeContext() map[string]string
	GetPublishContext() map[string]string
}

func newMount(method string, m mountMessage, path, pathField string, err error) *request {
	r := &request{
		method: method,
		volume: m.GetVolumeId(),
		path:   path,
		attributes: attributes{
			volumeContext:  m.GetVolumeContext(),
			publishContext: m.GetPublishContext(),
			mountFlags:     m.GetVolumeCapability().GetMount().GetMountFlags(),
		},
	}
	switch {
	case err != nil:
		r.malformed = "the request cannot be decoded: " + err.Error()
	case r.volume == "":
		r.malformed = "volume_id is missing"
	case r.path == "":
		r.malformed = pathField + " is missing"
	case m.GetVolumeCapability() == nil:
		r.malformed = "volume_capability is missing"
	}
	return r
}

func unmarshal(f frame, m proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(f, m)
}
