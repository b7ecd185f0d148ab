//go:build linux && amd64

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/programs"
)

// rcopy copies a file from here to the peer and back: on each side rcopy of rdmacm-utils, here on the drop-in libraries. The server maps
// memory that the client writes to.
func (l *dropinLab) rcopy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	dir := forNobody(t)
	programs.Ran(t, "rcopy FILE SERVER", l.against())
	want, err := os.ReadFile(filepath.Join(l.libs, "librdmacm.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(dir, "data")
	if err := os.WriteFile(here, want, 0o644); err != nil {
		t.Fatal(err)
	}

	serving, err := l.peer.Start("rcopy")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	l.peer.Run(t, untilListens("rcopy"))
	client := startProcess(t, l.dropin(ctx, t, fmt.Sprintf("rcopy %s %v:/tmp/copied", here, l.peer.Addr4()), filepath.Join(dir, "client")))
	if err := <-client.ended; err != nil {
		t.Fatalf("the client: %v\n%s%s\nthe server:\n%s", err, client.stdout.String(), client.stderr.String(), serving.Output())
	}

	server := startProcess(t, l.dropin(ctx, t, "rcopy", filepath.Join(dir, "server")))
	defer func() { _ = server.cmd.Process.Kill() }()
	server.await(t, "rdma_cm listens")
	back := filepath.Join(dir, "back")
	if out, code, err := l.peer.Exec(ctx, fmt.Sprintf("rcopy /tmp/copied %v:%s", dropinAddr, back)); err != nil || code != 0 {
		t.Fatalf("rcopy in the peer: exit status %d, %v\n%s", code, err, out)
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d came back, or other ones: %v", len(got), len(want), err)
	}
	c, err := programs.Counted(filepath.Join(dir, "client"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := 4*c["port_xmit_data"] + c["iwarp_xmit_bytes"]; sum < uint64(len(want)) {
		t.Errorf("the client's device has sent %d bytes, want %d at least: %v", sum, len(want), c)
	}
}
