package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// callTimeout is far beyond what emulation costs.
const callTimeout = 20 * time.Second

// client stages volumes through a gate, each of them new.
type client struct {
	conn    *grpc.ClientConn
	node    csi.NodeClient
	staging string
	volumes int
}

func newClient(socket, staging string) (*client, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, node: csi.NewNodeClient(conn), staging: staging}, nil
}

func (c *client) close() { c.conn.Close() }

// refusal is a gate's answer to NodeStageVolume while it is closed.
type refusal struct {
	// message has "VOLUME" for the volume's id.
	message string
	// reason is that of the device's port, or of the node.
	reason string
}

// stage stages a new volume and, if the gate let it, unstages it. A refusal is no error.
func (c *client) stage(ctx context.Context) (*refusal, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.volumes++
	id := fmt.Sprintf("vol-%d", c.volumes)
	path := filepath.Join(c.staging, id)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, err
	}
	defer os.Remove(path)
	_, err := c.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId:          id,
		StagingTargetPath: path,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}, grpc.WaitForReady(true))
	if status.Code(err) == codes.FailedPrecondition {
		return newRefusal(err, id)
	}
	if err != nil {
		return nil, fmt.Errorf("NodeStageVolume %s: %w", id, err)
	}
	if _, err := c.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path}); err != nil {
		return nil, fmt.Errorf("NodeUnstageVolume %s: %w", id, err)
	}
	return nil, nil
}

func newRefusal(err error, volume string) (*refusal, error) {
	s := status.Convert(err)
	for _, d := range s.Details() {
		failure, ok := d.(*errdetails.PreconditionFailure)
		if ok && len(failure.GetViolations()) == 1 {
			return &refusal{
				message: strings.ReplaceAll(s.Message(), volume, "VOLUME"),
				reason:  failure.GetViolations()[0].GetType(),
			}, nil
		}
	}
	return nil, errors.New("a refusal without the one violation of the one port: " + s.Message())
}

// pollPause lets others run between two calls, which emulation makes dear.
const pollPause = 50 * time.Millisecond

// await stages volumes until the gate's answer is the one wanted, and returns that and how long it
// took from since on.
func (c *client) await(ctx context.Context, since time.Time, limit time.Duration, want func(*refusal) bool) (*refusal, time.Duration, error) {
	for {
		r, err := c.stage(ctx)
		took := time.Since(since)
		switch {
		case err != nil:
			return nil, took, err
		case want(r):
			return r, took, nil
		case took > limit:
			return r, took, fmt.Errorf("after %s the gate still %s", took.Round(time.Second), answer(r))
		}
		time.Sleep(pollPause)
	}
}

func answer(r *refusal) string {
	if r == nil {
		return "forwards NodeStageVolume"
	}
	return "refuses NodeStageVolume: " + r.message
}

func closed(r *refusal) bool { return r != nil }

func open(r *refusal) bool { return r == nil }

// stagedVolumes counts the calls of NodeStageVolume that have reached the driver.
func stagedVolumes() (int, error) {
	calls, err := os.ReadFile(driverCalls)
	if err != nil {
		return 0, err
	}
	return strings.Count(string(calls), "NodeStageVolume "), nil
}
