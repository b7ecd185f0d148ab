//go:build linux

package netns

import (
	"os"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestHub: on each of two machines two processes have one address through a hub; all are nobody's. Each of the two on the one
// machine serves one on the other. One server is killed: its client is told at once, and the other goes on. A port is for one of them.
func TestHub(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	runtimeDir(t)
	var hubs []*running
	for i := range m.ns {
		hubs = append(hubs, m.start(i, "hub"))
		hubs[i].await("the hub is up")
	}
	const node, peer = " --link kernel:v0 --shared", " --link kernel:v1 --shared"
	for _, at := range []string{"10.7.0.1", "2001:db8:7::1"} {
		serve := func(port string) *running {
			r := m.start(0, "rping -s -d -a "+at+" -p "+port+node)
			r.await("listening")
			return r
		}
		ping := func(port, options string) *running { return m.start(1, "rping -c -v -a "+at+" -p "+port+options+peer) }
		killed, living := serve("7201"), serve("7202")
		third := m.start(0, "rping -s -a "+at+" -p 7201"+node)
		if code := third.exit(); code == 0 {
			t.Error("two processes listen on one port")
		}
		if said, _ := third.said(); !strings.Contains(said, "address already in use") {
			t.Errorf("a port that another process has:\n%s", said)
		}
		told, other := ping("7201", ""), ping("7202", " -V -C 1000")
		for _, c := range []*running{told, other} {
			c.await("rdma-ping-20")
		}
		_ = killed.cmd.Process.Kill()
		told.exit()
		said, _ := told.said()
		if !strings.Contains(said, "client DISCONNECT EVENT") || strings.Contains(said, "RETRY_EXC_ERR") { // which it would find out by itself
			t.Errorf("a client whose server was killed does not hear of it:\n%s", said[max(0, len(said)-500):])
		}
		if code := other.exit(); code != 0 {
			said, _ := other.said()
			t.Errorf("the other client ends with %d:\n%.2000s", code, said)
		}
		if code := living.exit(); code != 0 {
			said, _ := living.said()
			t.Errorf("the other server ends with %d:\n%.2000s", code, said)
		}
		again := serve("7201") // free again
		if code := ping("7201", " -C 3").exit(); code != 0 {
			t.Errorf("at the port of who was killed: exit code %d", code)
		}
		again.exit()
	}
	for _, hub := range hubs {
		_ = hub.cmd.Process.Signal(os.Interrupt)
		if code := hub.exit(); code != 0 {
			said, _ := hub.said()
			t.Errorf("the hub ends with %d:\n%s", code, said)
		}
	}
}
