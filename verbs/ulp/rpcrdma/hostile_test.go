package rpcrdma_test

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// rogue is a client whose messages the test chooses.
type rogue struct {
	t    *testing.T
	conn *rdmacm.Conn
	send *verbs.MR
	recv *verbs.MR
	data *verbs.MR // for chunks
}

const rogueReceives = 32

func attack(t *testing.T, from *verbs.Device, l *rpcrdma.Listener, transport verbs.Transport, private []byte) *rogue {
	t.Helper()
	pd, err := from.AllocPD()
	ok(t, err)
	r := &rogue{t: t}
	r.send, err = pd.RegMR(make([]byte, 64<<10), verbs.AccessLocalWrite)
	ok(t, err)
	r.recv, err = pd.RegMR(make([]byte, rogueReceives*4096), verbs.AccessLocalWrite)
	ok(t, err)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessMWBind
	r.data, err = pd.RegMR(make([]byte, 64<<10), access)
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.conn, err = rdmacm.Dial(ctx, from, l.Addr().String(), &rdmacm.Config{
		Transport: transport, PD: pd, PrivateData: private, SQSigAll: true,
		Prepare: func(c *rdmacm.Conn) error {
			for i := range rogueReceives {
				wr := &verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{r.recv.SGE(i*4096, 4096)}}
				if err := c.QP().PostRecv(wr); err != nil {
					return err
				}
			}
			return nil
		},
	})
	ok(t, err)
	t.Cleanup(func() {
		r.conn.Close()
		for _, mr := range []*verbs.MR{r.send, r.recv, r.data} {
			ok(t, mr.Close())
		}
		ok(t, pd.Close())
	})
	return r
}

// sends sends a message.
func (r *rogue) sends(b []byte) {
	r.t.Helper()
	copy(r.send.Buf(), b)
	ok(r.t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{r.send.SGE(0, len(b))}}))
	r.sent()
}

func (r *rogue) sent() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	var wcs [1]verbs.WC
	_, err := r.conn.SendCQ().Wait(ctx, wcs[:])
	ok(r.t, err)
	if wcs[0].Status != verbs.WCSuccess {
		r.t.Fatal(wcs[0].Err())
	}
}

// receives returns the next message of the server, or nil if the connection has ended.
func (r *rogue) receives() (*rpcrdma.Header, []byte, *verbs.WC) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	var wcs [1]verbs.WC
	_, err := r.conn.RecvCQ().Wait(ctx, wcs[:])
	ok(r.t, err)
	if wcs[0].Status != verbs.WCSuccess {
		return nil, nil, &wcs[0]
	}
	b := r.recv.Buf()[int(wcs[0].WRID)*4096:][:wcs[0].ByteLen]
	h, n, err := rpcrdma.ParseHeader(b)
	ok(r.t, err)
	return h, bytes.Clone(b[n:]), &wcs[0]
}

// segment describes n bytes of the rogue's memory.
func (r *rogue) segment(off, n int) rpcrdma.Segment {
	return rpcrdma.Segment{Handle: r.data.RKey(), Length: uint32(n), Offset: r.data.Addr() + uint64(off)}
}

// private has thresholds of 4096 bytes, and no invalidation, because that needs memory windows.
var private = []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}

// TestErrorMessages: a message that cannot be served is answered with an error message, or not at
// all, and the connection goes on.
func TestErrorMessages(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS}
		d := &disk{file: random(1000, 1)}
		r := attack(t, from, serve(t, to, at, cfg, d), transport, private)
		head := func(h rpcrdma.Header, inline ...byte) []byte {
			h.XID, h.Credits = 7, 5
			if h.Version == 0 {
				h.Version = 1
			}
			return append(h.Append(nil), inline...)
		}
		seg := r.segment
		null := message(7, 0)
		many := rpcrdma.Header{}
		for range 160 {
			many.Read = append(many.Read, rpcrdma.ReadSegment{Position: 40, Segment: seg(0, 8000)}) // more than MaxMessage
		}
		const none, vers, chunk = rpcrdma.ErrCode(0), rpcrdma.ErrVers, rpcrdma.ErrChunk
		for _, c := range []struct {
			name string
			b    []byte
			want rpcrdma.ErrCode
		}{
			{"version 2", head(rpcrdma.Header{Version: 2}, null...), vers},
			{"type 2", head(rpcrdma.Header{Type: rpcrdma.MsgP}), chunk},
			{"a truncated list", head(rpcrdma.Header{Reply: []rpcrdma.Segment{seg(0, 9)}})[:40], chunk},
			{"no message", head(rpcrdma.Header{}), chunk},
			{"another XID", head(rpcrdma.Header{}, message(8, 0)...), chunk},
			{"a message in no chunk", head(rpcrdma.Header{Type: rpcrdma.NoMsg}, null...), chunk},
			{"a message in a chunk, and inline", head(rpcrdma.Header{Type: rpcrdma.NoMsg,
				Read: []rpcrdma.ReadSegment{{Position: 0, Segment: seg(0, 40)}}}, null...), chunk},
			{"RDMA_MSG with a chunk at 0", head(rpcrdma.Header{Read: []rpcrdma.ReadSegment{{Position: 0, Segment: seg(0, 40)}}}), chunk},
			{"a chunk after the end", head(rpcrdma.Header{Read: []rpcrdma.ReadSegment{{Position: 44, Segment: seg(0, 40)}}}, null...), chunk},
			{"too long a call", head(many, null...), chunk},
			{"a segment of 4 GiB", head(rpcrdma.Header{Read: []rpcrdma.ReadSegment{
				{Position: 40, Segment: rpcrdma.Segment{Length: 1<<32 - 1}}, {Position: 40, Segment: seg(0, 2)}}}, null...), chunk},
			{"too short a Write chunk", head(rpcrdma.Header{Write: [][]rpcrdma.Segment{{seg(0, 400), seg(400, 599)}}},
				readCall(7, 0, 1000)...), chunk},
			{"done", head(rpcrdma.Header{Type: rpcrdma.Done}), none},
			{"an error", head(rpcrdma.Header{Type: rpcrdma.Error, Err: rpcrdma.ErrChunk}), none},
			{"3 bytes", []byte{1, 2, 3}, none},
			{"nothing", nil, none},
		} {
			r.sends(c.b)
			if c.want == none {
				continue
			}
			h, _, _ := r.receives()
			if h == nil || h.XID != 7 || h.Type != rpcrdma.Error || h.Err != c.want || h.Credits != 5 ||
				c.want == vers && (h.Low != 1 || h.High != 1) {
				t.Fatalf("%s: the answer is %+v", c.name, h)
			}
		}
		if n := d.call.Load(); n != 1 { // the one with the short Write chunk
			t.Errorf("the handler was called %d times", n)
		}
		r.sends(head(rpcrdma.Header{}, null...))
		if h, reply, _ := r.receives(); h == nil || h.Type != rpcrdma.Msg || len(reply) != 32 {
			t.Errorf("afterwards, the answer is %+v with %x", h, reply)
		}
	})
}

// TestChunks: the layouts of chunks that Linux does not use are understood: many segments, padding
// in a chunk and not, a whole message in a chunk with a further chunk, an unused Write chunk. The
// reply says what was written.
func TestChunks(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS}
		d := &disk{}
		r := attack(t, from, serve(t, to, at, cfg, d), transport, private)
		data := random(1001, 3)
		copy(r.data.Buf(), data)
		write := writeCall(7, 0, data)
		position := len(write) - 1004
		fragments := []rpcrdma.ReadSegment{
			{Position: uint32(position), Segment: r.segment(0, 1000)}, {Position: uint32(position), Segment: r.segment(5, 0)},
			{Position: uint32(position), Segment: r.segment(1000, 1)},
		}
		padded := append(fragments, rpcrdma.ReadSegment{Position: uint32(position), Segment: r.segment(2000, 3)})
		copy(r.data.Buf()[4096:], write[:position])
		whole := append([]rpcrdma.ReadSegment{{Segment: r.segment(4096, 20)}, {Segment: r.segment(4116, position-20)}}, fragments...)
		for i, h := range []rpcrdma.Header{{Read: fragments}, {Read: padded}, {Type: rpcrdma.NoMsg, Read: whole}} {
			h.XID, h.Version, h.Credits = 7, 1, 1000
			d.set(nil)
			b := h.Append(nil)
			if h.Type == rpcrdma.Msg {
				b = append(b, write[:position]...)
			}
			r.sends(b)
			got, reply, _ := r.receives()
			if got == nil || got.Type != rpcrdma.Msg || len(reply) != 32 || got.Credits != 64 || !d.is(data) {
				t.Fatalf("%d: %+v %x", i, got, reply)
			}
		}
		// The item goes to the first chunk, across its segments; the second chunk is not used.
		clear(r.data.Buf())
		h := rpcrdma.Header{XID: 7, Version: 1, Credits: 1, Write: [][]rpcrdma.Segment{
			{r.segment(0, 300), r.segment(300, 0), r.segment(1000, 800), r.segment(5000, 10)}, {r.segment(6000, 10)},
		}, Reply: []rpcrdma.Segment{r.segment(7000, 10)}}
		r.sends(append(h.Append(nil), readCall(7, 0, 1001)...))
		got, reply, _ := r.receives()
		if got == nil || len(got.Write) != 2 || len(reply) != 44 || got.Reply != nil {
			t.Fatalf("%+v %x", got, reply)
		}
		var lengths []uint32
		for _, chunk := range got.Write {
			for _, s := range chunk {
				lengths = append(lengths, s.Length)
			}
		}
		wrote := append(bytes.Clone(r.data.Buf()[:300]), r.data.Buf()[1000:1701]...)
		if !bytes.Equal(wrote, data) || len(lengths) != 5 || lengths[0] != 300 || lengths[2] != 701 || lengths[3]+lengths[4] != 0 {
			t.Errorf("wrote %v", lengths)
		}
		if rest := append(r.data.Buf()[300:1000:1000], r.data.Buf()[1701:]...); !bytes.Equal(rest, make([]byte, len(rest))) {
			t.Error("bytes outside of the chunk were written")
		}
		// A reply that is too long for a SEND goes to the Reply chunk.
		h = rpcrdma.Header{XID: 7, Version: 1, Credits: 0, Reply: []rpcrdma.Segment{r.segment(0, 5000), r.segment(6000, 5000)}}
		r.sends(append(h.Append(nil), readdirCall(7, 8000)...))
		got, reply, _ = r.receives()
		if got == nil || got.Type != rpcrdma.NoMsg || len(reply) != 0 || len(got.Reply) != 2 || got.Reply[0].Length != 5000 ||
			got.Reply[1].Length != 3032 || got.Credits != 1 {
			t.Fatalf("%+v %x", got, reply)
		}
		listing := append(bytes.Clone(r.data.Buf()[:5000]), r.data.Buf()[6000:9032]...)
		if !bytes.Equal(listing[32:], bytes.Repeat([]byte("entry123"), 1000)) {
			t.Error("the listing has other bytes")
		}
	})
}

// TestInvalidate: the reply invalidates the key of the call's chunks, if the client accepts that
// and there is no other.
func TestInvalidate(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS}
		l := serve(t, to, at, cfg, &disk{file: random(1000, 1)})
		for _, accepts := range []bool{true, false} {
			own := bytes.Clone(private)
			if accepts {
				own[5] = 1
			}
			r := attack(t, from, l, transport, own)
			mw, err := r.conn.PD().AllocMW(verbs.MWType2)
			ok(t, err)
			t.Cleanup(func() { mw.Close() })
			key := mw.RKey()&^0xff | 0x55
			ok(t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.BindMW, Bind: &verbs.MWBind{MW: mw, RKey: key,
				MWBindInfo: verbs.MWBindInfo{MR: r.data, Addr: r.data.Addr(), Length: 1000, Access: verbs.AccessRemoteWrite}}}))
			r.sent()
			seg := r.segment(0, 1000)
			seg.Handle = key
			h := rpcrdma.Header{XID: 7, Version: 1, Credits: 1, Write: [][]rpcrdma.Segment{{seg}}}
			r.sends(append(h.Append(nil), readCall(7, 0, 1000)...))
			got, _, wc := r.receives()
			if got == nil || (wc.Flags&verbs.WCWithInv != 0) != accepts || accepts && wc.InvalidatedRKey != key {
				t.Errorf("the answer is %+v, and its completion %+v", got, wc)
			}
			h.Write = [][]rpcrdma.Segment{{r.segment(0, 1000)}, {rpcrdma.Segment{Handle: key}}}
			r.sends(append(h.Append(nil), readCall(7, 0, 1000)...))
			if got, _, wc := r.receives(); got == nil || wc.Flags&verbs.WCWithInv != 0 {
				t.Errorf("with two keys, the answer is %+v, and its completion %+v", got, wc)
			}
		}
	})
}

// TestForeignMemory: a client that describes memory that is not its own loses its connection.
// Others keep theirs, and nothing is left of it.
func TestForeignMemory(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS}
		l := serve(t, to, at, cfg, &disk{file: random(1000, 1)})
		good := dial(t, from, l, cfg)
		for _, wrong := range []func(*rpcrdma.Segment){
			func(s *rpcrdma.Segment) { s.Handle ^= 0x100 },
			func(s *rpcrdma.Segment) { s.Offset += 64 << 10 },
			func(s *rpcrdma.Segment) { s.Offset = 1<<64 - 500 },
		} {
			for _, read := range []bool{true, false} {
				r := attack(t, from, l, transport, private)
				seg := r.segment(0, 1000)
				wrong(&seg)
				h := rpcrdma.Header{XID: 7, Version: 1, Credits: 1}
				call := readCall(7, 0, 1000)
				if read {
					call = writeCall(7, 0, nil)
					h.Read = []rpcrdma.ReadSegment{{Position: uint32(len(call)), Segment: seg}}
				} else {
					h.Write = [][]rpcrdma.Segment{{seg}}
				}
				r.sends(append(h.Append(nil), call...))
				if got, _, wc := r.receives(); got != nil {
					t.Errorf("the answer is %+v, with %v", got, wc.Status)
				}
			}
		}
		if _, err := good.Call(t.Context(), readCall(1, 0, 1000)); err != nil {
			t.Error(err)
		}
		for until := time.Now().Add(20 * time.Second); to.Resources().QP > 1; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("left: %+v", to.Resources())
			}
		}
	})
}

// TestTooManyConnections: a client with half of the connections is rejected until one ends.
func TestTooManyConnections(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, MaxConns: 4}
		l := serve(t, to, at, cfg, &disk{})
		first := dial(t, from, l, cfg)
		second, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), cfg)
		ok(t, err)
		for i, c := range []*rpcrdma.Client{first, second} {
			_, err := c.Call(t.Context(), message(uint32(i), 0))
			ok(t, err)
		}
		if c, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), cfg); err == nil {
			c.Close()
			t.Error("a third connection was accepted")
		}
		ok(t, second.Close())
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if c, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), cfg); err == nil {
				ok(t, c.Close())
				return
			}
			if time.Now().After(until) {
				t.Fatal("no connection after one has ended")
			}
		}
	})
}

// TestBeyondCredits: calls beyond the credits wait for receive requests, or end the connection. The
// server never serves more than it has granted.
func TestBeyondCredits(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Credits: 4}
		var serving, most int
		var mu sync.Mutex
		full, gate := make(chan struct{}), make(chan struct{})
		change := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			if serving += n; serving > most {
				if most = serving; most == cfg.Credits {
					close(full)
				}
			}
		}
		h := rpcrdma.HandlerFunc(func(ctx context.Context, c *rpcrdma.Call) []byte {
			change(1)
			defer change(-1)
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return done(c.Message)
		})
		l, err := rpcrdma.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
		ok(t, err)
		go l.Serve(h)
		r := attack(t, from, l, transport, private)
		b := (&rpcrdma.Header{XID: 7, Version: 1, Credits: 9}).Append(nil)
		b = append(b, message(7, 0)...)
		copy(r.send.Buf(), b)
		for i := range 12 {
			if i == cfg.Credits {
				select {
				case <-full:
				case <-time.After(20 * time.Second):
					t.Fatal("the calls within the credits are not served at once")
				}
			}
			_ = r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{r.send.SGE(0, len(b))}})
		}
		close(gate)
		for range 12 {
			if h, _, _ := r.receives(); h == nil {
				break // over iWARP, a SEND without a receive request ends the connection
			}
		}
		ok(t, l.Close())
		mu.Lock()
		defer mu.Unlock()
		if most != cfg.Credits {
			t.Errorf("%d calls were served at a time, want %d", most, cfg.Credits)
		}
	})
}
