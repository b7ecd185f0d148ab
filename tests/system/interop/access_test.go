//go:build linux

package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestAccess: Linux's rdma_cm sees a host that --allow excludes as rejected by the application, and
// otherwise connects.
func TestAccess(t *testing.T) {
	gate.System(t)
	t.Run("rxe", func(t *testing.T) { testAccess(t, verbs.RoCEv2, "REJECTED, error 28") })
	t.Run("siw", func(t *testing.T) { testAccess(t, verbs.IWARP, "REJECTED, error -104") })
}

func testAccess(t *testing.T, transport verbs.Transport, rejected string) {
	l := cmLab{peer: cmPeer(t, 2, transport), transport: transport}
	tracePort(t, l.peer)
	i := interruption{cmPair{l, softrnicAddr4, l.peer.Addr4()}, softrnicProgram(t)}
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	client := fmt.Sprintf("rping -c -a %v -v -V -C 5", i.here)

	other := i.softrnic(ctx, t, "-s -P --counters --allow 10.99.0.0/16,fd00::/8")
	other.await(t, "msg=listening")
	// Over iWARP, the connection may be reset before siw has sent MPA's request.
	const early = "rdma_connect: Connection reset by peer"
	if out, code, err := refusedRping(ctx, l.peer, client); err != nil || code == 0 ||
		!strings.Contains(out, rejected) && (transport != verbs.IWARP || !strings.Contains(out, early)) {
		t.Errorf("a host that is not allowed: exit status %d, %v\n%s", code, err, out)
	}
	other.interrupt(t)
	if n := other.count("access_denied"); n != 1 {
		t.Errorf("access_denied is %d, want 1:\n%s", n, other.stderr.String())
	}

	server := i.softrnic(ctx, t, fmt.Sprintf("-s --allow %v", i.there))
	server.await(t, "msg=listening")
	if out, code, err := rpingClient(ctx, l.peer, client); err != nil || code != 0 || strings.Count(out, "ping data") != 5 {
		t.Errorf("a host that is allowed: exit status %d, %v\n%s", code, err, out)
	}
	server.wait(t)
}
