package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// calls of both kinds behave alike; the driver must not see a refused one.
func TestAClosedGateRefusesANewVolumeAndDoesNotCallTheDriver(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", "/staging/v"), codes.FailedPrecondition)
	wantCode(t, "publish", r.publish("v", "/target/v"), codes.FailedPrecondition)
	if n := r.driver.count(csi.Node_NodeStageVolume_FullMethodName) + r.driver.count(csi.Node_NodePublishVolume_FullMethodName); n != 0 {
		t.Errorf("the driver was called %d times", n)
	}
}

func TestEverythingElsePassesAClosedGate(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	for _, method := range []string{
		csi.Node_NodeUnstageVolume_FullMethodName,
		csi.Node_NodeUnpublishVolume_FullMethodName,
		csi.Node_NodeGetVolumeStats_FullMethodName,
		csi.Node_NodeExpandVolume_FullMethodName,
		csi.Node_NodeGetInfo_FullMethodName,
		csi.Node_NodeGetCapabilities_FullMethodName,
		csi.Identity_GetPluginInfo_FullMethodName,
		csi.Identity_GetPluginCapabilities_FullMethodName,
		csi.Identity_Probe_FullMethodName,
		csi.Controller_CreateVolume_FullMethodName,
		"/csi.v1.Node/NodeNew",
	} {
		if _, err := r.raw(t.Context(), method, nil); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		if r.driver.count(method) == 0 {
			t.Errorf("%s did not reach the driver", method)
		}
	}
}

func TestTheRefusalNamesNodePortReasonAndVolume(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	const line = `RDMA not usable on node worker-7 since 2026-11-30T17:58:03Z: mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling); volume "pvc-1" was not %s, the CSI driver was not called; retried automatically`
	staged, published := status.Convert(r.stage("pvc-1", "/s")), status.Convert(r.publish("pvc-1", "/p"))
	if got, want := staged.Message(), fmt.Sprintf(line, "staged"); got != want {
		t.Errorf("stage\n got %s\nwant %s", got, want)
	}
	if got, want := published.Message(), fmt.Sprintf(line, "published"); got != want {
		t.Errorf("publish\n got %s\nwant %s", got, want)
	}
	details := staged.Details()
	if len(details) != 1 {
		t.Fatalf("details %v", details)
	}
	violations := details[0].(*errdetails.PreconditionFailure).GetViolations()
	if len(violations) != 1 || violations[0].GetType() != "PhysLinkDown" || violations[0].GetSubject() != "mlx5_0/1" ||
		violations[0].GetDescription() != "state 1: DOWN, phys_state 2: Polling" {
		t.Errorf("violations %v", violations)
	}
}

func TestAMalformedCallIsInvalidBeforeAnythingElse(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	capability := &csi.VolumeCapability{}
	for want, m := range map[string]*csi.NodeStageVolumeRequest{
		"volume_id":           {StagingTargetPath: "/s", VolumeCapability: capability},
		"staging_target_path": {VolumeId: "v", VolumeCapability: capability},
		"volume_capability":   {VolumeId: "v", StagingTargetPath: "/s"},
	} {
		_, err := r.node().NodeStageVolume(t.Context(), m)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
	for want, m := range map[string]*csi.NodePublishVolumeRequest{
		"volume_id":         {TargetPath: "/t", VolumeCapability: capability},
		"target_path":       {VolumeId: "v", VolumeCapability: capability},
		"volume_capability": {VolumeId: "v", TargetPath: "/t"},
	} {
		_, err := r.node().NodePublishVolume(t.Context(), m)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
	_, err := r.raw(t.Context(), csi.Node_NodeStageVolume_FullMethodName, frame("\xff\xff"))
	wantCode(t, "bytes that are no message", err, codes.InvalidArgument)
}

func TestARepeatedCallForALiveVolumePasses(t *testing.T) {
	r := newRig(t, nil)
	wantCode(t, "stage", r.stage("v", "/s"), codes.OK)
	wantCode(t, "publish", r.publish("v", "/t"), codes.OK)
	r.health.set(closed())
	wantCode(t, "stage again", r.stage("v", "/s"), codes.OK)
	wantCode(t, "publish again", r.publish("v", "/t"), codes.OK)
	wantCode(t, "publish at another path", r.publish("v", "/t2"), codes.FailedPrecondition)
	wantCode(t, "unpublish", r.unpublish("v", "/t"), codes.OK)
	wantCode(t, "publish after unpublish", r.publish("v", "/t"), codes.FailedPrecondition)
	wantCode(t, "stage after unpublish", r.stage("v", "/s"), codes.OK)
	wantCode(t, "unstage", r.unstage("v", "/s"), codes.OK)
	wantCode(t, "stage after unstage", r.stage("v", "/s"), codes.FailedPrecondition)
}

func TestUnstageErasesTheWholeVolume(t *testing.T) {
	r := newRig(t, nil)
	wantCode(t, "publish", r.publish("v", "/t"), codes.OK)
	wantCode(t, "unstage", r.unstage("v", "/s"), codes.OK)
	r.health.set(closed())
	wantCode(t, "publish", r.publish("v", "/t"), codes.FailedPrecondition)
}

// A mount that this gate has not seen being made: the gate has been restarted.
func TestAMountAtOrBelowThePathMakesAVolumeLive(t *testing.T) {
	r := newRig(t, nil)
	mounts := map[string]bool{}
	r.gate.mounted = func(places []string) (bool, error) {
		for _, place := range places {
			for mount := range mounts {
				if atOrBelow(mount, place) {
					return true, nil
				}
			}
		}
		return false, nil
	}
	r.health.set(closed())
	mounts["/s/inner/deep"] = true
	wantCode(t, "stage, mounted below", r.stage("v", "/s"), codes.OK)
	wantCode(t, "stage of a path that only begins alike", r.stage("w", "/s/inner/dee"), codes.FailedPrecondition)
	mounts["/t"] = true
	wantCode(t, "publish, mounted at", r.publish("v", "/t"), codes.OK)
	wantCode(t, "publish elsewhere", r.publish("v", "/u"), codes.FailedPrecondition)
}

// A driver that only logs in while staging leaves no mount at the staging path.
func TestAMountedTargetMakesItsVolumesStageLive(t *testing.T) {
	r := newRig(t, nil)
	wantCode(t, "publish", r.publish("v", "/t"), codes.OK)
	var asked []string
	r.gate.mounted = func(places []string) (bool, error) {
		asked = places
		return true, nil
	}
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", "/s"), codes.OK)
	if strings.Join(asked, " ") != "/s /t" {
		t.Errorf("looked for mounts at %v, want staging path and target", asked)
	}
}

func TestUnreadableMountsAreUnavailableNotFinal(t *testing.T) {
	r := newRig(t, nil)
	r.gate.mounted = func([]string) (bool, error) { return false, errors.New("no /proc") }
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", "/s"), codes.Unavailable)
}

// Kubelet goes on believing that a mount may exist only while it gets answers that are not final.
func TestAnUnfinishedCallMakesTheRefusalUnavailable(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted} {
		r := newRig(t, nil)
		r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(code, "busy") })
		wantCode(t, "stage", r.stage("v", "/s"), code)
		r.driver.set(nil)
		r.health.set(closed())
		err := r.stage("v", "/s")
		wantCode(t, "stage after "+code.String(), err, codes.Unavailable)
		if !strings.HasPrefix(status.Convert(err).Message(), "RDMA not usable on node worker-7 since ") || !strings.Contains(err.Error(), "Unavailable because") {
			t.Errorf("message %q does not say what and why", err)
		}
		wantCode(t, "publish, of which there was no call", r.publish("v", "/t"), codes.FailedPrecondition)
		wantCode(t, "unstage", r.unstage("v", "/s"), codes.OK)
		wantCode(t, "stage after unstage", r.stage("v", "/s"), codes.FailedPrecondition)
	}
}

func TestAFinalAnswerEndsAnUnfinishedCall(t *testing.T) {
	r := newRig(t, nil)
	answer := codes.Aborted
	r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(answer, "x") })
	wantCode(t, "publish", r.publish("v", "/t"), codes.Aborted)
	answer = codes.Internal
	wantCode(t, "publish", r.publish("v", "/t"), codes.Internal)
	r.health.set(closed())
	wantCode(t, "publish, final before", r.publish("v", "/t"), codes.FailedPrecondition)
}

func TestACallInFlightMakesTheRefusalUnavailable(t *testing.T) {
	r := newRig(t, nil)
	called, finish := make(chan struct{}), make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		close(called)
		<-finish
		return stream.SendMsg(&frame{})
	})
	first := make(chan error, 1)
	go func() { first <- r.stage("v", "/s") }()
	<-called
	r.health.set(closed())
	wantCode(t, "second call", r.stage("v", "/s"), codes.Unavailable)
	close(finish)
	wantCode(t, "first call, which a change of health does not cancel", <-first, codes.OK)
	r.driver.set(nil)
	wantCode(t, "third call", r.stage("v", "/s"), codes.OK)
}

func TestTheCallersTimeoutLeavesACallUnfinished(t *testing.T) {
	r := newRig(t, nil)
	called := make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		close(called)
		<-stream.Context().Done()
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := r.node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/t", VolumeCapability: &csi.VolumeCapability{}})
		first <- err
	}()
	<-called
	cancel()
	<-first
	r.health.set(closed())
	wantCode(t, "publish", r.publish("v", "/t"), codes.Unavailable)
}

// writeVolData writes what kubelet has beside a volume's path.
func writeVolData(t *testing.T, dir, driver, volume string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data := fmt.Sprintf(`{"driverName":%q,"volumeHandle":%q,"specVolID":"pv"}`, driver, volume)
	if volume == "" {
		data = `{"driverName":"rdma.exa` // half-written
	}
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (r *rig) stagedDir(hash string) string {
	return filepath.Join(r.kubelet, "plugins/kubernetes.io/csi/rdma.example.com", hash)
}

func (r *rig) publishedDir(pod string) string {
	return filepath.Join(r.kubelet, "pods", pod, "volumes/kubernetes.io~csi/pv")
}

// restart is what a new process of the gate does on the same node.
func (r *rig) restart() {
	r.volumes.known, r.volumes.paths = map[string]*volume{}, 0
	r.Inherit()
}

func TestAnInheritedVolumeIsUnavailableUntilItIsUndone(t *testing.T) {
	r := newRig(t, nil)
	staged := filepath.Join(writeVolData(t, r.stagedDir("h1"), "rdma.example.com", "v"), "globalmount")
	target := filepath.Join(writeVolData(t, r.publishedDir("p1"), "rdma.example.com", "v"), "mount")
	writeVolData(t, filepath.Join(r.kubelet, "plugins/kubernetes.io/csi/other.example.com/h2"), "other.example.com", "w")
	r.restart()
	r.health.set(closed())
	if _, err := r.DriverName(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "stage", r.stage("v", staged), codes.Unavailable)
	wantCode(t, "publish", r.publish("v", target), codes.Unavailable)
	wantCode(t, "publish at a path of which no file tells", r.publish("v", "/t2"), codes.Unavailable)
	wantCode(t, "another driver's volume", r.stage("w", "/s"), codes.FailedPrecondition)
	wantCode(t, "a new volume", r.stage("x", "/s"), codes.FailedPrecondition)
	wantCode(t, "unpublish", r.unpublish("v", target), codes.OK)
	wantCode(t, "publish after unpublish", r.publish("v", target), codes.FailedPrecondition)
	wantCode(t, "stage after unpublish", r.stage("v", staged), codes.Unavailable)
	wantCode(t, "unstage", r.unstage("v", staged), codes.OK)
	wantCode(t, "stage after unstage", r.stage("v", staged), codes.FailedPrecondition)
}

// A gate whose successor has gone does not know what that one has let through and undone.
func TestAGateThatComesBackKnowsNothingOfWhatIsDone(t *testing.T) {
	r := newRig(t, nil)
	wantCode(t, "stage", r.stage("undone-elsewhere", "/s/1"), codes.OK)
	begun := filepath.Join(writeVolData(t, r.stagedDir("h1"), "rdma.example.com", "begun-elsewhere"), "globalmount")
	r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(codes.Aborted, "busy") })
	wantCode(t, "stage", r.stage("unfinished", "/s/2"), codes.Aborted)
	r.driver.set(nil)
	r.Inherit()
	r.health.set(closed())
	wantCode(t, "undone through another gate", r.stage("undone-elsewhere", "/s/1"), codes.FailedPrecondition)
	wantCode(t, "begun through another gate", r.stage("begun-elsewhere", begun), codes.Unavailable)
	wantCode(t, "unfinished here", r.stage("unfinished", "/s/2"), codes.Unavailable)
}

func TestAFailedUndoLeavesAVolumeInherited(t *testing.T) {
	r := newRig(t, nil)
	staged := filepath.Join(writeVolData(t, r.stagedDir("h1"), "rdma.example.com", "v"), "globalmount")
	r.restart()
	r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(codes.Internal, "busy") })
	wantCode(t, "unstage", r.unstage("v", staged), codes.Internal)
	r.driver.set(nil)
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", staged), codes.Unavailable)
}

func TestAnUnreadableFileCountsAsInherited(t *testing.T) {
	r := newRig(t, nil)
	staged := filepath.Join(writeVolData(t, r.stagedDir("h1"), "", ""), "globalmount")
	r.restart()
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", staged), codes.Unavailable)
	wantCode(t, "stage elsewhere", r.stage("v", "/s"), codes.FailedPrecondition)
	wantCode(t, "unstage", r.unstage("v", staged), codes.OK)
	wantCode(t, "stage after unstage", r.stage("v", staged), codes.FailedPrecondition)
}

func TestAnUnlistableKubeletDirectoryMakesEveryVolumeInherited(t *testing.T) {
	r := newRig(t, nil)
	r.volumes.inherited = newInherited(nil, errors.New("input/output error"))
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", "/s"), codes.Unavailable)
}

func TestObserveForwardsEverything(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Gate.Observe = true })
	r.health.set(closed())
	wantCode(t, "stage", r.stage("v", "/s"), codes.OK)
	wantCode(t, "publish", r.publish("v", "/t"), codes.OK)
}

func TestGateVolumesLimitsTheGate(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Gate.Volumes = []VolumeSelector{{Key: "proto", Value: "rdma"}, {Key: "transport", Value: "rdma"}}
	})
	r.health.set(closed())
	mount := func(flags ...string) *csi.VolumeCapability {
		return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}}}
	}
	for name, tc := range map[string]struct {
		m    *csi.NodeStageVolumeRequest
		want codes.Code
	}{
		"nothing":            {&csi.NodeStageVolumeRequest{VolumeCapability: mount()}, codes.OK},
		"another value":      {&csi.NodeStageVolumeRequest{VolumeContext: map[string]string{"proto": "tcp"}, VolumeCapability: mount("proto=tcp")}, codes.OK},
		"volume context":     {&csi.NodeStageVolumeRequest{VolumeContext: map[string]string{"proto": "rdma"}, VolumeCapability: mount()}, codes.FailedPrecondition},
		"publish context":    {&csi.NodeStageVolumeRequest{PublishContext: map[string]string{"transport": "rdma"}, VolumeCapability: mount()}, codes.FailedPrecondition},
		"mount flag":         {&csi.NodeStageVolumeRequest{VolumeCapability: mount("vers=4.1", "proto=rdma")}, codes.FailedPrecondition},
		"joined mount flags": {&csi.NodeStageVolumeRequest{VolumeCapability: mount("vers=4.1,proto=rdma,port=20049")}, codes.FailedPrecondition},
	} {
		tc.m.VolumeId, tc.m.StagingTargetPath = name, "/s/"+name
		_, err := r.node().NodeStageVolume(t.Context(), tc.m)
		wantCode(t, name, err, tc.want)
	}
}

func TestAnOverrideStandsInTheMessage(t *testing.T) {
	r := newRig(t, nil)
	h := open()
	h.Open, h.Since, h.Override = false, closedSince, &probe.Override{Why: "switch maintenance"}
	r.health.set(h)
	err := r.stage("v", "/s")
	want := `RDMA not usable on node worker-7 since 2026-11-30T17:58:03Z: closed by the override file: switch maintenance; volume "v" was not staged, the CSI driver was not called; retried automatically`
	if got := status.Convert(err); got.Code() != codes.FailedPrecondition || got.Message() != want {
		t.Errorf("\n got %v\nwant %s", err, want)
	}
}

func TestMessagesStayShortOnOneLineAndReadable(t *testing.T) {
	r := newRig(t, nil)
	h := closed()
	h.Cause = nil
	for i := range 64 {
		h.Cause = append(h.Cause, probe.Trouble{Subject: fmt.Sprintf("mlx5_%d/1", i), Reason: probe.PhysLinkDown, Detail: "state 1: DOWN, phys_state 2: Polling"})
	}
	r.health.set(h)
	r.gate.NodeName = strings.Repeat("n", 63)
	for _, volume := range []string{"v", strings.Repeat("v", 5000), strings.Repeat("\n\"\x00", 500), strings.Repeat("ü", 300)} {
		m := status.Convert(r.stage(volume, "/s")).Message()
		if len(m) >= 1000 || strings.ContainsAny(m, "\n\x00") {
			t.Errorf("%d bytes: %q", len(m), m)
		}
		for _, want := range []string{"mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling), mlx5_1/1 ", " more; volume ", "retried automatically"} {
			if !strings.Contains(m, want) {
				t.Errorf("%q lacks %q", m, want)
			}
		}
	}
}

func TestTooManyVolumesAreUnavailable(t *testing.T) {
	r := newRig(t, nil)
	r.volumes.paths = maxPaths
	wantCode(t, "stage", r.stage("v", "/s"), codes.Unavailable)
}

func TestNothingIsRememberedOfVolumesThatAreGone(t *testing.T) {
	r := newRig(t, nil)
	for i := range 10 {
		id := fmt.Sprint("v", i)
		wantCode(t, "stage", r.stage(id, "/s/"+id), codes.OK)
		wantCode(t, "publish", r.publish(id, "/t/"+id), codes.OK)
		wantCode(t, "unpublish", r.unpublish(id, "/t/"+id), codes.OK)
		wantCode(t, "unstage", r.unstage(id, "/s/"+id), codes.OK)
	}
	if len(r.volumes.known) != 0 || r.volumes.paths != 0 || r.volumes.calls != 0 {
		t.Errorf("%d volumes, %d paths, %d calls are still known", len(r.volumes.known), r.volumes.paths, r.volumes.calls)
	}
}
