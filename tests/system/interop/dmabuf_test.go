//go:build linux && amd64

package interop

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// TestDmabuf runs a program on the drop-in libraries in the peer, whose kernel exports dma-bufs of
// two kinds. This machine's may export none, and Debian 12's does not.
func TestDmabuf(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	if !p.Kernel.Dmabufs { // interop-trixie and interop-sid of the long run have kernels with them
		p.Run(t, "! [ -e /dev/udmabuf ] && ! [ -e /dev/dma_heap ]")
		return
	}
	libs := buildLibraries(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "dmabuf")
	for _, args := range [][]string{
		{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-I../dropin/testdata", "-o", program, "testdata/dmabuf.c", "-libverbs"},
		{"tar", "-czhf", program + ".tar.gz", "-C", libs, "libibverbs.so.1", "libsoftrnic.so", "-C", dir, "dmabuf"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var web net.Listener // Put takes minutes for the libraries
	if err := p.Netns.Do(func() (err error) {
		web, err = net.Listen("tcp", net.JoinHostPort(dropinAddr.String(), "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() { _ = http.Serve(web, http.FileServer(http.Dir(dir))) }()
	const there = "/tmp/dmabuf"
	defer p.Run(t, "rm -rf "+there)
	fetch := "mkdir " + there + " && wget -q -O - http://" + web.Addr().String() + "/dmabuf.tar.gz | tar -xz -C " + there
	if out, code, err := p.Exec(ctx, fetch); err != nil || code != 0 {
		t.Fatalf("exit status %d, %v\n%s", code, err, out)
	}
	for _, exporter := range []string{"udmabuf", "system"} {
		t.Run(exporter, func(t *testing.T) {
			out, code, err := p.Exec(ctx, "cd "+there+" && "+
				"LD_LIBRARY_PATH=. SOFTRNIC_LINK=shm:dmabuf SOFTRNIC_ADDR=10.88.0.1/24 ./dmabuf "+exporter)
			if err != nil || code != 0 || !strings.HasSuffix(out, "moved\n") {
				t.Errorf("exit status %d, %v\n%s", code, err, out)
			}
		})
	}
}
