package dirdriver

import (
	"context"
	"fmt"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// logCall writes "METHOD VOLUME ok" or "METHOD VOLUME CODE: MESSAGE", without VOLUME where the
// request names none.
func (d *Driver) logCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	line := path.Base(info.FullMethod)
	if r, ok := req.(interface{ GetVolumeId() string }); ok && r.GetVolumeId() != "" {
		line += " " + r.GetVolumeId()
	}
	if err == nil {
		line += " ok"
	} else {
		st := status.Convert(err)
		line += fmt.Sprintf(" %s: %s", st.Code(), st.Message())
	}
	d.logMu.Lock()
	defer d.logMu.Unlock()
	// A reader that has gone away is no reason to fail the call.
	_, _ = fmt.Fprintln(d.cfg.Calls, line)
	return resp, err
}
