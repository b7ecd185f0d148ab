//go:build linux

package framed_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/framed"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
)

// TestSenderOfHub checks that over a link, too, a process knows which client of its hub sent a
// datagram, and which datagrams are from outside.
func TestSenderOfHub(t *testing.T) {
	own := must(os.MkdirTemp("", "h"))(t) // the path of a socket must be short
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	dir := filepath.Join(own, "hub")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: classify.New()}) }()
	defer func() {
		if cancel(); <-ended != nil {
			t.Error("the hub failed")
		}
	}()
	at := netip.MustParseAddr(fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(255), 1+rand.N(253)))
	open := func() *kernel.Host {
		sharing := kernel.Sharing{Directory: dir, Start: func(string) error { return nil }}
		return must(kernel.New(&kernel.Config{Addrs: []string{at.String()}, Sharing: &sharing}))(t)
	}
	receiver := must(framed.New(open(), func(l link.Link) (link.Link, error) { return l, nil }))(t)
	defer receiver.Close()
	type datagram struct {
		from    stack.Range
		payload []byte
	}
	got := make(chan datagram, 1)
	port := receiver.NICs()[0].Datagrams()
	port.Receive(func(d *stack.Datagram) { got <- datagram{d.SrcQPNs, bytes.Clone(d.Payload)} })
	neighbour, stranger := open(), must(kernel.New(&kernel.Config{Addrs: []string{at.Next().String()}}))(t)
	defer neighbour.Close()
	defer stranger.Close()
	neighbourQPNs := neighbour.NICs()[0].Datagrams().(stack.Shared).Numbers().QPNs
	for host, want := range map[*kernel.Host]stack.Range{neighbour: neighbourQPNs, stranger: {}} {
		out := host.NICs()[0].Datagrams()
		p := must(out.Path(stack.PathAttr{Src: host.NICs()[0].GIDs()[1], Dst: at, HopLimit: 9}))(t)
		pkt := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PKey: 0xffff, DestQP: port.(stack.Shared).Numbers().QPNs.Base + 1}}
		s := out.Sender()
		header, payload := s.Datagram(p, pkt.Size())
		pkt.Encode(header, payload)
		s.Flush()
		select {
		case d := <-got:
			if d.from != want || len(d.payload) != pkt.Size() {
				t.Errorf("%d bytes of %+v, want %d of %+v", len(d.payload), d.from, pkt.Size(), want)
			}
		case <-time.After(20 * time.Second):
			t.Error("no datagram arrived")
		}
		p.Close()
	}
}
