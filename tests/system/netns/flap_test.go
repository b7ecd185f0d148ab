//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// startRoot is start as root, for links that need privileges.
func (m *machines) startRoot(i int, args string) *running {
	m.t.Helper()
	m.enter(i)
	return startCommand(m.t, exec.CommandContext(m.t.Context(), m.program, strings.Fields(args)...))
}

// ip runs ip in a namespace.
func (m *machines) ip(i int, args string) {
	m.t.Helper()
	m.enter(i)
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		m.t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
}

// sent returns the number of packets that an interface has sent.
func (m *machines) sent(i int, name string) uint64 {
	m.t.Helper()
	m.enter(i)
	return interfaces.ByName(m.t, name).Attrs().Statistics.TxPackets
}

// flap is what happens below a connection. out is the interface by which packets then leave the
// second namespace.
type flap struct {
	name, out string
	do        func(m *machines)
}

// outage waits while an interface is down, or an address away.
func outage(d time.Duration) { time.Sleep(d) }

// linkFlap takes an interface down for a time.
func linkFlap(i int, name, out string, d time.Duration) flap {
	return flap{fmt.Sprintf("%s is down for %v", name, d), out, func(m *machines) {
		m.enter(i)
		l := interfaces.ByName(m.t, name)
		down := netlink.LinkSetDown(l)
		outage(d)
		if err := errors.Join(down, netlink.LinkSetUp(l)); err != nil {
			m.t.Fatal(err)
		}
	}}
}

// survives checks that pings go on after each flap. Each ping is verified.
func (m *machines) survives(server, client *running, flaps []flap) {
	m.t.Helper()
	defer func() {
		for _, p := range []*running{client, server} {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}()
	goOn := func(f flap) {
		m.t.Helper()
		began, late := m.sent(1, f.out), time.Now().Add(30*time.Second)
		for m.sent(1, f.out) < began+500 { // far more than are repeated meanwhile
			for _, p := range []*running{client, server} {
				select {
				case err := <-p.ended:
					p.ended <- err
					m.t.Fatalf("%s: the connection has ended: %v\n%s\n%s", f.name, err, tail(server.String()), tail(client.String()))
				default:
				}
			}
			if time.Now().After(late) {
				m.t.Fatalf("%s: nothing is sent any more, from %s\n%s\n%s", f.name, f.out, tail(server.String()), tail(client.String()))
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	goOn(flap{"at first", flaps[0].out, nil})
	for _, f := range flaps {
		f.do(m)
		began := time.Now()
		goOn(f)
		m.t.Logf("%s: goes on after %v", f.name, time.Since(began).Round(time.Millisecond))
	}
}

// TestFlaps: connections survive that an interface goes down and up, that an address is removed and
// added again, and that the route moves, as long as the time of their retries is longer. That time
// is half a second with the timeout of ibv_rc_pingpong (14, and 7 retries), and more than 8 s with
// the timeout of rdma_cm. iWARP has that of TCP. The long run also has a link that is down for 5 s,
// and the half second. On the kernel's sockets half a second is too short: Linux repeats its search
// for a neighbour once a second.
func TestFlaps(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	runtimeDir(t)
	// downs returns how long links are down, with the times of the long run if that is so.
	downs := func(long bool) []time.Duration {
		times := []time.Duration{100 * time.Millisecond, time.Second}
		switch {
		case gate.InLong():
			times = append(times, 5*time.Second)
		case !long:
			times = []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}
		}
		return times
	}
	// A second cable, for the route that moves.
	m.enter(0)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0", MTU: mtu}, PeerName: "w1", PeerMTU: mtu,
		PeerNamespace: netlink.NsFd(m.ns[1])}); err != nil {
		t.Fatal(err)
	}
	for i := range m.ns {
		m.ip(i, fmt.Sprintf("addr add 10.8.0.%d/24 dev w%d", i+1, i))
		m.ip(i, fmt.Sprintf("link set w%d up", i))
		for _, name := range []string{"all", fmt.Sprintf("v%d", i), fmt.Sprintf("w%d", i)} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	kernel := []flap{{"the peer's address is removed and added", "v1", func(m *machines) {
		m.ip(0, "addr del 10.7.0.1/24 dev v0")
		m.ip(0, "addr add 10.7.0.1/24 dev v0")
	}}, {"the own address is away for 100 ms", "v1", func(m *machines) {
		m.ip(1, "addr del 10.7.0.2/24 dev v1")
		outage(100 * time.Millisecond)
		m.ip(1, "addr add 10.7.0.2/24 dev v1")
	}}, {"the route moves", "w1", func(m *machines) {
		m.ip(0, "route replace 10.7.0.2/32 via 10.8.0.2 src 10.7.0.1")
		m.ip(1, "route replace 10.7.0.1/32 via 10.8.0.1 src 10.7.0.2")
	}}, {"the route moves back", "v1", func(m *machines) {
		m.ip(0, "route del 10.7.0.2/32")
		m.ip(1, "route del 10.7.0.1/32")
	}}}
	for _, transport := range []string{"rocev2", "iwarp"} {
		t.Run("kernel/"+transport, func(t *testing.T) {
			m.t = t
			flaps := slices.Clone(kernel)
			for i, d := range downs(transport == "rocev2") {
				flaps = append(flaps, linkFlap(i%2, fmt.Sprintf("v%d", i%2), "v1", d))
			}
			s := m.start(0, "rping -s -d -S 4096 --link kernel:v0 --transport "+transport)
			s.await("msg=listening")
			m.survives(s, m.start(1, "rping -c -V -S 4096 -a 10.7.0.1 --link kernel:v1 --transport "+transport), flaps)
		})
	}
	// A TAP in a bridge, and a packet socket.
	m.t = t
	m.ip(0, "link add br0 mtu 4200 type bridge")
	m.ip(0, "link set v0 master br0")
	m.ip(0, "link set br0 up")
	var taps []flap
	for i, d := range downs(false) {
		taps = append(taps, []flap{linkFlap(1, "v1", "v1", d), linkFlap(0, "rnic0", "v1", d)}[i%2])
	}
	if gate.InLong() { // its retries leave 0.4 s for this machine's other work
		t.Run("TAP and packet/pingpong", func(t *testing.T) {
			m.t = t
			s := m.startRoot(0, "pingpong rc -n 1000000000 --link tap:rnic0,bridge=br0 --mtu 4200 --addr 10.9.0.1/24")
			s.await("local address")
			m.survives(s, m.startRoot(1, "pingpong rc -n 1000000000 10.9.0.1 --link packet:v1 --mtu 4200 --addr 10.9.0.2/24"), taps[:1])
		})
	}
	for _, transport := range []string{"rocev2", "iwarp"} {
		t.Run("TAP and packet/"+transport, func(t *testing.T) {
			m.t = t
			s := m.startRoot(0, "rping -s -d -S 4096 --link tap:rnic0,bridge=br0 --mtu 4200 --addr 10.9.0.1/24 --transport "+transport)
			s.await("msg=listening")
			m.survives(s, m.startRoot(1, "rping -c -V -S 4096 -a 10.9.0.1 --link packet:v1 --mtu 4200 --addr 10.9.0.2/24 --transport "+
				transport), taps)
		})
	}
}

// TestKilledPeer: over shared memory, a connection ends at once when the peer's process is killed,
// and over the kernel's TCP, too. What is between the stack and the medium does not delay it.
func TestKilledPeer(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	runtimeDir(t)
	for _, between := range []string{"", " --impair none", " --capture FILE", ",vlan=5"} {
		for _, medium := range []struct {
			link, addr string
			transports []string
		}{{"shm", "10.9.0.%d/24", []string{"rocev2", "iwarp"}}, {"kernel:v%d", "", []string{"iwarp"}}} {
			if strings.HasPrefix(between, ",") && medium.addr == "" {
				continue // the kernel's VLANs are interfaces
			}
			for _, transport := range medium.transports {
				t.Run(strings.TrimSuffix(medium.link, ":v%d")+between+"/"+transport, func(t *testing.T) {
					m.t = t
					node := func(i int) string {
						link, addr := medium.link, ""
						if medium.addr == "" {
							link = fmt.Sprintf(link, i)
						} else {
							addr = " --addr " + fmt.Sprintf(medium.addr, i+1)
						}
						file := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("%s-%s-%d", link, transport, i))
						return " --transport " + transport + addr + " --link " + link + strings.Replace(between, "FILE", file, 1)
					}
					to := "10.9.0.1"
					if medium.addr == "" {
						to = "10.7.0.1"
					}
					s := m.start(0, "rping -s -d"+node(0))
					s.await("msg=listening")
					c := m.start(1, "rping -c -v -a "+to+node(1))
					c.await("ping data")
					if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					select {
					case <-c.ended:
						if took := time.Since(began); took > 4*time.Second { // without the notice it is more than 8 s
							t.Errorf("the client has ended %v after its peer:\n%s", took, tail(c.String()))
						}
					case <-time.After(30 * time.Second):
						t.Errorf("the client has not ended:\n%s", tail(c.String()))
						_ = c.cmd.Process.Kill()
					}
				})
			}
		}
	}
}

// tail returns the end of a long output.
func tail(s string) string { return s[max(0, len(s)-2000):] }
