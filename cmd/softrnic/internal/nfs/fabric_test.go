package nfs

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// TestOnFabric: clients write and read files over a simulated network, with a cable that is cut in
// between. The server's calls take no virtual time, although each has a goroutine of its own. Times
// are the simulation's, and runs with the same seed have the same frames.
func TestOnFabric(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var digests []string
	for i, seed := range []uint64{1, 1, 1, 2} {
		runtime.GOMAXPROCS(1 + i%3)
		t.Run(fmt.Sprint(i), func(t *testing.T) { digests = append(digests, onFabric(t, seed)) })
	}
	if len(digests) != 4 || digests[0] != digests[1] || digests[0] != digests[2] || digests[0] == digests[3] {
		t.Errorf("digests %s", digests)
	}
}

func onFabric(t *testing.T, seed uint64) string {
	f, err := fabric.New(&fabric.Config{Topology: fabric.LeafSpine(2, 2, 2), Seed: seed})
	ok(t, err)
	t.Cleanup(f.Close)
	var devs []*verbs.Device
	for _, h := range f.Hosts() {
		s, err := netstack.New(h, &netstack.Config{Addrs: []string{h.Prefix()}})
		ok(t, err)
		dev, err := rdmatransport.Open(s, nil)
		ok(t, err)
		t.Cleanup(func() {
			_ = dev.Provider().Close()
			_ = s.Close()
		})
		devs = append(devs, dev)
	}
	server := f.Hosts()[0]
	e := newExportAt(newMemoryAt(64<<20, server.Clock()), "/", false, server.Clock())
	t.Cleanup(func() { ok(t, e.close()) })
	l, err := rpcrdma.Listen(devs[0], ":20049", &rpcrdma.Config{Binding: rpcrdma.NFS})
	ok(t, err)
	server.Go(func(*fabric.Process) { ok(t, l.Serve(e)) })
	left := 3
	for i, h := range f.Hosts()[1:] {
		h.Go(func(p *fabric.Process) {
			rdma, err := rpcrdma.Dial(context.Background(), devs[1+i], server.Addr().String()+":20049", &rpcrdma.Config{Binding: rpcrdma.NFS})
			ok(t, err)
			c := over(rdma)
			file := c.create(t, c.mount(t, "/"), fmt.Sprint("file", i))
			data := bytes.Repeat([]byte{byte('a' + i)}, 300_000)
			for at := 0; at < len(data); at += 100_000 {
				c.write(t, file, uint64(at), data[at:at+100_000], 2)
			}
			if got, eof := c.read(t, file, 0, len(data)); !bytes.Equal(got, data) || !eof {
				t.Errorf("%d bytes of %d, %t", len(got), len(data), eof)
			}
			const toServer, noGuard = 1, 0
			before := uint64(h.Clock().Now().Unix())
			c.must(t, procSetattr, file, 0, 0, 0, 0, toServer, toServer, noGuard)
			a, after := c.getattr(t, file), uint64(h.Clock().Now().Unix())
			if accessed := a.accessed >> 32; a.mtime < before || a.mtime > after || accessed < before || accessed > after {
				t.Errorf("times set to %d and %d, want those of the simulation, %d to %d", accessed, a.mtime, before, after)
			}
			ok(t, rdma.Close())
			if left--; left == 0 {
				ok(t, l.Close())
			}
		})
	}
	f.Hosts()[1].Go(func(p *fabric.Process) {
		p.Sleep(60 * time.Microsecond)
		server.Port().SetDown(true)
		p.Sleep(5 * time.Microsecond)
		server.Port().SetDown(false)
	})
	ok(t, f.Wait(time.Minute)) // a QP's timeout is a second
	if s := l.Stats(); s.ByRead != 900_000 || s.ByWrite != 900_000 || f.Counters().Lost == 0 {
		t.Errorf("%+v, %d frames are lost", s, f.Counters().Lost)
	}
	return f.Digest()
}
