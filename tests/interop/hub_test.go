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

	"github.com/softrnic/softrnic/tests/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// dreqs is how many DREQs the peer's rxe has received.
func dreqs(t *testing.T, p *peer.Peer) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(p.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/cm_rx_msgs/dreq")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHubKilled: processes as nobody have one address through a hub, and each a connection to rxe. One is killed: rxe gets a DREQ
// for its connection, and the others go on.
func TestHubKilled(t *testing.T) {
	l := socketsLab{program: buildSoftRNIC(t), peer: cmPeer(t, 2, verbs.RoCEv2)}
	dir, err := os.MkdirTemp("", "h") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	hub := startProcess(t, l.peer.Netns.Command(ctx, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all", l.program, "hub"))
	hub.await(t, "the hub is up")
	for _, l.ipv6 = range []bool{false, true} {
		t.Run(l.String(), func(t *testing.T) {
			here, there := l.addrs()
			serving, err := l.peer.Start(fmt.Sprintf("rping -s -P -v -a %v", there))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = serving.Kill() }()
			l.peer.Run(t, untilRpingListens)
			// pings waits until the peer has seen n more pings.
			pings := func(n int) {
				t.Helper()
				seen := func() int { return strings.Count(string(serving.Output()), "rdma-ping-") }
				for want, end := seen()+n, time.Now().Add(patience); seen() < want; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("after %v only %d more pings", patience, n+seen()-want)
					}
				}
			}
			ping := func(options string) *process {
				return l.softrnic(ctx, t, fmt.Sprintf("rping -c -a %v -v -V %s --shared", there, options))
			}
			before := dreqs(t, l.peer)
			var endless []*process
			for range 3 {
				endless = append(endless, ping(""))
				pings(10)
			}
			for i, p := range endless {
				_ = p.cmd.Process.Kill()
				<-p.ended
				for end := time.Now().Add(patience); dreqs(t, l.peer) != before+i+1; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%d killed, and %d DREQs", i+1, dreqs(t, l.peer)-before)
					}
				}
				if i < len(endless)-1 {
					pings(10)
				}
			}
			p := ping("-C 50")
			p.wait(t)
			p.rpings(t)
			// rxe asks for a connection that nobody serves, and then for one that somebody does.
			out, code, err := l.peer.Exec(ctx, fmt.Sprintf("rping -c -a %v -C 1", here))
			if err != nil || code == 0 {
				t.Errorf("rping -c to nobody: exit status %d, %v\n%s", code, err, out)
			}
			server := l.softrnic(ctx, t, "rping -s -d -v --shared")
			server.await(t, "msg=listening")
			if out, code, err := l.peer.Exec(ctx, fmt.Sprintf("rping -c -a %v -v -V -C 50", here)); err != nil || code != 0 {
				t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
				cancel()
			}
			server.wait(t)
			server.rpings(t)
		})
	}
	_ = hub.cmd.Process.Signal(os.Interrupt)
	hub.wait(t)
}
