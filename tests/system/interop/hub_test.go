//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// cmReceived returns the number of connection management messages of a kind that the peer's rxe has
// received.
func cmReceived(t *testing.T, p *peer.Peer, kind string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(p.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/cm_rx_msgs/"+kind)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHubKilled: processes as nobody share one address through a hub, and each has a connection to
// rxe. One is killed: rxe gets a DREQ for its connection, and the others continue. A request of rxe
// without a listener is rejected.
func TestHubKilled(t *testing.T) {
	gate.System(t)
	l := socketsLab{program: softrnicProgram(t), peer: cmPeer(t, 2, verbs.RoCEv2)}
	tracePort(t, l.peer)
	runtimeDirectoryOfNobody(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	hub := startProcess(t, l.peer.Netns.Command(ctx, "setpriv", asNobody(l.program, "hub")...))
	hub.await(t, "the hub is up")
	here, there := l.addrs()
	serving, err := l.peer.Start(fmt.Sprintf("rping -s -P -a %v", there))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	l.peer.Run(t, untilRpingListens)
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); {
			if time.Now().After(end) {
				t.Fatalf("after %v not so: %s", patience, what)
			}
		}
	}
	ping := func(options string) *process {
		return l.softrnic(ctx, t, fmt.Sprintf("rping -c -a %v %s --shared", there, options))
	}
	rtus, dreqs := cmReceived(t, l.peer, "rtu"), cmReceived(t, l.peer, "dreq")
	var endless []*process
	for i := range 2 {
		endless = append(endless, ping(""))
		until("it is connected", func() bool { return cmReceived(t, l.peer, "rtu") == rtus+i+1 })
	}
	for i, p := range endless {
		_ = p.cmd.Process.Kill()
		<-p.ended
		until("rxe has a DREQ for each that was killed", func() bool { return cmReceived(t, l.peer, "dreq") == dreqs+i+1 })
		if i == 0 {
			received := l.rxeReceived(t)
			until("the other goes on", func() bool { return l.rxeReceived(t) > received+50 })
			out, code, err := rpingClient(ctx, l.peer, fmt.Sprintf("rping -c -a %v -C 1", here))
			if err != nil || code == 0 || !strings.Contains(out, "REJECTED, error 8") { // invalid service ID
				t.Errorf("rping -c to an address without a listener: exit status %d, %v\n%s", code, err, out)
			}
		}
	}
	p := ping("-v -V -C 50")
	p.wait(t)
	p.rpings(t)
	server := l.softrnic(ctx, t, "rping -s -d -v --shared")
	server.await(t, "msg=listening")
	if out, code, err := rpingClient(ctx, l.peer, fmt.Sprintf("rping -c -a %v -v -V -C 50", here)); err != nil || code != 0 {
		t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
		cancel()
	}
	server.wait(t)
	server.rpings(t)
	_ = hub.cmd.Process.Signal(os.Interrupt)
	hub.wait(t)
}
