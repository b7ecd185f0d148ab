package rpcrdma_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overAll runs a test over the selected media and both transports, in parallel with other tests.
func overAll(t *testing.T, f func(t *testing.T, m stacktest.Medium, transport verbs.Transport)) {
	stacktest.Over(t, func(t *testing.T, m stacktest.Medium) {
		for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
			t.Run(transport.String(), func(t *testing.T) { f(t, m, transport) })
		}
	})
}

// TestMedia: tests that do not run over all media are in the list, with a reason.
func TestMedia(t *testing.T) { stacktest.CheckList(t, "overAll") }

// devices opens two devices on a network of their own. They are closed at the end of the test. at
// is the address of the first.
func devices(t *testing.T, m stacktest.Medium) (to, from *verbs.Device, at netip.Addr) {
	t.Helper()
	a, b := m.Hosts(t)
	var devs [2]*verbs.Device
	for i, end := range []stacktest.End{a, b} {
		dev, err := rdmatransport.Open(end.Host, nil)
		ok(t, err)
		t.Cleanup(func() {
			dev.Close()
			end.Host.Close()
		})
		devs[i] = dev
	}
	return devs[0], devs[1], a.Addr
}

// serve serves calls on a device until the test ends, and returns the address.
func serve(t *testing.T, dev *verbs.Device, at netip.Addr, cfg *rpcrdma.Config, h rpcrdma.Handler) *rpcrdma.Listener {
	t.Helper()
	l, err := rpcrdma.Listen(dev, netip.AddrPortFrom(at, 0).String(), cfg)
	ok(t, err)
	served := make(chan error, 1)
	go func() { served <- l.Serve(h) }()
	t.Cleanup(func() {
		ok(t, l.Close())
		ok(t, <-served)
	})
	return l
}

func dial(t *testing.T, dev *verbs.Device, l *rpcrdma.Listener, cfg *rpcrdma.Config) *rpcrdma.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := rpcrdma.Dial(ctx, dev, l.Addr().String(), cfg)
	ok(t, err)
	t.Cleanup(func() { ok(t, c.Close()) })
	return c
}

// disk is a server with one file: it serves READ and WRITE of NFS, and READDIRPLUS, whose result
// here is as many bytes as the call asks for.
type disk struct {
	mu   sync.Mutex
	file []byte
	call atomic.Uint64
}

var be = binary.BigEndian

const header = 40 // length of a call's header with empty credentials

func message(xid, procedure uint32) []byte {
	var b []byte
	for _, w := range []uint32{xid, 0, 2, 100003, 3, procedure, 0, 0, 0, 0} {
		b = be.AppendUint32(b, w)
	}
	return b
}

func opaque(b, data []byte) []byte {
	b = append(be.AppendUint32(b, uint32(len(data))), data...)
	return append(b, make([]byte, -len(data)&3)...)
}

func readCall(xid uint32, off, n int) []byte {
	b := opaque(message(xid, 6), []byte("file"))
	return be.AppendUint32(be.AppendUint64(b, uint64(off)), uint32(n))
}

func writeCall(xid uint32, off int, data []byte) []byte {
	b := opaque(message(xid, 7), []byte("file"))
	b = be.AppendUint32(be.AppendUint64(b, uint64(off)), uint32(len(data)))
	return opaque(be.AppendUint32(b, 2), data)
}

func readdirCall(xid uint32, n int) []byte {
	b := opaque(message(xid, 17), []byte("file"))
	b = be.AppendUint64(be.AppendUint64(b, 0), 0)
	return be.AppendUint32(be.AppendUint32(b, uint32(n)), uint32(n))
}

// done is the header of a reply.
func done(call []byte) []byte {
	b := append([]byte(nil), call[:4]...)
	for _, w := range []uint32{1, 0, 0, 0, 0} {
		b = be.AppendUint32(b, w)
	}
	return b
}

func (d *disk) HandleRPC(_ context.Context, c *rpcrdma.Call) []byte {
	d.call.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	args := c.Message[min(header+8, len(c.Message)):]
	reply := be.AppendUint32(be.AppendUint32(done(c.Message), 0), 0)
	switch be.Uint32(c.Message[20:]) {
	case 6:
		off, n := int(be.Uint64(args)), int(be.Uint32(args[8:]))
		off = min(off, len(d.file))
		n = min(n, len(d.file)-off)
		reply = be.AppendUint32(be.AppendUint32(reply, uint32(n)), 0)
		return opaque(reply, d.file[off:off+n])
	case 7:
		off, n := int(be.Uint64(args)), int(be.Uint32(args[16:]))
		if len(args) != 20+n+-n&3 {
			return nil
		}
		d.file = append(d.file, make([]byte, max(0, off+n-len(d.file)))...)
		copy(d.file[off:], args[20:20+n])
		return reply
	}
	if len(args) < 24 {
		return reply
	}
	return append(reply, bytes.Repeat([]byte("entry123"), int(be.Uint32(args[20:]))/8)...)
}

// set sets the file, and is reports whether it has these bytes.
func (d *disk) set(b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.file = b
}

func (d *disk) is(b []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Equal(d.file, b)
}

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TestReadWrite: data of every size is written and read back, by RDMA and inline, with and without
// a binding, and between sides with different thresholds.
func TestReadWrite(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for i, c := range []struct{ server, client rpcrdma.Config }{
			{rpcrdma.Config{Binding: rpcrdma.NFS}, rpcrdma.Config{Binding: rpcrdma.NFS}},
			{rpcrdma.Config{Binding: rpcrdma.NFS, Inline: 1024}, rpcrdma.Config{Binding: rpcrdma.NFS, Inline: 65536}},
			{rpcrdma.Config{Inline: 8192, Credits: 1}, rpcrdma.Config{Inline: 2048, Credits: 3}},
		} {
			c.server.Transport, c.client.Transport = transport, transport
			d := &disk{}
			l := serve(t, to, at, &c.server, d)
			client := dial(t, from, l, &c.client)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			xid, off := uint32(0), 0
			want := []byte{}
			for _, n := range []int{0, 1, 2, 3, 4, 900, 1023, 4000, 4096, 10001, 65536, 1 << 20} {
				xid++
				data := random(n, byte(xid))
				want = append(want, data...)
				reply, err := client.Call(ctx, writeCall(xid, off, data))
				ok(t, err)
				if len(reply) != 32 {
					t.Fatalf("%d: %d bytes written: the reply is %x", i, n, reply)
				}
				xid++
				reply, err = client.Call(ctx, readCall(xid, off, n))
				ok(t, err)
				if len(reply) < 44 || !bytes.Equal(reply[44:44+n], data) || len(reply) != 44+n+-n&3 {
					t.Fatalf("%d: %d bytes read: the reply has %d", i, n, len(reply))
				}
				off += n
			}
			// A reply of a kind that has no data item comes whole.
			for _, n := range []int{8, 4096, 100000} {
				xid++
				reply, err := client.Call(ctx, readdirCall(xid, n))
				ok(t, err)
				if want := bytes.Repeat([]byte("entry123"), n/8); !bytes.Equal(reply[32:], want) {
					t.Fatalf("%d: the reply has %d bytes of %d", i, len(reply), n)
				}
			}
			if !d.is(want) {
				t.Error("the file has other bytes")
			}
			s := l.Stats()
			if s.Calls != uint64(xid) || s.Replies != s.Calls || s.Errors != 0 || s.ByRead < 1<<20 || s.ByWrite < 1<<20 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestConcurrent: many callers share a connection, and another client is served at the same time.
func TestConcurrent(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		const callers, size = 8, 50000
		want := random(callers*size, 1)
		d := &disk{file: bytes.Clone(want)}
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, Credits: 8, Memory: 2 << 20}
		l := serve(t, to, at, cfg, d)
		var callersDone sync.WaitGroup
		for c := range 2 {
			client := dial(t, from, l, cfg)
			for i := range callers {
				callersDone.Go(func() {
					for round := range stacktest.Size(4, 10, 50) {
						xid := uint32(c<<16 | i<<8 | round)
						reply, err := client.Call(t.Context(), readCall(xid, i*size, size))
						if err != nil || !bytes.Equal(reply[44:], want[i*size:(i+1)*size]) {
							t.Errorf("caller %d: %d bytes, %v", i, len(reply), err)
							return
						}
						if reply, err = client.Call(t.Context(), writeCall(xid|0x80, i*size, reply[44:])); err != nil {
							t.Errorf("caller %d: %x, %v", i, reply, err)
							return
						}
					}
				})
			}
		}
		callersDone.Wait()
	})
}

// TestEnd: calls fail when the server ends, and nothing is left of either side.
func TestEnd(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport}
		l, err := rpcrdma.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
		ok(t, err)
		called := make(chan struct{})
		go l.Serve(rpcrdma.HandlerFunc(func(ctx context.Context, _ *rpcrdma.Call) []byte {
			close(called)
			<-ctx.Done()
			return nil
		}))
		client, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), cfg)
		ok(t, err)
		failed := make(chan error, 1)
		go func() {
			_, err := client.Call(t.Context(), message(1, 0))
			failed <- err
		}()
		<-called
		ok(t, l.Close())
		if err := <-failed; err == nil {
			t.Error("a call succeeded without a server")
		}
		if _, err := client.Call(t.Context(), message(2, 0)); err == nil {
			t.Error("a later call succeeded")
		}
		ok(t, client.Close())
		for _, dev := range []*verbs.Device{to, from} {
			if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
				t.Errorf("leaked: %+v", r)
			}
		}
	})
}

// TestCanceled: a call whose context ends returns, and takes its memory from the server.
func TestCanceled(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport}
		ctx, cancel := context.WithCancel(t.Context())
		l := serve(t, to, at, cfg, rpcrdma.HandlerFunc(func(ended context.Context, _ *rpcrdma.Call) []byte {
			cancel()
			<-ended.Done()
			return make([]byte, 100)
		}))
		client := dial(t, from, l, cfg)
		if _, err := client.Call(ctx, message(1, 0)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestLongReply: the client gets an error for a reply that fits none of its chunks, and the
// connection goes on.
func TestLongReply(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS}
		l := serve(t, to, at, cfg, rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
			return append(done(c.Message), make([]byte, 100*int(c.Message[3]))...)
		}))
		client := dial(t, from, l, cfg)
		for _, n := range []byte{1, 50, 2} { // a GETATTR, for whose reply the client offers nothing
			reply, err := client.Call(t.Context(), opaque(message(uint32(n), 1), []byte("file")))
			var remote *rpcrdma.RemoteError
			switch {
			case n == 50 && (!errors.As(err, &remote) || remote.Code != rpcrdma.ErrChunk):
				t.Errorf("%d bytes, %v", len(reply), err)
			case n != 50 && (err != nil || len(reply) != 24+int(n)*100):
				t.Errorf("%d bytes, %v", len(reply), err)
			}
		}
	})
}

func TestConfigRefused(t *testing.T) {
	to, _, at := devices(t, stacktest.Direct)
	for _, c := range []rpcrdma.Config{
		{Credits: -1}, {Credits: 5000}, {Inline: 512}, {Inline: 1500}, {Inline: 1 << 20}, {MaxMessage: 10}, {MaxMessage: 1<<29 + 1},
		{Memory: 5}, {MaxConns: -1}, {KeepAlive: -2}, {Transport: verbs.IWARP, Transports: []verbs.Transport{verbs.RoCEv2}},
	} {
		if l, err := rpcrdma.Listen(to, netip.AddrPortFrom(at, 0).String(), &c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v, %v", c, l, err)
		}
	}
}

// BenchmarkRead measures READs of a size, by eight callers, between two nodes of this process.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			lan := new(pipe.Switch)
			var devs []*verbs.Device
			for _, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
				host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
				ok(b, err)
				defer host.Close()
				dev, err := rdmatransport.Open(host, nil)
				ok(b, err)
				defer dev.Close()
				devs = append(devs, dev)
			}
			d := &disk{file: random(size, 1)}
			cfg := &rpcrdma.Config{Binding: rpcrdma.NFS}
			l, err := rpcrdma.Listen(devs[0], "10.0.0.1:20049", cfg)
			ok(b, err)
			go l.Serve(d)
			defer l.Close()
			client, err := rpcrdma.Dial(b.Context(), devs[1], l.Addr().String(), cfg)
			ok(b, err)
			defer client.Close()
			var xid atomic.Uint32
			b.SetBytes(int64(size))
			b.SetParallelism(8)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := client.Call(b.Context(), readCall(xid.Add(1), 0, size)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
