//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rsocketPrograms are those of rdmacm-utils. Each rstream first sends 16 bytes each way, and then
// the data of its options, both ways one after the other. udpong's server returns messages with -T
// e. Without it, the client may send all messages by UDP, before the server's answer names the QP.
// With it, the client repeats a message if no answer comes in a millisecond, but in the buffer into
// which it has received an older answer, with that answer's number. So on a busy machine it waits
// without end if the answer to the first transmission is lost (udpong.c of rdma-core 44 to 65).
var rsocketPrograms = []cmProgram{
	{server: "rstream -b SERVER -S 64 -C 500 -T v", client: "rstream -s SERVER -S 64 -C 500 -T v", bytes: 2 * 500 * 64},
	{server: "rstream -b SERVER -S 65536 -C 20 -T b -T v", client: "rstream -s SERVER -S 65536 -C 20 -T b -T v", bytes: 2 * 20 * 65536},
	{server: "rstream -b SERVER -S 4096 -C 50 -T a -T v", client: "rstream -s SERVER -S 4096 -C 50 -T a -T v", bytes: 2 * 50 * 4096},
	{server: "rstream -b SERVER -S 1048576 -C 4 -T n -T v", client: "rstream -s SERVER -S 1048576 -C 4 -T n -T v", bytes: 2 * 4 << 20},
	{server: "rstream -b SERVER -S 1000 -C 50 -T r -T v -k 1", client: "rstream -s SERVER -S 1000 -C 50 -T r -T v -k 1",
		bytes: 2 * 50 * 1000},
	{server: "riostream -b SERVER -S 4096 -C 50 -T v", client: "riostream -s SERVER -S 4096 -C 50 -T v", bytes: 2 * 50 * 4096},
	{server: "riostream -b SERVER -S 1000000 -C 3 -T b -T v", client: "riostream -s SERVER -S 1000000 -C 3 -T b -T v",
		bytes: 2 * 3 * 1000000},
	{server: "udpong -b SERVER -S 64 -C 100", client: "udpong -s SERVER -S 64 -C 100", bytes: 1, roceOnly: true, endless: true, lossy: true},
	{server: "udpong -b SERVER -S 1000 -C 50 -T e", client: "udpong -s SERVER -S 1000 -C 50 -T e", bytes: 100000, roceOnly: true,
		endless: true, lossy: true},
	{server: "udpong -b SERVER -S 500 -C 50 -T a", client: "udpong -s SERVER -S 500 -C 50 -T a", bytes: 1, roceOnly: true,
		endless: true, lossy: true},
	{server: "udpong -b SERVER -S 1500 -C 50 -T b -T e", client: "udpong -s SERVER -S 1500 -C 50 -T b -T e", bytes: 150000, roceOnly: true,
		endless: true, lossy: true},
	// It binds to the first result of getaddrinfo without a name, which is ::1.
	{server: "udpong -S 64 -C 100 -T e", client: "udpong -s SERVER -S 64 -C 100 -T e", bytes: 12800, roceOnly: true,
		endless: true, lossy: true},
	{server: "udpong -b SERVER -S 64 -C 100 -T n -T e", client: "udpong -s SERVER -S 64 -C 100 -T n -T e", bytes: 12800, roceOnly: true,
		endless: true, lossy: true},
}

func TestRsocketPrograms(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rstream", "rdmacm-utils")
	runAll(t, rsocketPrograms)
}

// rsocketIPv6 have -f ipv6, the family of the addresses. rcopy does not support it, and its server
// listens on IPv4 only.
var rsocketIPv6 = []cmProgram{
	{server: "rstream -b SERVER -f ipv6 -S 4096 -C 50 -T v", client: "rstream -s SERVER -f ipv6 -S 4096 -C 50 -T v", bytes: 2 * 50 * 4096},
	{server: "riostream -b SERVER -f ipv6 -S 4096 -C 50 -T v", client: "riostream -s SERVER -f ipv6 -S 4096 -C 50 -T v",
		bytes: 2 * 50 * 4096},
}

// TestRsocketProgramsIPv6 uses shared memory. TestNamespaces uses the kernel's sockets, on
// addresses that do not exist here.
func TestRsocketProgramsIPv6(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rstream", "rdmacm-utils")
	runOver(t, []endpoints{{link: "shm:pair", server: "fd00:9::1/64", client: "fd00:9::2/64"}}, rsocketIPv6)
}

// TestRcopy: rcopy copies a file to memory that its server has mapped.
func TestRcopy(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rcopy", "rdmacm-utils")
	file := filepath.Join(build(t), "librdmacm.so.1")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mediaOf(links, &cmProgram{}) {
		t.Run(m.link+" "+m.transport, func(t *testing.T) {
			programs.Ran(t, "rcopy FILE SERVER", m.name()+" ("+m.called+")")
			copied := filepath.Join(shared(t), "copied")
			p := cmProgram{server: "rcopy", client: "rcopy " + file + " SERVER:" + copied, bytes: uint64(len(data)), endless: true}
			p.runOn(t, m)
			if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d are in the copy, or other ones: %v", len(got), len(data), err)
			}
		})
	}
}

// TestRsockets runs testdata/rsockets.c, which describes its checks.
func TestRsockets(t *testing.T) {
	gate.System(t)
	program := compile(t, "rsockets")
	for _, link := range links {
		for _, transport := range []string{"roce", "iwarp"} {
			t.Run(link.link+" "+transport, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				n, _ := link.pair(t)
				n.env = append(n.env, "SOFTRNIC_TRANSPORT="+transport)
				addr, _, _ := strings.Cut(link.server, "/")
				args := []string{addr}
				if transport == "roce" {
					args = append(args, "datagrams")
				}
				if out, err := n.program(ctx, t, program, args...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// TestCloseListener: rclose of a listener with unaccepted connections of silent peers takes as long
// as that of one connection: a second of SO_LINGER, and two for the peer's response to the
// disconnection.
func TestCloseListener(t *testing.T) {
	gate.System(t)
	program := compile(t, "rsockets")
	server, client := endpoints{link: "kernel:lo", server: "127.18.4.5", client: "127.18.4.6"}.pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listener := server.program(ctx, t, program, "127.18.4.5", "close")
	input, err := listener.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	listens, closed := proc.Start(t, listener)
	if err := listens.WaitFor("\n", closed); err != nil {
		t.Fatalf("%v\n%s", err, listens.String())
	}
	port := strings.TrimSpace(strings.TrimPrefix(listens.String(), "port "))
	peer := client.program(ctx, t, program, "127.18.4.5", "connect", port)
	connects, ended := proc.Start(t, peer)
	if err := connects.WaitFor("connected", ended); err != nil {
		t.Fatalf("%v\n%s", err, connects.String())
	}
	if err := peer.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil || time.Since(began) > 9*time.Second {
		t.Errorf("it ended after %v: %v\n%s", time.Since(began), err, listens.String())
	}
	cancel()
	<-ended
}

// TestRsocketDefaults: the files in /etc/rdma/rsocket set the defaults of new rsockets. The program
// has its own /etc, with nothing else.
func TestRsocketDefaults(t *testing.T) {
	gate.System(t)
	as := asNobody()
	own := []string{"unshare", "--mount", "--user", "--map-root-user"}
	if !as.try(exec.Command(own[0], append(own[1:], "true")...)) {
		if own, as = own[:2], (user{}); os.Getuid() != 0 {
			t.Skip("this user may make no namespaces")
		}
	}
	program, dir := compile(t, "rsockets"), shared(t)
	if err := os.MkdirAll(filepath.Join(dir, "rdma/rsocket"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"mem_default": "65536\n", "wmem_default": "32768", "sqsize_default": "100\n", "rqsize_default": "many\n", "inline_default": "0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "rdma/rsocket", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n, _ := links[0].pair(t)
	cmd := n.program(t.Context(), t, own[0], append(own[1:], "sh", "-ec", `mount --bind "$0" /etc; "$@"`, dir, program, "10.9.0.1",
		"defaults")...)
	cmd.SysProcAttr = as.attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Constants of udpong's messages. A message begins with one of them, then the number of the client,
// and a sequence number. Bytes 5 to 8 have the response to udpongEnd.
const (
	udpongLogin = 0
	udpongStart = 1
	udpongEcho  = 3
	udpongEnd   = 4
)

// packetConn returns a datagram rsocket on the machine's own sockets, and its device.
func packetConn(t *testing.T, addr string) (*verbs.Device, *rsocket.PacketConn) {
	t.Helper()
	at := netip.MustParseAddrPort(addr)
	host, err := kernel.New(&kernel.Config{Addrs: []string{at.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	c, err := rsocket.NewPacketConn(dev, udp, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return dev, c
}

// TestUdpongAndGo: udpong's client on the drop-in libraries, with rsocket.PacketConn as udpong's
// server. The server returns the number of received messages, and each message with -T e.
func TestUdpongAndGo(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/udpong", "rdmacm-utils")
	const count = 100
	link := endpoints{link: "kernel:lo", server: "127.18.4.1", client: "127.18.4.2"}
	_, client := link.pair(t)
	dev, c := packetConn(t, link.server+":7174")
	var serving sync.WaitGroup
	defer serving.Wait()
	defer c.Close()
	echoed := make(chan uint32, 1)
	serving.Go(func() {
		var n uint32
		b := make([]byte, rsocket.MaxDatagram)
		for {
			got, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if got < 16 {
				t.Errorf("a message of %d bytes", got)
				continue
			}
			switch b[0] {
			case udpongLogin, udpongStart:
				n = 0
			case udpongEcho:
				n++
			case udpongEnd:
				binary.BigEndian.PutUint32(b[4:], n)
				select {
				case echoed <- n:
				default:
				}
			}
			if _, err := c.WriteTo(b[:got], from); err != nil {
				t.Errorf("WriteTo: %v", err)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	out, err := client.program(ctx, t, "udpong", "-s", link.server, "-S", "500", "-C", strconv.Itoa(count), "-T", "e").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := <-echoed; n < count { // it repeats messages that are not answered within a millisecond
		t.Errorf("%d messages have come, not %d\n%s", n, count, out)
	}
	counters, err := dev.PortCounters(1)
	if err != nil {
		t.Fatal(err)
	}
	if n := counters["port_rcv_packets"]; n < count/2 {
		t.Errorf("only %d have come to the QP", n)
	}
}

// TestGoAndUdpong is the reverse: rsocket.PacketConn as udpong's client, which repeats unanswered
// messages.
func TestGoAndUdpong(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/udpong", "rdmacm-utils")
	const count = 100
	link := endpoints{link: "kernel:lo", server: "127.18.4.3", client: "127.18.4.4"}
	server, _ := link.pair(t)
	server.env = append(server.env, "SOFTRNIC_LOG=debug")
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	cmd := server.program(ctx, t, "udpong", "-b", link.server)
	said, ended := proc.Start(t, cmd)
	defer func() { cancel(); <-ended }()
	if err := said.WaitFor("rsocket is bound", ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	dev, c := packetConn(t, link.client+":0")
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(link.server + ":7174"))
	answer := make([]byte, rsocket.MaxDatagram)
	ask := func(message []byte) []byte {
		for ctx.Err() == nil {
			if _, err := c.WriteTo(message, to); err != nil {
				t.Fatalf("WriteTo: %v", err)
			}
			if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			for {
				n, from, err := c.ReadFrom(answer)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if err != nil || from.String() != to.String() {
					t.Fatalf("ReadFrom: %v, from %v", err, from)
				}
				if n == len(message) && answer[0] == message[0] && answer[2] == message[2] {
					return answer[:n]
				}
			}
		}
		t.Fatalf("no answer\n%s", said.String())
		return nil
	}
	id := ask(append([]byte{udpongLogin}, make([]byte, 15)...))[1]
	for i := range count {
		message := append([]byte{udpongEcho, id, byte(i)}, make([]byte, 497)...)
		rand.Read(message[8:])
		if got := ask(message); !bytes.Equal(got, message) {
			t.Fatalf("message %d is returned changed", i)
		}
	}
	if n := binary.BigEndian.Uint32(ask(append([]byte{udpongEnd, id}, make([]byte, 14)...))[4:]); n < count {
		t.Errorf("%d messages have come to udpong, not %d", n, count)
	}
	counters, err := dev.PortCounters(1)
	if err != nil {
		t.Fatal(err)
	}
	if n := counters["port_rcv_packets"]; n < count/2 {
		t.Errorf("only %d have come to the QP", n)
	}
}
