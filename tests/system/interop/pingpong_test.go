//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
)

// pingpong is one run of `softrnic pingpong` against ibv_*_pingpong, with validated data.
type pingpong struct {
	service  string // rc, uc, ud or srq
	peer     *peer.Peer
	gid      int    // index of the peer's
	program  string // softrnic
	captures string // directory
	try      int    // from 1, while it runs
	link     string // for --link
	ipv6     bool
	mtu      int // path MTU
	size     int
	vlan     *vlanNet // nil: none
	sl       int      // service level
}

func (p pingpong) String() string {
	family := "IPv4"
	if p.ipv6 {
		family = "IPv6"
	}
	return fmt.Sprintf("%s,MTU=%d,size=%d", family, p.mtu, p.size)
}

// addrs returns the addresses that the QPs use, of either family; addrs4 returns the IPv4 addresses
// of the TCP connection.
func (p pingpong) addrs() (here, there netip.Addr, cidr string) {
	switch {
	case !p.ipv6:
		return p.addrs4()
	case p.vlan != nil:
		return p.vlan.here6.Addr(), p.vlan.there6.Addr(), p.vlan.here6.String()
	}
	return softrnicAddr6, p.peer.Addr6(), softrnicCIDR6
}

func (p pingpong) addrs4() (here, there netip.Addr, cidr string) {
	if p.vlan != nil {
		return p.vlan.here4.Addr(), p.vlan.there4.Addr(), p.vlan.here4.String()
	}
	return softrnicAddr4, p.peer.Addr4(), softrnicCIDR4
}

func (p pingpong) iters() int {
	if p.size >= 100_000 {
		return 4
	}
	return 20
}

// kernel sleeps until there is a completion (-e). On an emulated CPU, polling would take the time
// that rxe needs to answer within these programs' half second of retries.
func (p pingpong) kernel() string {
	return fmt.Sprintf("ibv_%s_pingpong -e %s -d rxe0 -g %d", p.service, strings.Join(p.args(), " "), p.gid)
}

// args are the arguments of both sides.
func (p pingpong) args() []string {
	args := []string{"-c", "-n", fmt.Sprint(p.iters()), "-s", fmt.Sprint(p.size)}
	if p.service != "ud" { // a datagram fits the link
		args = append(args, "-m", fmt.Sprint(p.mtu))
	}
	// All QPs send at once, and the emulated CPU has to answer in 67 ms.
	if p.service == "srq" && p.size >= 65536 {
		args = append(args, "-q", "4")
	}
	if p.sl != 0 {
		args = append(args, "-l", fmt.Sprint(p.sl))
	}
	return args
}

// softrnic prepares the command, which is interrupted when ctx ends, so that its capture is
// complete. An empty server makes it the server.
func (p pingpong) softrnic(ctx context.Context, t *testing.T, server string) *exec.Cmd {
	t.Helper()
	_, _, cidr := p.addrs()
	args := slices.Concat([]string{"pingpong", p.service}, p.args(), []string{
		"--link", p.link, "--mac", softrnicMAC.String(), "--addr", cidr})
	if p.ipv6 { // the kernel's server listens on IPv4 only, even with an IPv6 GID
		_, _, meet := p.addrs4()
		args = append(args, "--addr", meet, "-g", "1")
	}
	args = append(args, "--capture", p.capture(t))
	if strings.HasPrefix(p.link, "tap:") {
		args = append(args, "--mtu", fmt.Sprint(p.peer.MTU))
	}
	if server != "" {
		args = append(args, server)
	}
	cmd := p.peer.Netns.Command(ctx, p.program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	return cmd
}

// capture is the file with the packets of SoftRNIC's link at this attempt, or at the first.
func (p pingpong) capture(t *testing.T) string {
	name := filepath.Join(p.captures, strings.ReplaceAll(t.Name(), "/", ","))
	if p.try > 1 {
		name += fmt.Sprintf(",%d", p.try)
	}
	return name
}

// tries repeats a ping-pong with rxe, at most ten times, if it ends as rxeRepeats or lost describe.
func tries(t *testing.T, try func() (again bool)) {
	t.Helper()
	for range 10 {
		if !try() {
			return
		}
	}
	t.Error("ten times")
}

// exit is how a program of the kernel's ended.
type exit struct {
	code int
	err  error
}

// exitOf waits for a program in the background.
func exitOf(ctx context.Context, program *control.Process) chan exit {
	c := make(chan exit, 1)
	go func() {
		code, err := program.Wait(ctx)
		c <- exit{code, err}
	}()
	return c
}

// ended checks how the kernel's ping-pong ends after softrnic's has ended. It returns true if it
// does not end because rxe repeats.
func ended(t *testing.T, p *peer.Peer, program *control.Process, exited chan exit) (again bool) {
	t.Helper()
	var e exit
	select {
	case e = <-exited:
	case <-time.After(patience):
		if rxeRepeats(t, p) {
			return true
		}
		e = <-exited
	}
	if e.err != nil || e.code != 0 {
		t.Errorf("the kernel's ping-pong: exit status %d, %v\n%s", e.code, e.err, program.Output())
	}
	return false
}

// rxeRepeats reports whether rxe repeats a request to a QP that no longer exists. rxe drops an
// acknowledgement that arrives while it is about to repeat the request. On an emulated CPU this
// happens without loss, if 67 ms are not enough. The seven retries of these programs are without
// end: see peer.RetriesEndlessly. The last ping-pong allows the peer to end, and a peer that has
// ended never answers.
func rxeRepeats(t *testing.T, p *peer.Peer) bool {
	t.Helper()
	if !p.Kernel.Has(peer.RetriesEndlessly) {
		return false
	}
	retries := func() (n int) {
		n, err := strconv.Atoi(strings.TrimSpace(p.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := retries()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if retries() >= before+3 {
			t.Log("rxe has dropped the last acknowledgement, and repeats without end: retrying")
			return true
		}
	}
	return false
}

// client runs softrnic as the client of the kernel's server.
func (p pingpong) client(t *testing.T) {
	tries(t, func() bool { p.try++; return p.asClient(t) })
}

func (p pingpong) asClient(t *testing.T) (again bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving, err := p.peer.Start(p.kernel())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	p.peer.Run(t, untilPingpongListens)
	_, there, _ := p.addrs4()
	if out, err := p.softrnic(ctx, t, there.String()).CombinedOutput(); err != nil {
		if p.lost(ctx, t, true) {
			return true
		}
		t.Errorf("softrnic: %v\n%s", err, out)
	}
	return ended(t, p.peer, serving, exitOf(ctx, serving))
}

// server runs softrnic as the server of the kernel's client.
func (p pingpong) server(t *testing.T) {
	tries(t, func() bool { p.try++; return p.asServer(t) })
}

func (p pingpong) asServer(t *testing.T) (again bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving := p.softrnic(ctx, t, "")
	said := newAwaited("local address:")
	serving.Stdout, serving.Stderr = said, said
	if err := serving.Start(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serving.Wait() }()
	select {
	case <-said.seen:
	case err := <-served:
		t.Fatalf("softrnic: %v\n%s", err, said)
	}
	here, _, _ := p.addrs()
	kernel, err := p.peer.Start(p.kernel() + " " + here.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kernel.Kill() }()
	exited := exitOf(ctx, kernel)
	select {
	case err = <-served:
		if err == nil {
			return ended(t, p.peer, kernel, exited)
		}
	case e := <-exited:
		if e.err != nil || e.code != 0 {
			cancel()
		}
		err = <-served
		exited <- e // for ended
	}
	if err != nil {
		if p.lost(ctx, t, false) {
			return true
		}
		t.Errorf("softrnic: %v\n%s", err, said)
	}
	return ended(t, p.peer, kernel, exited)
}

// pingpongLabs runs a test at each path MTU, with softrnic built. The long run has both IP versions
// for each, the system run has one.
func pingpongLabs(t *testing.T, f func(run pingpong)) {
	program, captures := softrnicProgram(t), captureDir(t)
	for _, mtu := range []struct{ link, path int }{{1500, 1024}, {4200, 4096}} {
		p := peer.Boot(t, peer.Config{ID: 2, MTU: mtu.link})[0]
		for _, ipv6 := range []bool{false, true} {
			if !gate.InLong() && ipv6 != (mtu.path == 4096) {
				continue
			}
			run := pingpong{peer: p, program: program, captures: captures, ipv6: ipv6, mtu: mtu.path}
			_, there, _ := run.addrs()
			run.gid = gidIndex(t, p, there)
			f(run)
		}
	}
}

func TestPingpong(t *testing.T) {
	gate.System(t)
	pingpongLabs(t, func(run pingpong) {
		run.service = "rc"
		for _, medium := range []struct{ name, spec string }{
			{"tap", "tap:softrnic0,bridge=" + run.peer.Netns.Bridge}, {"packet", "packet:" + run.peer.Netns.Veth(t)},
		} {
			run.link = medium.spec
			for _, run.size = range []int{1, 1024, 1025, 4096, 100_000, 1 << 20} {
				t.Run(fmt.Sprintf("%s/client/%v", medium.name, run), run.client)
				t.Run(fmt.Sprintf("%s/server/%v", medium.name, run), run.server)
			}
		}
	})
}

// TestPingpongServices runs the ping-pongs of the other services.
func TestPingpongServices(t *testing.T) {
	gate.Long(t)
	pingpongLabs(t, func(run pingpong) {
		run.link = "tap:softrnic0,bridge=" + run.peer.Netns.Bridge
		for service, sizes := range map[string][]int{
			"uc": {1, run.mtu + 1, 100_000}, "ud": {1, run.mtu}, "srq": {1, run.mtu + 1, 65536},
		} {
			run.service = service
			for _, run.size = range sizes {
				t.Run(fmt.Sprintf("%s/client/%v", service, run), run.client)
				t.Run(fmt.Sprintf("%s/server/%v", service, run), run.server)
			}
		}
	})
}
