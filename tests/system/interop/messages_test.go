//go:build linux

package interop

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	sockets "github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// messagesEnv makes the test binary SoftRNIC's side of TestSocketsMessages. It holds "client" or
// "server", the number of the transport, the own address, and the peer's.
const messagesEnv = "SOFTRNIC_INTEROP_MESSAGES"

// TestSocketsMessages sends 100,000 messages each way between the machine's own sockets, as nobody,
// and rxe or siw, in both roles. Outside the long run there are fewer: the peer's CPU is emulated.
// The messages are ucmatose's, which posts many at once, and sends each way in turn. There are few
// connections, so that at most 256 packets in a row are lost if a side is slow. After a larger gap,
// one packet has an identification that cannot be distinguished from damage.
func TestSocketsMessages(t *testing.T) {
	gate.System(t)
	connections, messages, limit := 4, 500, 2*time.Minute
	if os.Getenv("SOFTRNIC_LONG") != "" {
		messages, limit = 25_000, time.Hour
	}
	options := fmt.Sprintf("-c %d -C %d", connections, messages)
	if task := os.Getenv(messagesEnv); task != "" {
		exchangeMessages(t, task, connections, messages, limit)
		return
	}
	program := testBinary(t)
	if !gate.InLong() {
		tracePort(t, cmPeer(t, 2, verbs.RoCEv2))
	}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		l := socketsLab{program: program, peer: cmPeer(t, 2, transport)}
		for _, l.ipv6 = range []bool{false, true} {
			here, there := l.addrs()
			for _, role := range []string{"client", "server"} {
				t.Run(fmt.Sprintf("%v/%v/%s", transport, l, role), func(t *testing.T) {
					run := func(t *testing.T) *process {
						began := time.Now()
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						cmd := l.peer.Netns.Command(ctx, "setpriv",
							asNobody(program, "-test.run=^TestSocketsMessages$ -test.timeout=2h")...)
						cmd.Dir = filepath.Dir(program)
						cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %v %v", messagesEnv, role, int(transport), here, there))
						var p *process
						if role == "client" {
							serving := cmPair{cmLab: cmLab{peer: l.peer}}.startServer(t, fmt.Sprintf("ucmatose -b %v %s", there, options))
							p = startProcess(t, cmd)
							p.wait(t)
							if code, err := serving.Wait(ctx); err != nil || code != 0 {
								t.Errorf("ucmatose: exit status %d, %v\n%.2000s", code, err, serving.Output())
							}
						} else {
							p = startProcess(t, cmd)
							p.await(t, "listening")
							out, code, err := l.peer.Exec(ctx, fmt.Sprintf("ucmatose -s %v %s", here, options))
							if err != nil || code != 0 {
								t.Errorf("ucmatose: exit status %d, %v\n%.2000s", code, err, out)
								cancel()
							}
							p.wait(t)
						}
						if t.Failed() {
							t.Logf("SoftRNIC's side: %.2000s", p.stdout.String())
						}
						t.Logf("result: %d messages each way in %v", connections*messages, time.Since(began).Round(time.Second/10))
						return p
					}
					if transport == verbs.RoCEv2 {
						l.undamaged(t, run)
					} else {
						run(t)
					}
				})
			}
		}
	}
}

// undamaged runs a program of each side, and checks that no packet had a wrong ICRC. softrnic has
// counted none. rxe has received all packets that reached the UDP layer of its machine. The
// emulated machine is slow, so some do not reach it.
func (l socketsLab) undamaged(t *testing.T, run func(t *testing.T) *process) {
	t.Helper()
	delivered, received := l.delivered(t), l.rxeReceived(t)
	p := run(t)
	if t.Failed() {
		return
	}
	p.noDamage(t)
	delivered, received = l.delivered(t)-delivered, l.rxeReceived(t)-received
	t.Logf("%d packets sent, %d delivered to rxe's machine, %d received by rxe; %d received here", p.count("sent_pkts"), delivered,
		received, p.count("rcvd_pkts"))
	const others = 20 // IP packets that are not RoCE: neighbours, groups
	if received == 0 || received > delivered || delivered > received+others {
		t.Errorf("of %d packets rxe has received %d", delivered, received)
	}
}

// delivered returns the number of packets that the peer's IP layer has delivered.
func (l socketsLab) delivered(t *testing.T) uint64 {
	t.Helper()
	command := "awk '/^Ip:/ && n++ { print $10 }' /proc/net/snmp"
	if l.ipv6 {
		command = "awk '/^Ip6InDelivers/ { print $2 }' /proc/net/snmp6"
	}
	n, err := strconv.ParseUint(strings.TrimSpace(l.peer.Run(t, command)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// testBinary copies the test binary to a place where nobody can run it.
func testBinary(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "interop.test")
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// exchangeMessages is ucmatose, on the machine's own sockets. At the end it writes the device's
// counters to standard error.
func exchangeMessages(t *testing.T, task string, connections, messages int, limit time.Duration) {
	var role, addr, peerAddr string
	var number int
	if _, err := fmt.Sscan(task, &role, &number, &addr, &peerAddr); err != nil {
		t.Fatal(err)
	}
	transport, here, there := verbs.Transport(number), netip.MustParseAddr(addr), netip.MustParseAddr(peerAddr)
	host, err := sockets.New(&sockets.Config{Interface: "br0", Addrs: []string{here.String()}})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, host.Close)
	cfg := &rdmatransport.Config{IWARP: iwarp.Config{SendFirst: true}}
	if transport == verbs.IWARP { // few events, of which the end of a stream has the reason
		cfg.Trace = trace.Logger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}
	dev, err := rdmatransport.Open(host, cfg)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, dev.Close)
	t.Cleanup(func() { // when all connections are closed
		for name, n := range hwCounters(t, dev) {
			fmt.Fprintln(os.Stderr, name, n)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := newCmatose(t, cmLab{dev: dev, transport: transport}, connections, messages)
	if role == "client" {
		err = c.connect(ctx, netip.AddrPortFrom(there, cmatosePort))
	} else {
		c.listen(t, rdmacm.TCP, transport, netip.AddrPortFrom(here, cmatosePort))
		fmt.Fprintln(os.Stderr, "listening")
		err = c.serve(ctx)
	}
	if err != nil {
		t.Error(err)
	}
}
