//go:build linux

package sockets

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// startAgent starts an agent whose node has no peer, and returns the address of its socket and its
// token.
func startAgent(tb testing.TB) (addr string, token []byte) {
	tb.Helper()
	_, addr, token = newAgent(tb, nil)
	return addr, token
}

// otherHost returns the device of another host on the switch, 10.0.0.N.
func otherHost(tb testing.TB, lan *pipe.Switch, n int) *verbs.Device {
	tb.Helper()
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{fmt.Sprintf("10.0.0.%d/24", n)}})
	if err != nil {
		tb.Fatal(err)
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(dev.Close(), host.Close()); err != nil {
			tb.Error(err)
		}
	})
	return dev
}

// newAgent starts an agent whose node is on a switch. If lan is nil, the node has no peer.
func newAgent(tb testing.TB, lan *pipe.Switch) (a *Agent, addr string, token []byte) {
	tb.Helper()
	return newAgentAt(tb, lan, "10.0.0.1/24", Config{Wait: time.Millisecond})
}

// newAgentAt is newAgent with an address and a configuration, which it completes.
func newAgentAt(tb testing.TB, lan *pipe.Switch, at string, cfg Config) (a *Agent, addr string, token []byte) {
	tb.Helper()
	var f node.Flags
	f.Log = slog.LevelError
	if err := f.Link.UnmarshalText([]byte("pipe")); err != nil {
		tb.Fatal(err)
	}
	f.Addr = []node.CIDR{{Prefix: netip.MustParsePrefix(at)}}
	n, err := f.Open(&cli.Env{Stdout: io.Discard, Stderr: io.Discard, LAN: lan})
	if err != nil {
		tb.Fatal(err)
	}
	cfg.Transports, cfg.Counters = []verbs.Transport{verbs.RoCEv2}, relay.NewCounters("sockets")
	a, err = New(n, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
		if err := n.Close(); err != nil {
			tb.Error(err)
		}
	})
	name, digits, _ := strings.Cut(strings.TrimSuffix(a.Env(), ":direct"), ":")
	token, err = hex.DecodeString(digits)
	if err != nil {
		tb.Fatal(err)
	}
	return a, "@" + name, token
}

// ask sends a packet with descriptors and returns the answer, or nil if the packet is refused.
func ask(tb testing.TB, addr string, packet []byte, fds ...int) []byte {
	tb.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(packet, rights, nil)
	if errors.Is(err, unix.EPIPE) { // the agent has already closed the connection of a foreign user
		return nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, 2*answerLen)
	n, _ := c.Read(b)
	return b[:max(n, 0)]
}

// socket creates an IPv4 socket.
func socket(tb testing.TB, kind int) int {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// connectTo returns a request to connect to an address.
func connectTo(token []byte, to string) []byte {
	b := append(bytes.Clone(token), make([]byte, requestLen-tokenLen)...)
	binary.NativeEndian.PutUint32(b[tokenLen:], uint32(opConnect))
	putName(b[tokenLen+4:], netip.MustParseAddrPort(to))
	return b
}

// TestRefusedRequests: a wrong token or an invalid request gets no answer. A valid request does.
func TestRefusedRequests(t *testing.T) {
	addr, token := startAgent(t)
	tcp, udp := socket(t, unix.SOCK_STREAM), socket(t, unix.SOCK_DGRAM)
	right := connectTo(token, "10.0.0.2:80")
	for name, got := range map[string][]byte{
		"wrong token":  ask(t, addr, connectTo(make([]byte, tokenLen), "10.0.0.2:80"), tcp),
		"too short":    ask(t, addr, right[:requestLen-1], tcp),
		"too long":     ask(t, addr, append(bytes.Clone(right), 0), tcp),
		"no socket":    ask(t, addr, right),
		"two sockets":  ask(t, addr, right, tcp, udp),
		"many sockets": ask(t, addr, right, tcp, udp, tcp, udp, tcp, udp, tcp, udp),
	} {
		if len(got) > 0 {
			t.Errorf("%s: the answer is %x", name, got)
		}
	}
	if got := ask(t, addr, right, udp); !bytes.Equal(got, answer(declined, netip.AddrPort{})) {
		t.Errorf("a UDP socket: %x", got)
	}
	if got := ask(t, addr, right, tcp); !bytes.Equal(got, answer(int32(unix.ETIMEDOUT), netip.AddrPort{})) &&
		!bytes.Equal(got, answer(int32(unix.EHOSTUNREACH), netip.AddrPort{})) {
		t.Errorf("without a receiver: %x", got)
	}
}

// TestSilentRequests: connections that send nothing, or what is no request, keep no request out.
func TestSilentRequests(t *testing.T) {
	a, addr, token := newAgent(t, nil)
	for i := range maxUnread {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write([]byte("no request"))
		}
	}
	if got := ask(t, addr, connectTo(token, "10.0.0.2:80"), socket(t, unix.SOCK_DGRAM)); len(got) != answerLen {
		t.Errorf("the answer is %x", got)
	}
	if s := a.Unread(); s.Held > maxUnread {
		t.Errorf("%+v", s)
	}
}

// TestForeignUsers: an agent answers its own user and root, and no other user who knows the token.
func TestForeignUsers(t *testing.T) {
	const agentOf, own, foreign = "SOFTRNIC_TEST_AGENT", 65001, 65002
	if os.Getenv(agentOf) != "" { // in the process of the agent
		a, _, _ := newAgent(t, nil)
		fmt.Println(a.Env())
		_, _ = io.ReadAll(os.Stdin)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	agent := exec.Command("/proc/self/exe", "-test.run=^TestForeignUsers$")
	agent.Env = []string{agentOf + "=1", "XDG_RUNTIME_DIR=/nonexistent"}
	agent.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: own, Gid: own}}
	agent.Stderr = os.Stderr
	in, err := agent.StdinPipe()
	ok(t, err)
	out, err := agent.StdoutPipe()
	ok(t, err)
	ok(t, agent.Start())
	defer func() {
		_ = in.Close()
		ok(t, agent.Wait())
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	ok(t, err)
	name, digits, _ := strings.Cut(strings.TrimSpace(line), ":")
	token, err := hex.DecodeString(digits)
	ok(t, err)
	request, udp := connectTo(token, "10.0.0.2:80"), socket(t, unix.SOCK_DGRAM)
	for uid, want := range map[int]int{0: answerLen, own: answerLen, foreign: 0} {
		var answer []byte
		as(t, uid, func() { answer = ask(t, "@"+name, request, udp) })
		if len(answer) != want {
			t.Errorf("user %d: the answer has %d bytes, not %d", uid, len(answer), want)
		}
	}
}

func ok(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// FuzzRequest: any packet with the token gets one answer.
func FuzzRequest(f *testing.F) {
	addr, token := startAgent(f)
	for op := opConnect; op <= opLocal+1; op++ {
		b := connectTo(token, "10.0.0.1:7")
		binary.NativeEndian.PutUint32(b[tokenLen:], uint32(op))
		f.Add(b[tokenLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != requestLen-tokenLen {
			return
		}
		if got := ask(t, addr, append(bytes.Clone(token), b...), socket(t, unix.SOCK_STREAM)); len(got) != answerLen {
			t.Errorf("the answer to %x is %x", b, got)
		}
	})
}
