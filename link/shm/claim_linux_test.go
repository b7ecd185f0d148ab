package shm

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/ring"
)

// TestClaims checks that a second process with the same name or address is refused, with the name,
// until the first has left.
func TestClaims(t *testing.T) {
	dir := directory(t)
	mac := net.HardwareAddr{2, 1, 1, 1, 1, 1}
	a := join(t, dir, &Config{MAC: mac, Claims: []string{"10.0.0.1", "fd00::1"}})
	for what, cfg := range map[string]Config{
		"02:01:01:01:01:01": {MAC: mac},
		"10.0.0.1":          {Claims: []string{"10.0.0.9", "10.0.0.1"}},
		"fd00::1":           {Claims: []string{"fd00::1"}},
	} {
		cfg.Directory = dir
		l, err := Open("x", &cfg)
		if !errors.Is(err, ErrClaimed) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			l.Close()
		}
	}
	if l, err := Open("x", &Config{Directory: dir, Claims: []string{"a/b"}}); err == nil {
		t.Error("a name with a slash was claimed")
		l.Close()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	// The refused processes have claimed nothing.
	join(t, dir, &Config{MAC: mac, Claims: []string{"10.0.0.1", "10.0.0.9", "fd00::1"}})
}

// choice offers n names with addresses.
func choice(n int) func(i int) (string, net.HardwareAddr, bool) {
	return func(i int) (string, net.HardwareAddr, bool) {
		return fmt.Sprint("name", i), net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, i < n
	}
}

// TestPick checks that processes that start together get different numbers, from the first on. A
// number is used again after its process has closed or died.
func TestPick(t *testing.T) {
	const n = 8
	dir := directory(t)
	links, all := make([]*Link, n), sync.WaitGroup{}
	for i := range links {
		all.Go(func() {
			var err error
			if links[i], err = Open("x", &Config{Directory: dir, Pick: choice(n)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	var picked []int
	for _, l := range links {
		defer l.Close()
		picked = append(picked, l.Picked())
		if l.MAC()[5] != byte(l.Picked()) {
			t.Errorf("number %d has the address %v", l.Picked(), l.MAC())
		}
	}
	slices.Sort(picked)
	if !slices.Equal(picked, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("numbers %v", picked)
	}
	if l, err := Open("x", &Config{Directory: dir, Pick: choice(n)}); !errors.Is(err, ErrClaimed) {
		t.Errorf("all numbers in use: %v", err)
		l.Close()
	}
	free := links[3].Picked()
	if err := links[3].Close(); err != nil {
		t.Fatal(err)
	}
	if l := join(t, dir, &Config{Pick: choice(n)}); l.Picked() != free {
		t.Errorf("number %d, want %d", l.Picked(), free)
	}
}

// TestPickOfLeaving: a name is not picked while its address is still claimed, and is free
// afterwards.
func TestPickOfLeaving(t *testing.T) {
	dir := directory(t)
	segment := filepath.Join(dir, "shm-x")
	if err := os.Mkdir(segment, 0o700); err != nil {
		t.Fatal(err)
	}
	first, mac, _ := choice(2)(0)
	held, err := claim(segment, mac.String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if l := join(t, dir, &Config{Pick: choice(2)}); l.Picked() != 1 {
		t.Errorf("number %d", l.Picked())
	}
	if isClaimed(segment, first) {
		t.Errorf("%s is claimed", first)
	}
	same := func(i int) (string, net.HardwareAddr, bool) { return fmt.Sprint("other", i), mac, i < 3 }
	if l, err := Open("x", &Config{Directory: dir, Pick: same}); !errors.Is(err, ErrClaimed) || !strings.Contains(err.Error(), mac.String()) {
		t.Errorf("all names have the address %v: %v", mac, err)
		l.Close()
	}
}

// TestClaimWhileSwept checks that removing stale claims does not make a concurrent claim fail.
func TestClaimWhileSwept(t *testing.T) {
	dir := directory(t)
	stop, done := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					removeStaleClaim(dir, filepath.Join(dir, claimPrefix+"name"))
				}
			}
		})
	}
	for i := range 300 {
		f, err := claim(dir, "name")
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if there, err := isFileAt(f, f.Name()); !there || err != nil {
			t.Fatalf("%d: a claim was removed: %v", i, err)
		}
		if i%2 == 0 {
			err = releaseClaims([]*os.File{f})
		} else {
			err = f.Close() // as if the process died
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	done.Wait()
}

// logBuffer is a log in memory.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

// TestRefusalIsLogged checks that a repeated refusal is logged once.
func TestRefusalIsLogged(t *testing.T) {
	dir := directory(t)
	log := new(logBuffer)
	join(t, dir, &Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for range 5 {
		c := dialRaw(t, dir, []byte("nonsense"))
		_, _ = c.Read(make([]byte, 100))
		_, _ = c.Read(make([]byte, 100))
		c.Close()
	}
	await(t, "a line is logged", func() bool { return log.lines() > 0 })
	if n := log.lines(); n != 1 || !strings.Contains(log.b.String(), "not a hello") {
		t.Errorf("%d lines: %s", n, log.b.String())
	}
}

// TestBothConnect checks two processes that connect to each other. Both keep the same connection,
// in whatever order the four ends become ready.
func TestBothConnect(t *testing.T) {
	orders := permutations([]int{0, 1, 2, 3})
	for _, swapped := range []bool{false, true} {
		for _, order := range orders {
			var sides [2]*segment
			for i := range sides {
				sides[i] = &segment{Group: ring.NewGroup(), config: &config{}}
				sides[i].own = hello{mac: [6]byte{2, byte(i)}, id: id{byte(i)}}
				if swapped {
					sides[i].own.id[0] ^= 1
				}
				sides[i].peers.Store(newPeers(nil))
			}
			// Ends 0 and 1 belong to the connection that side 0 dialed, ends 2 and 3 to
			// the other.
			var ends [4]*peer
			for i := range ends {
				other := sides[1-i%2].own
				ends[i] = &peer{Pair: new(ring.Pair), mac: other.mac, id: other.id, dialed: i == 0 || i == 3}
			}
			var closed [4]bool
			for _, i := range order {
				if err := sides[i%2].add(ends[i]); err != nil {
					if !errors.Is(err, errDuplicate) {
						t.Fatal(err)
					}
					closed[i] = true
				}
			}
			kept := 0 // the connection dialed by side 0, which has the smaller name
			if swapped {
				kept = 2
			}
			for i := range ends {
				gone := closed[i] || ends[i].Ended()
				if want := i/2*2 != kept; gone != want {
					t.Errorf("order %v, swapped %t: end %d closed: %t, want %t", order, swapped, i, gone, want)
				}
			}
			for i, s := range sides {
				if all := s.peers.Load().all; len(all) != 1 || all[0] != ends[kept+i] {
					t.Errorf("order %v: side %d has %d peers, or another connection", order, i, len(all))
				}
			}
		}
	}
}

func permutations(of []int) (all [][]int) {
	if len(of) == 0 {
		return [][]int{nil}
	}
	for i, v := range of {
		for _, rest := range permutations(slices.Concat(of[:i], of[i+1:])) {
			all = append(all, append([]int{v}, rest...))
		}
	}
	return all
}

// TestSwitch checks that frames to unknown addresses go to a switch, and that it receives no other
// unicast frames.
func TestSwitch(t *testing.T) {
	dir := directory(t)
	a, b, sw := join(t, dir, nil), join(t, dir, nil), join(t, dir, &Config{Switch: true})
	await(t, "three are connected", func() bool { return len(a.Peers()) == 2 && len(b.Peers()) == 2 && len(sw.Peers()) == 2 })
	toA, toB, toSwitch := linktest.Receive(a), linktest.Receive(b), linktest.Receive(sw)
	far := linktest.Plain(net.HardwareAddr{2, 9, 9, 9, 9, 9}, a.MAC(), 50, "far away")
	toPeer := linktest.Plain(b.MAC(), a.MAC(), 50, "to b")
	send(t, a, toPeer, far, toPeer)
	expect(t, toSwitch, far)
	expect(t, toB, toPeer)
	expect(t, toB, toPeer)
	back := linktest.Plain(a.MAC(), net.HardwareAddr{2, 9, 9, 9, 9, 9}, 50, "back")
	send(t, sw, back)
	expect(t, toA, back)
	unknown := linktest.Plain(net.HardwareAddr{2, 8, 8, 8, 8, 8}, a.MAC(), 50, "unknown")
	send(t, sw, unknown)
	last := linktest.Plain(broadcast, a.MAC(), 50, "last")
	send(t, a, last)
	expect(t, toB, last)
	expect(t, toSwitch, last)
	if n := len(toA) + len(toB) + len(toSwitch); n != 0 {
		t.Errorf("%d unexpected frames", n)
	}
}

// TestHelloAfterClose checks that a process whose hello arrives while the link closes is refused.
func TestHelloAfterClose(t *testing.T) {
	l := join(t, directory(t), nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.medium.(*segment).add(&peer{mac: [6]byte{2}, id: id{1}}); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
