package proxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is one message, in the bytes in which it came.
type frame []byte

// codec passes frames on without decoding them, so that fields and methods which this program
// does not know survive. It calls itself "proto" since that is what the bytes are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("codec takes frames, got %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*f)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("codec takes frames, got %T", v)
	}
	*f = data.Materialize()
	return nil
}
