//go:build linux

package interop

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// serving is a `softrnic serve` that runs in a network of peers, as 10.77.0.101 and fd77::101.
type serving struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan error

	mu      sync.Mutex
	changed sync.Cond
	over    bool
	logged  map[string]int // number of log lines, by message
	unusual []string       // lines of other messages
}

const servingPort = 7174

var servingAddrs = []netip.Addr{netip.MustParseAddr("10.77.0.101"), netip.MustParseAddr("fd77::101")}

func startServing(t *testing.T, program string, n *peer.Netns) *serving {
	t.Helper()
	s := &serving{t: t, ended: make(chan error, 1), logged: make(map[string]int)}
	s.changed.L = &s.mu
	args := []string{"netns", "exec", n.Name, program, "serve", "--mtu", fmt.Sprint(n.MTU),
		"--link", "tap:softrnic1,bridge=" + n.Bridge}
	for _, a := range servingAddrs {
		args = append(args, "--addr", netip.PrefixFrom(a, map[bool]int{true: 24, false: 64}[a.Is4()]).String())
	}
	s.cmd = exec.Command("ip", args...)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.read(stderr)
		s.ended <- s.cmd.Wait()
	}()
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	s.await("serving", 1)
	return s
}

var logMessage = regexp.MustCompile(`msg=(\w+|"[^"]*")`)

func (s *serving) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		m := logMessage.FindStringSubmatch(lines.Text())
		s.mu.Lock()
		if m != nil {
			s.logged[m[1]]++
		}
		if m == nil || m[1] != "connection" && m[1] != "done" {
			s.unusual = append(s.unusual, lines.Text())
		}
		s.mu.Unlock()
		s.changed.Broadcast()
	}
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.changed.Broadcast()
}

// await waits until a message has been logged n times.
func (s *serving) await(message string, times int) {
	s.t.Helper()
	late := false
	timer := time.AfterFunc(cmPatience, func() {
		s.mu.Lock()
		late = true
		s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.logged[message] < times && !s.over && !late {
		s.changed.Wait()
	}
	if s.logged[message] != times {
		s.t.Fatalf("softrnic logged %q %d times, want %d; and\n%.2000s", message, s.logged[message], times, strings.Join(s.unusual, "\n"))
	}
}

// rss returns the process's resident memory in bytes.
func (s *serving) rss() int {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			if kib, err := strconv.Atoi(f[1]); err == nil {
				return kib << 10
			}
		}
	}
	s.t.Fatalf("/proc has no memory size of softrnic:\n%s", status)
	return 0
}

// quit ends the process and returns its number of goroutines.
func (s *serving) quit() (goroutines int) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		s.t.Fatal(err)
	}
	<-s.ended
	for _, line := range s.unusual {
		// Goroutines that are started on demand.
		if strings.HasPrefix(line, "goroutine ") && !strings.Contains(line, "[GC worker") {
			goroutines++
		}
	}
	return goroutines
}

// pinger opens and closes connections to softrnic, many at a time, and does the first step of an
// rping on each.
type pinger struct {
	t    *testing.T
	dev  *verbs.Device
	pd   *verbs.PD
	text *verbs.MR // memory that the peer READs
	tell *verbs.MR // its address, in rping's format
	said *verbs.MR // received message
}

func newPinger(t *testing.T, dev *verbs.Device) *pinger {
	t.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	closing(t, pd.Close)
	p := &pinger{t: t, dev: dev, pd: pd}
	for mr, access := range map[**verbs.MR]verbs.Access{
		&p.text: verbs.AccessRemoteRead, &p.tell: 0, &p.said: verbs.AccessLocalWrite,
	} {
		if *mr, err = pd.RegMR(make([]byte, 64), access); err != nil {
			t.Fatal(err)
		}
		closing(t, (*mr).Close)
	}
	binary.BigEndian.PutUint64(p.tell.Buf(), p.text.Addr())
	binary.BigEndian.PutUint32(p.tell.Buf()[8:], p.text.RKey())
	binary.BigEndian.PutUint32(p.tell.Buf()[12:], uint32(p.text.Length()))
	return p
}

// each calls a function for each of n connections. The number of concurrent calls fits the queue of
// a TAP.
func (p *pinger) each(n int, f func(int) error) {
	p.t.Helper()
	errs, slots := make([]error, n), make(chan struct{}, 100)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		p.t.Fatalf("%.2000v", err)
	}
}

// open returns n connections, all open.
func (p *pinger) open(addr netip.AddrPort, n int) []*rdmacm.Conn {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), cmPatience)
	defer cancel()
	conns := make([]*rdmacm.Conn, n)
	p.each(n, func(i int) (err error) {
		conns[i], err = rdmacm.Dial(ctx, p.dev, addr.String(), &rdmacm.Config{
			PD:  p.pd,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
			Prepare: func(c *rdmacm.Conn) error {
				return c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{p.said.SGE(0, 16)}})
			},
		})
		return err
	})
	return conns
}

// ping checks that the other end of every connection is alive: it READs the memory that ping names,
// and answers.
func (p *pinger) ping(conns []*rdmacm.Conn) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), cmPatience)
	defer cancel()
	p.each(len(conns), func(i int) error {
		if err := conns[i].QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{p.tell.SGE(0, 16)}}); err != nil {
			return err
		}
		wc, err := awaitWC(ctx, conns[i].RecvCQ())
		if err == nil && wc.Status != verbs.WCSuccess {
			err = fmt.Errorf("connection %d: %v", i, wc.Status)
		}
		return err
	})
}

func (p *pinger) close(conns []*rdmacm.Conn) {
	p.t.Helper()
	p.each(len(conns), func(i int) error { return conns[i].Close() })
}

// TestManyConnections opens and closes many connections to one process, again and again. It checks
// that none of their memory and goroutines remain in the process.
func TestManyConnections(t *testing.T) {
	gate.Long(t)
	const (
		connections, rounds = 2000, 6
		ofKernel            = 200
	)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	program := softrnicProgram(t)
	idle := startServing(t, program, peers[0].Netns).quit()

	dev := openSoftRNIC(t, openTAP(t, peers[0].Netns), nil).(softrnic).dev
	s := startServing(t, program, peers[0].Netns)
	p := newPinger(t, dev)
	goroutines, heap := runtime.NumGoroutine(), liveHeap()
	var took time.Duration
	var memory []int
	for round := range rounds {
		started := time.Now()
		conns := p.open(netip.AddrPortFrom(servingAddrs[round%2], servingPort), connections)
		took += time.Since(started)
		p.ping(conns)
		s.await("done", round*connections)
		p.close(conns)
		s.await("done", (round+1)*connections)
		memory = append(memory, s.rss()>>20)
	}
	t.Logf("resident memory of the server by round, MiB: %v", memory)
	// The garbage collector may keep some memory, but a connection here costs some 10 KiB.
	if early, late := slices.Max(memory[:rounds/2]), slices.Max(memory[rounds/2:]); late > 2*early {
		t.Errorf("the server's memory has grown from %d MiB to %d", early, late)
	}

	// The kernel's own connections, to the same server.
	for i, addr := range servingAddrs {
		peers[0].Run(t, fmt.Sprintf("cmtime -s %v -p %d -c %d", addr, servingPort, ofKernel))
		s.await("done", rounds*connections+(i+1)*ofKernel)
	}
	// The runtime has some goroutines that come and go. A leak of one goroutine per 1,000
	// connections would be twelve.
	if left := s.quit(); left > idle+10 {
		t.Errorf("the server has %d goroutines when all is over, %d at the beginning", left, idle)
	}
	// Tables keep their size: less than 100 bytes per connection.
	const room = rounds * connections * 250
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines || liveHeap() > heap+room; runtime.Gosched() {
		if time.Now().After(deadline) { // time wait is over by then
			t.Errorf("the client has %d goroutines and %d bytes when all is over, %d and %d at the beginning",
				runtime.NumGoroutine(), liveHeap(), goroutines, heap)
			break
		}
	}

	kernels := cmPair{cmLab{peer: peers[0]}, softrnicAddr4, peers[0].Addr4()}
	var out string
	kernels.endlessKernelServes(t, fmt.Sprintf("cmtime -b %v", kernels.there), func(context.Context) error {
		out = peers[1].Run(t, fmt.Sprintf("cmtime -s %v -c %d", kernels.there, ofKernel))
		return nil
	})
	ours, theirs := took/(rounds*connections), cmtimePerConnection(t, out, "connect")
	t.Logf("a connection took %v, between two kernels (emulated, unless there is KVM) %v: 1/%.1f", ours, theirs,
		float64(theirs)/float64(ours))
}

// liveHeap returns the bytes that this process has in use.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
