package iwarptransport_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// server makes the node dial it, with private data, and accepts any number of connections. err
// returns the result.
func (d *node) server() (accept func() *peer, err func() error, conn func() *rdmacm.Conn) {
	d.t.Helper()
	l, lerr := d.net.host(peerAddr).ListenStream(netip.MustParseAddrPort(peerAddr + nodePort))
	must(d.t, lerr)
	d.t.Cleanup(func() { l.Close() })
	d.param = rdmacm.DefaultConnParam()
	d.param.PrivateData = []byte("it is me")
	var made *rdmacm.Conn
	done := make(chan error, 1)
	go func() {
		var err error
		made, err = rdmacm.Dial(context.Background(), d.dev, peerAddr+nodePort, d.config())
		done <- err
	}()
	accept = func() *peer {
		d.t.Helper()
		c, err := l.Accept()
		must(d.t, err)
		return newPeer(d.t, c)
	}
	return accept, func() error { return <-done }, func() *rdmacm.Conn { return made }
}

// refusals are ways to refuse an unknown revision: RFC 6581 §10 requires a close, RNICs reset the
// connection.
var refusals = map[string]func(p *peer){
	"FIN":        func(p *peer) { p.s.Close() },
	"RST":        func(p *peer) { p.s.(*stream).Abort() },
	"half close": func(p *peer) { p.s.(*stream).CloseWrite() },
}

// A responder that only supports MPA revision 1 gets a second request, of revision 1, on another
// connection. The application does not notice.
func TestRevision2Refused(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{offloaded: true}, 4096, func(t *testing.T, d *node) {
				accept, wait, conn := d.server()
				p := accept()
				if f := p.frame(); f.Revision != 2 {
					t.Errorf("request %+v", f)
				}
				time.Sleep(time.Second)
				refuse(p)
				p = accept()
				if f := p.frame(); f.Revision != 1 || f.HasEnhanced || f.Reserved != 0 || string(f.PrivateData) != "it is me" {
					t.Errorf("second request %+v", f)
				}
				p.write(encode(t, mpa.Frame{Reply: true, CRC: true, Revision: 1, PrivateData: []byte("welcome")}))
				must(t, wait())
				s := &session{node: d, conn: conn(), p: p}
				s.started()
				if got := s.conn.Peer(); string(got.PrivateData) != "welcome" {
					t.Errorf("private data %q", got.PrivateData)
				}
				p.begin(false, false, true)
				p.silent()
				s.post(&verbs.SendWR{Opcode: verbs.Send})
				p.expect(rdmap.Send)
				if n := d.counter("iwarp_mpa_v1_retries"); n != 1 {
					t.Errorf("%d retries counted", n)
				}
			})
		})
	}
}

// There is at most one retry, and only if the revision may be the reason.
func TestRevisionNotRetried(t *testing.T) {
	for name, c := range map[string]struct {
		revision    uint8
		answer      func(t *testing.T, p *peer)
		connections int
		want        error
	}{
		"refused twice": {
			answer: func(t *testing.T, p *peer) { p.frame(); p.s.(*stream).Abort() }, connections: 2, want: syscall.ECONNREFUSED,
		},
		"only revision 2 is wanted": {
			revision: 2, answer: func(t *testing.T, p *peer) { p.frame(); p.s.Close() }, connections: 1, want: syscall.ECONNREFUSED,
		},
		"only revision 1 is wanted": {
			revision: 1, answer: func(t *testing.T, p *peer) { p.frame(); p.s.Close() }, connections: 1, want: syscall.ECONNREFUSED,
		},
		"rejected": {
			answer: func(t *testing.T, p *peer) {
				f := p.frame()
				f.Reply, f.Rejected = true, true
				p.write(encode(t, f))
				p.s.Close()
			}, connections: 1, want: syscall.ECONNREFUSED,
		},
		"part of a reply": {
			answer: func(t *testing.T, p *peer) {
				p.frame()
				p.write(encode(t, reply())[:5])
				synctest.Wait()
				p.s.(*stream).Abort()
			}, connections: 1, want: syscall.ECONNREFUSED,
		},
		"no reply in time": {
			answer: func(t *testing.T, p *peer) { p.frame(); p.closed() }, connections: 1, want: syscall.ETIMEDOUT,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{Revision: c.revision})
				accept, wait, _ := d.server()
				for range c.connections {
					c.answer(t, accept())
				}
				if err := wait(); !errors.Is(err, c.want) {
					t.Errorf("error %v", err)
				}
				synctest.Wait()
				d.net.mu.Lock()
				defer d.net.mu.Unlock()
				if n := len(d.net.dials); n != c.connections {
					t.Errorf("%d connections", n)
				}
			})
		})
	}
}

// An application closes the connection between the two requests: the second is not sent.
func TestRevisionRetryGivenUp(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		id, p := d.dialID(t)
		p.frame()
		l, err := d.net.host(peerAddr).ListenStream(netip.MustParseAddrPort(peerAddr + nodePort))
		must(t, err)
		defer l.Close()
		p.s.Close()
		c, err := l.Accept()
		must(t, err)
		second := newPeer(t, c)
		if f := second.frame(); f.Revision != 1 {
			t.Errorf("request %+v", f)
		}
		must(t, id.Close())
		if err := second.closed(); err == io.EOF {
			t.Error("closed in order")
		}
		if err := id.connected(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("error %v", err)
		}
	})
}
