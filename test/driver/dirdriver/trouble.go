package dirdriver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// silence is what stands in a line instead of a code for a call that gets no answer.
const silence = "silence"

// makeTrouble lets calls fail as Config.TroubleFile says at that moment. Each of its lines is a method
// and what becomes of its calls, the name of a gRPC code or the word silence:
//
//	NodeGetInfo Internal
//	NodeStageVolume silence
//
// Without the file, or with another method, the call is served.
func (d *Driver) makeTrouble(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	fate, err := fateOf(d.cfg.TroubleFile, path.Base(info.FullMethod))
	switch {
	case err != nil:
		return nil, internal(err)
	case fate == "":
		return next(ctx, req)
	case fate == silence:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	code, err := codeNamed(fate)
	if err != nil {
		return nil, internal(fmt.Errorf("%s: %w", d.cfg.TroubleFile, err))
	}
	return nil, status.Errorf(code, "trouble made by %s", d.cfg.TroubleFile)
}

// fateOf is empty for a method that the file does not name.
func fateOf(file, method string) (string, error) {
	if file == "" {
		return "", nil
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, fate, _ := strings.Cut(strings.TrimSpace(lines.Text()), " "); name == method {
			return strings.TrimSpace(fate), nil
		}
	}
	return "", lines.Err()
}

func codeNamed(name string) (codes.Code, error) {
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if c.String() == name {
			return c, nil
		}
	}
	return codes.Unknown, fmt.Errorf("%q is neither a gRPC code nor %q", name, silence)
}
