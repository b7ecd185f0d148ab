//go:build linux

package interop

import (
	"context"
	"encoding/hex"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestIWARPRefused makes connections to and from siw without a listener, or with a listener that
// rejects them.
func TestIWARPRefused(t *testing.T) {
	gate.System(t)
	l := openIWARP(t, capturedIWARP, iwarp.Config{})
	linux := pyverbs.OpenCM(t, l.peer, "siw0")
	const port = 7999
	l.eachFamily(t, func(t *testing.T, p cmPair) {
		dial := func(t *testing.T) *rdmacm.EventError {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := rdmacm.Dial(ctx, p.dev, netip.AddrPortFrom(p.there, port).String(),
				&rdmacm.Config{Transport: verbs.IWARP, Param: depths(1, 1), PrivateData: []byte("please")})
			if err == nil {
				c.Close()
				t.Fatal("the connection is made")
			}
			var said *rdmacm.EventError
			if !errors.As(err, &said) {
				t.Fatal(err)
			}
			return said
		}
		t.Run("client/nobody listens", func(t *testing.T) {
			if e := dial(t); e.Type != rdmacm.Rejected || e.Status != -int(syscall.ECONNREFUSED) {
				t.Errorf("%v", e)
			}
		})
		t.Run("client/rejected", func(t *testing.T) {
			listener := linux.In(t).ListenRaw(rdmacm.TCP, netip.AddrPortFrom(p.there, port))
			t.Cleanup(listener.Close)
			failed := make(chan *rdmacm.EventError, 1)
			go func() {
				defer close(failed)
				failed <- dial(t)
			}()
			if asked := listener.Reject([]byte("not today")); asked.PrivateData != hex.EncodeToString([]byte("please")) {
				t.Errorf("siw is asked with private data %q", asked.PrivateData)
			}
			e := <-failed
			if e == nil || e.Type != rdmacm.Rejected || string(e.PrivateData) != "not today" {
				t.Errorf("%v", e)
			}
		})
		t.Run("server/nobody listens", func(t *testing.T) {
			events := linux.In(t).Attempt(rdmacm.TCP, netip.AddrPortFrom(p.here, port), nil)
			if e := events[len(events)-1]; e.Type != rdmacm.ConnectError || e.Status != -int(syscall.ECONNREFUSED) {
				t.Errorf("siw: %+v", events)
			}
		})
		t.Run("server/rejected", func(t *testing.T) {
			listener, err := rdmacm.Listen(p.dev, netip.AddrPortFrom(p.here, port).String(), &rdmacm.Config{Transport: verbs.IWARP})
			if err != nil {
				t.Fatal(err)
			}
			closing(t, listener.Close)
			asked := make(chan string, 1)
			go func() {
				defer close(asked)
				if r, err := listener.Request(t.Context()); err == nil {
					asked <- string(r.Peer().PrivateData)
					if err := r.Reject([]byte("not today")); err != nil {
						t.Error(err)
					}
				}
			}()
			events := linux.In(t).Attempt(rdmacm.TCP, netip.AddrPortFrom(p.here, port), []byte("please"))
			// siw hides the private data of a rejection.
			if e := events[len(events)-1]; e.Type != rdmacm.Rejected || e.Status != -int(syscall.ECONNRESET) {
				t.Errorf("siw: %+v", events)
			}
			if data := <-asked; data != "please" {
				t.Errorf("SoftRNIC is asked with private data %q", data)
			}
		})
		t.Run("server/backlog full", func(t *testing.T) {
			listener, err := rdmacm.Listen(p.dev, netip.AddrPortFrom(p.here, port).String(),
				&rdmacm.Config{Transport: verbs.IWARP, Backlog: 1})
			if err != nil {
				t.Fatal(err)
			}
			closing(t, listener.Close)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if c, err := rdmacm.Dial(ctx, p.dev, listener.Addr().String(), &rdmacm.Config{Transport: verbs.IWARP}); err == nil {
					c.Close()
				}
			}()
			r, err := listener.Request(ctx) // it is not answered
			if err != nil {
				t.Fatal(err)
			}
			events := linux.In(t).Attempt(rdmacm.TCP, netip.AddrPortFrom(p.here, port), []byte("please"))
			if e := events[len(events)-1]; e.Type != rdmacm.Rejected || e.Status != -int(syscall.ECONNRESET) {
				t.Errorf("siw: %+v", events)
			}
			if err := r.Reject(nil); err != nil {
				t.Error(err)
			}
			<-ended
		})
	})
}

// TestIWARPCut kills one side during a transfer: the process that holds siw's QP, then SoftRNIC's.
func TestIWARPCut(t *testing.T) {
	gate.System(t)
	l := openIWARP(t, capturedIWARP, iwarp.Config{})
	p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
	t.Run("siw's process", func(t *testing.T) {
		linux := pyverbs.OpenCM(t, p.peer, "siw0")
		c := conns{pd: softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)}
		listener, err := rdmacm.Listen(p.dev, netip.AddrPortFrom(p.here, iwarpPort).String(),
			&rdmacm.Config{Transport: verbs.IWARP, PD: c.pd.pd, Cap: siwCap, Param: depths(4, 4)})
		if err != nil {
			t.Fatal(err)
		}
		closing(t, listener.Close)
		accepted := make(chan error, 1)
		go func() {
			var err error
			c.here, err = listener.Accept(t.Context())
			accepted <- err
		}()
		c.there = linux.Connect(netip.AddrPortFrom(p.here, iwarpPort), depths(4, 4), siwCap)
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
		closing(t, c.here.Close)
		here, there := c.sides(t)
		local, remote := here.pd.regMR(iwarpRoom, allAccess), there.pd.regMR(iwarpRoom, allAccess)
		// It sends first.
		if err := there.qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{remote.SGE(0, 1)}, RemoteAddr: local.Addr(), RKey: local.RKey()}); err != nil {
			t.Fatal(err)
		}
		const reads = 15
		for id := range uint64(reads) {
			if err := here.qp.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{local.SGE(0, iwarpRoom)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}); err != nil {
				t.Fatal(err)
			}
		}
		wcs := here.qp.PollSend(1, patience)
		p.peer.Run(t, "kill -9 $(pidof python3)")
		wcs = append(wcs, here.qp.PollSend(reads-len(wcs), patience)...)
		if len(wcs) != reads || wcs[reads-1].Status != verbs.WCWRFlushErr {
			t.Errorf("%d of %d READs complete, the last with %v", len(wcs), reads, wcs[len(wcs)-1].Status)
		}
		<-c.here.Done()
	})
	t.Run("SoftRNIC's process", func(t *testing.T) {
		program := softrnicProgram(t)
		serving, err := p.peer.Start("rping -s -P -a " + p.there.String() + " -p 7175")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = serving.Kill() }()
		p.peer.Run(t, untilListens("rping"))
		ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
		defer cancel()
		client := startProcess(t, killedNode(ctx, p.peer, program, "-c -a "+p.there.String()+" -p 7175 -v -d"))
		// An answer shows that siw has received the client's first FPDU, and that the connection is
		// established there too (RFC 5044 §7.1). This test is about the end of such a connection only.
		client.await(t, "msg=received")
		if err := client.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-client.ended
		// siw's side is ready for the next connection.
		again := startProcess(t, killedNode(ctx, p.peer, program, "-c -a "+p.there.String()+" -p 7175 -v -C 10"))
		again.wait(t)
		if n := strings.Count(again.stdout.String(), "ping data: "); n != 10 {
			t.Errorf("%d pings, want 10", n)
		}
	})
}

// killedNode is `softrnic rping` on a node that may be killed: not the test's own.
func killedNode(ctx context.Context, p *peer.Peer, program, args string) *exec.Cmd {
	return p.Netns.Command(ctx, program, strings.Fields(
		"rping --transport iwarp --link tap:softrnic1,bridge="+p.Netns.Bridge+" --addr 10.77.0.101/24 "+args)...)
}
