//go:build linux

package interop

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// socketsLab is a peer, and softrnic on the sockets of the machine in the peer's network. softrnic
// runs as nobody, on the bridge's own addresses.
type socketsLab struct {
	peer    *peer.Peer
	program string // softrnic
	ipv6    bool
}

func (l socketsLab) String() string {
	return fmt.Sprintf("%s,MTU=%d", map[bool]string{false: "IPv4", true: "IPv6"}[l.ipv6], l.peer.MTU)
}

// addrs returns those of the QPs; the programs connect over IPv4.
func (l socketsLab) addrs() (here, there netip.Addr) {
	if l.ipv6 {
		return netip.MustParseAddr("fd77::1"), l.peer.Addr6()
	}
	return netip.MustParseAddr("10.77.0.1"), l.peer.Addr4()
}

// softrnic starts the program, with the node's flags after args.
func (l socketsLab) softrnic(ctx context.Context, t *testing.T, args string) *process {
	t.Helper()
	here, _ := l.addrs()
	args += " --counters --link kernel:" + l.peer.Netns.Bridge + " --addr " + here.String()
	if l.ipv6 {
		args += " --addr 10.77.0.1"
	}
	return startProcess(t, l.peer.Netns.Command(ctx, "setpriv", asNobody(l.program, args)...))
}

// runtimeDirectoryOfNobody sets a directory of the test for programs that run as nobody. Its path
// is short, since it holds sockets.
func runtimeDirectoryOfNobody(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
}

// asNobody returns setpriv's arguments that run a program as nobody, without capabilities.
func asNobody(program, args string) []string {
	return append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all", program},
		strings.Fields(args)...)
}

// count reads a counter that --counters has printed; 0 if it is missing.
func (p *process) count(name string) uint64 {
	m := regexp.MustCompile(`\b` + name + ` +(\d+)`).FindStringSubmatch(p.stderr.String())
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseUint(m[1], 10, 64)
	return n
}

// noDamage checks that no packet was received with a wrong ICRC.
func (p *process) noDamage(t *testing.T) {
	t.Helper()
	for _, name := range []string{"icrc_errors", "malformed_packets"} {
		if n := p.count(name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// rxeReceived returns the number of packets with a correct ICRC that the peer's rxe has received:
// it counts no others.
func (l socketsLab) rxeReceived(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(l.peer.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// counted runs a program of each side, and checks that no packet had a wrong ICRC. softrnic has
// counted none, and rxe has received all packets that softrnic has sent. A server of ours may end
// before rxe's last packet arrives.
func (l socketsLab) counted(t *testing.T, run func(t *testing.T) (p *process, again bool)) (again bool) {
	t.Helper()
	received := l.rxeReceived(t)
	p, again := run(t)
	if again || t.Failed() {
		return again
	}
	p.noDamage(t)
	if n := p.count("icrc_id_solved"); l.ipv6 && n != 0 || !l.ipv6 && n == 0 {
		t.Errorf("%d identifications were solved", n)
	}
	// The program of rxe may end before the last answers to repeated requests arrive, which then have
	// no QP.
	late := p.count("duplicate_request")
	for begin := time.Now(); ; {
		now := l.rxeReceived(t)
		missing := p.count("sent_pkts") - (now - received)
		if missing == 0 || missing > 0 && missing <= late && time.Since(begin) > 2*time.Second {
			return false
		}
		if time.Since(begin) > patience {
			t.Errorf("of %d packets rxe has received %d\n%s", p.count("sent_pkts"), now-received, p.stderr.String())
			return false
		}
	}
}

// pingpong runs both sides of a ping-pong, with softrnic as the client or the server.
func (l socketsLab) pingpong(service, args string, client bool) func(t *testing.T) (p *process, again bool) {
	return func(t *testing.T) (p *process, again bool) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, there := l.addrs()
		kernel := fmt.Sprintf("ibv_%s_pingpong -e -c %s -d rxe0 -g %d", service, args, gidIndex(t, l.peer, there))
		here := fmt.Sprintf("pingpong %s -c %s", service, args)
		if l.ipv6 {
			here += fmt.Sprintf(" -g %d", 1) // --addr's first
		}
		if !client {
			p := l.softrnic(ctx, t, here)
			l.awaitListening(ctx, t, "18515")
			calling, err := l.peer.Start(kernel + " 10.77.0.1")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = calling.Kill() }()
			p.wait(t)
			return p, ended(t, l.peer, calling, exitOf(ctx, calling))
		}
		serving, err := l.peer.Start(kernel)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = serving.Kill() }()
		l.peer.Run(t, untilPingpongListens)
		p = l.softrnic(ctx, t, here+" "+l.peer.Addr4().String())
		p.wait(t)
		return p, ended(t, l.peer, serving, exitOf(ctx, serving))
	}
}

// awaitListening waits until softrnic listens on a TCP port.
func (l socketsLab) awaitListening(ctx context.Context, t *testing.T, port string) {
	t.Helper()
	for {
		out, err := l.peer.Netns.Command(ctx, "ss", "-Hltn", "sport", "=", ":"+port).Output()
		if err != nil {
			t.Fatal(errors.Join(err, ctx.Err()))
		}
		if len(out) > 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// socketsLabs runs f for both IP versions.
func socketsLabs(t *testing.T, mtu int, f func(l socketsLab)) {
	l := socketsLab{program: softrnicProgram(t), peer: peer.Boot(t, peer.Config{ID: 2, MTU: mtu})[0]}
	tracePort(t, l.peer)
	for _, l.ipv6 = range []bool{false, true} {
		f(l)
	}
}

// TestSocketsPingpong runs each ping-pong against rxe, from the machine's own sockets, as nobody,
// in either role.
func TestSocketsPingpong(t *testing.T) {
	gate.System(t)
	for _, mtu := range []struct{ link, path int }{{1500, 1024}, {4200, 4096}} {
		socketsLabs(t, mtu.link, func(l socketsLab) {
			for _, c := range []struct {
				service, args string
				clients       []bool // whether softrnic is
			}{
				{"rc", fmt.Sprintf("-n 20 -s 100000 -m %d", mtu.path), []bool{true, false}},
				{"uc", fmt.Sprintf("-n 20 -s %d -m %d", 3*mtu.path+1, mtu.path), []bool{l.ipv6}},
				{"ud", fmt.Sprintf("-n 20 -s %d", mtu.path), []bool{!l.ipv6}},
				{"srq", fmt.Sprintf("-n 20 -s %d -m %d", mtu.path+1, mtu.path), []bool{l.ipv6}},
			} {
				if c.service != "rc" && mtu.link != 1500 {
					continue
				}
				for _, client := range c.clients {
					t.Run(fmt.Sprintf("%v/%s %s/client=%t", l, c.service, c.args, client), func(t *testing.T) {
						run := l.pingpong(c.service, c.args, client)
						tries(t, func() (again bool) {
							if c.service != "srq" {
								return l.counted(t, run)
							}
							// The program of rxe may end before the last packets arrive, which then have no QP.
							p, again := run(t)
							p.noDamage(t)
							return again
						})
					})
				}
			}
		})
	}
}

// TestSocketsRping: rping over rxe and over siw, from the machine's own sockets, as nobody, in both
// roles.
func TestSocketsRping(t *testing.T) {
	gate.System(t)
	program := softrnicProgram(t)
	tracePort(t, cmPeer(t, 2, verbs.RoCEv2))
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		l := socketsLab{program: program, peer: cmPeer(t, 2, transport)}
		for _, l.ipv6 = range []bool{false, true} {
			here, there := l.addrs()
			const options = "-S 20000 -C 50 -v -V"
			t.Run(fmt.Sprintf("%v/%v/client", transport, l), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				serving, err := l.peer.Start(fmt.Sprintf("rping -s -a %v -S 20000 -v", there))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = serving.Kill() }()
				l.peer.Run(t, untilRpingListens)
				p := l.softrnic(ctx, t, fmt.Sprintf("rping -c -a %v %s --transport %v", there, options, transport))
				p.wait(t)
				if code, err := serving.Wait(ctx); err != nil || code != 0 {
					t.Errorf("rping -s: exit status %d, %v\n%.2000s", code, err, serving.Output())
				}
				p.rpings(t)
			})
			t.Run(fmt.Sprintf("%v/%v/server", transport, l), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				p := l.softrnic(ctx, t, fmt.Sprintf("rping -s -d -v -S 20000 --transport %v", transport))
				p.await(t, "msg=listening")
				out, code, err := rpingClient(ctx, l.peer, fmt.Sprintf("rping -c -a %v %s", here, options))
				if err != nil || code != 0 {
					t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
					cancel()
				}
				p.wait(t)
				p.rpings(t)
			})
		}
	}
}

// rpings checks the output of a program that has run 50 rpings.
func (p *process) rpings(t *testing.T) {
	t.Helper()
	if n := bytes.Count(p.stdout.Bytes(), []byte("ping data: rdma-ping-")); n != 50 {
		t.Errorf("softrnic prints %d pings, want 50", n)
	}
	if n := p.count("icrc_errors"); n != 0 {
		t.Errorf("icrc_errors is %d", n)
	}
}

// TestSocketsIdentification: packets from the machine's sockets have DF. In IPv4 they have an
// identification of 0 or, from a segmented superframe, 0, 1, 2, …. Their ICRCs are correct for it.
func TestSocketsIdentification(t *testing.T) {
	gate.System(t)
	socketsLabs(t, 1500, func(l socketsLab) {
		t.Run(l.String(), func(t *testing.T) {
			var fd int
			if err := l.peer.Netns.Do(func() (err error) {
				const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
				if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
					return err
				}
				tap, err := net.InterfaceByName(fmt.Sprintf("peer%d", l.peer.ID))
				if err != nil {
					return err
				}
				return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: tap.Index}),
					unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
			}); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			// Sent packets count, whether rxe ends or not.
			p, _ := l.pingpong("rc", "-n 50 -s 100000 -m 1024", true)(t)
			singles, superframes := 0, 0
			last, most := 0, 0 // identifications
			b := make([]byte, 1<<17)
			for {
				n, from, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
				if err == unix.EAGAIN {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if a, ok := from.(*unix.SockaddrLinklayer); !ok || a.Pkttype != unix.PACKET_OUTGOING {
					continue
				}
				header, payload, ok := roce(b[:n])
				if !ok {
					continue
				}
				if !l.ipv6 {
					id := int(binary.BigEndian.Uint16(header[4:]))
					if id != 0 && id != last+1 || header[6]&0x40 == 0 {
						t.Errorf("a packet of %d bytes, after one of ID %d, has the identification and flags %x", n, last, header[4:8])
					}
					last, most = id, max(most, id)
				}
				if n > 14+1500 {
					superframes++
					continue
				}
				singles++
				if !wire.CheckICRC(header, payload) {
					t.Errorf("wrong ICRC under % x", header)
				}
			}
			t.Logf("%d packets and %d superframes were sent, with identifications to %d", singles, superframes, most)
			if singles < 50 || singles+60*superframes < int(p.count("sent_pkts"))/2 {
				t.Errorf("%d packets and %d superframes seen, %d packets sent", singles, superframes, p.count("sent_pkts"))
			}
		})
	})
}

// TestSocketsTaken: if rxe has the port of all addresses, the error says so, and names a remedy.
func TestSocketsTaken(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	b, err := os.ReadFile(softrnicProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const there = "/tmp/softrnic"
	var packed bytes.Buffer // the copy is slow
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), p.Put(ctx, there+".gz", packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	defer p.Run(t, "rm "+there)
	out, code, err := p.Exec(ctx, "gunzip "+there+".gz && chmod +x "+there+" && "+there+" devinfo --link kernel:eth0")
	if err != nil || code != 1 {
		t.Errorf("exit status %d, %v\n%s", code, err, out)
	}
	for _, want := range []string{"in use, probably by the kernel's rxe0 on eth0", "rdma link delete rxe0"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
}

// forNobody returns a new directory for programs that run as nobody.
func forNobody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dropin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	return dir
}
