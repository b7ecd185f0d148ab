package rdmatransport_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// medium is a stack and what is below it.
type medium struct {
	name string
	// links makes the links of two stations; nil for package kernel.
	links func(t *testing.T) [2]link.Link
}

// media are what tests of what an application sees run over. Those that look at time, at packets, or at what one link or stack
// does have a network of their own.
var media = []medium{
	direct,
	{"pipe", func(*testing.T) [2]link.Link {
		lan := new(pipe.Switch)
		return [2]link.Link{inFrames(lan.Port()), inFrames(lan.Port())}
	}},
	{"stream", func(t *testing.T) [2]link.Link {
		path := filepath.Join(t.TempDir(), "s")
		listener := must(stream.Open(path, stream.Listening(), stream.MTU(4200)))(t)
		return [2]link.Link{listener, must(stream.Open(path, stream.MTU(4200)))(t)}
	}},
	{"shm", func(t *testing.T) [2]link.Link {
		if runtime.GOOS != "linux" {
			t.Skip("there is no link/shm on this system")
		}
		dir := shm.Directory(filepath.Join(t.TempDir(), "s"))
		return [2]link.Link{must(shm.Open("lan", dir))(t), must(shm.Open("lan", dir))(t)}
	}},
	{"kernel", nil},
}

// direct has messages copied from memory to memory.
var direct = medium{"direct", func(*testing.T) [2]link.Link {
	lan := new(pipe.Switch)
	return [2]link.Link{lan.Port(), lan.Port()}
}}

// TestMedia prints which tests run over each medium, and which have a network of their own.
func TestMedia(t *testing.T) {
	files := must(filepath.Glob("*_test.go"))(t)
	var over, own []string
	for _, name := range files {
		f := must(parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution))(t)
		for _, d := range f.Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if !isFunc || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == t.Name() {
				continue
			}
			isOver := false
			ast.Inspect(fn, func(n ast.Node) bool {
				id, isIdent := n.(*ast.Ident)
				isOver = isOver || isIdent && (id.Name == "overMedia" || id.Name == "overAll")
				return !isOver
			})
			if isOver {
				over = append(over, fn.Name.Name)
			} else {
				own = append(own, fn.Name.Name)
			}
		}
	}
	if len(over) == 0 {
		t.Error("no test runs over the media")
	}
	for _, m := range media {
		t.Logf("%s: %s", m.name, strings.Join(over, ", "))
	}
	t.Logf("on a network of their own: %s", strings.Join(own, ", "))
}

// overMedia runs a test over each medium.
func overMedia(t *testing.T, f func(t *testing.T, m medium)) {
	for _, m := range media {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

// overAll runs a test over each medium and with both transports.
func overAll(t *testing.T, f func(t *testing.T, m medium, transport verbs.Transport)) {
	overMedia(t, func(t *testing.T, m medium) {
		both(t, func(t *testing.T, transport verbs.Transport) { f(t, m, transport) })
	})
}

// stations makes two stations on a network of their own, until the end of the test.
func (m medium) stations(t *testing.T, opts ...rdmatransport.Option) (a, b *station) {
	t.Helper()
	hostA, hostB := m.hosts(t)
	return stationOf(t, hostA.host, hostA.addr, opts...), stationOf(t, hostB.host, hostB.addr, opts...)
}

// hostAt is a host and its address.
type hostAt struct {
	host
	addr netip.Addr
}

// hosts makes two hosts on a network of their own.
func (m medium) hosts(t *testing.T) (a, b hostAt) {
	t.Helper()
	if m.links != nil {
		links := m.links(t)
		on := func(l link.Link, addr string) hostAt {
			return hostAt{must(netstack.New(l, netstack.Addr(addr+"/24")))(t), netip.MustParseAddr(addr)}
		}
		return on(links[0], "10.0.0.1"), on(links[1], "10.0.0.2")
	}
	if runtime.GOOS != "linux" {
		t.Skip("this system's loopback has one address only")
	}
	hostA, addrA := loopbackHost(t)
	hostB, addrB := loopbackHost(t)
	return hostAt{hostA, addrA}, hostAt{hostB, addrB}
}

// loopbackHost is a host on the kernel's sockets, at an address that no other process of this kind has.
func loopbackHost(t *testing.T) (*kernel.Host, netip.Addr) {
	t.Helper()
	for range 100 {
		addr := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(255)), byte(1 + rand.N(254))})
		h, err := kernel.New(kernel.Addr(addr.String()))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		return must(h, err)(t), addr
	}
	t.Fatal("every address of the loopback is in use")
	return nil, netip.Addr{}
}

// host is a stack that can be closed.
type host interface {
	stack.Network
	io.Closer
}

func stationOf(t *testing.T, h host, addr netip.Addr, opts ...rdmatransport.Option) *station {
	t.Helper()
	s := &station{t: t, addr: addr, network: h}
	s.host, _ = h.(*netstack.Host)
	s.dev = must(rdmatransport.Open(h, opts...))(t)
	s.pd = must(s.dev.AllocPD())(t)
	t.Cleanup(func() {
		s.pd.Dealloc()
		s.dev.Close()
		h.Close()
	})
	return s
}

// settle orders what this goroutine does with memory that a peer reaches through qp, before and after: the
// race detector does not see that what came through the kernel, or through shared memory, was sent before it came.
func settle(t *testing.T, qp *verbs.QP) {
	t.Helper()
	if _, _, err := qp.Query(0); err != nil { // takes the QP's lock, as reception does
		t.Fatal(err)
	}
}
