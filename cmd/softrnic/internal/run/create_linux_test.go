package run

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// sides returns both sides of the socket between softrnic run and its program in the namespace.
func sides(t *testing.T) (namespace.Outside, namespace.Inside) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	out, err := namespace.NewOutside(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	in, err := namespace.NewInside(pair[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out, in
}

// TestFilesNotCreated: if the files cannot be created, the program in the namespace ends its wait
// for them.
func TestFilesNotCreated(t *testing.T) {
	out, in := sides(t)
	waited := make(chan error, 1)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	go func() { waited <- in.Pass(dir) }()
	passed, err := out.Directory()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	tree := &tree{files: files{"a": "b"}, of: &description{}}
	if err := tree.create(out, os.DevNull); err == nil {
		t.Error("files are below a device")
	}
	if err := <-waited; err == nil {
		t.Error("the program goes on without its files")
	}
}

// TestRefusals: the reasons of the program arrive. io.EOF means that it has ended without one.
func TestRefusals(t *testing.T) {
	out, in := sides(t)
	in.NoMount(errors.New("no rights"))
	if _, err := out.Directory(); !errors.As(err, new(namespace.MountError)) || err.Error() != "no rights" {
		t.Error(err)
	}
	in.Failed(errors.New("no memory"))
	if err := out.Created(); errors.As(err, new(namespace.MountError)) || err == nil || err.Error() != "no memory" {
		t.Error(err)
	}
	out, in = sides(t)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Directory(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := out.Created(); err != nil {
		t.Error(err)
	}
}
