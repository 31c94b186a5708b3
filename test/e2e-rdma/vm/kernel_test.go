package vm

import "testing"

func TestNewest(t *testing.T) {
	list := `linux-image-6.1.0-9-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-57-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-58-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-58-rt-amd64 - Linux 6.1 for 64-bit PCs, PREEMPT_RT (signed)
linux-image-6.1.0-58-amd64-unsigned - Linux 6.1 for 64-bit PCs
linux-image-6.1.0-10-amd64 - Linux 6.1 for 64-bit PCs (signed)
`
	got, err := newest(list)
	if want := (kernelPackage{name: "linux-image-6.1.0-57-amd64", release: "6.1.0-57-amd64"}); err != nil || got != want {
		t.Errorf("newest is %+v, %v, want %+v", got, err, want)
	}
	if got, err := newest("linux-image-6.12.1-amd64 - Linux\n"); err == nil {
		t.Errorf("newest is %+v, want an error", got)
	}
}
