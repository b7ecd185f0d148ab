package trace

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// disorder runs a conversation in virtual time on a network that reorders in both directions, and
// loses a share of the packets. It is captured on either side, on the network and at the host.
func disorder(t *testing.T, seed uint64, loss float64) (captures [4]bytes.Buffer) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(seed, 7))
	way := impair.Direction{Reorder: []float64{0.02, 0.1, 0.3}[r.IntN(3)], Hold: time.Duration(5+r.IntN(500)) * time.Microsecond,
		Delay: time.Duration(r.IntN(100)) * time.Microsecond}
	if r.IntN(2) == 0 {
		way.Jitter = way.Delay / 4
	}
	if way.Loss = loss; loss > 0 {
		way.Reorder *= float64(seed % 3) // without, little or more
	}
	lan := new(pipe.Switch)
	var devs [2]*verbs.Device
	var hosts [2]io.Closer
	var mrs [2]*verbs.MR
	var flush []func() error
	for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		var l link.Link = lan.Port()
		for k := range 2 {
			c, err := capture.New(l, &captures[2*i+k])
			must(err)
			flush = append(flush, c.Flush)
			if l = c; k == 0 {
				l, err = impair.New(l, &impair.Config{Seed: seed<<1 | uint64(i), Out: way})
				must(err)
			}
		}
		host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
		must(err)
		hosts[i] = host
		devs[i], err = rdmatransport.Open(host, nil)
		must(err)
		pd, err := devs[i].DefaultPD()
		must(err)
		mrs[i], err = pd.RegMR(make([]byte, 64<<10), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		must(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	l, err := rdmacm.Listen(devs[1], ":7471", nil)
	must(err)
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	conn, err := rdmacm.Dial(ctx, devs[0], "10.0.0.2:7471", nil)
	must(err)
	peer := <-accepted
	qp := conn.QP()
	for range 30 {
		n := 1 + r.IntN(20000)
		op := verbs.RDMAWrite
		if r.IntN(4) == 0 && seed%2 == 0 {
			op = verbs.RDMARead
		}
		must(qp.PostSend(&verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[0].SGE(0, n)},
			RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey()}))
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
		}
	}
	for done := 0; done < 30; time.Sleep(time.Millisecond) {
		var wcs [8]verbs.WC
		n, err := conn.SendCQ().Poll(wcs[:])
		must(err)
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
		}
		done += n
	}
	must(conn.Close())
	must(peer.Close())
	must(l.Close())
	for i := range devs {
		must(mrs[i].Close())
		devs[i].Close()
		must(hosts[i].Close())
	}
	for _, f := range flush {
		must(f())
	}
	return captures
}

// TestDisorder: with reordering in both directions, retransmissions of a requester are not reported
// as wrong. Neither is anything for WRITEs alone, which odd seeds use.
func TestDisorder(t *testing.T) {
	// These cover everything that the first 200 cover.
	first, seeds, repeated, reordered := uint64(155), uint64(35), 0, 0
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		first, seeds = 0, 1000
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		first, seeds = 0, 200
	}
	if raceEnabled {
		seeds = 20 // each takes a second
	}
	for seed := first; seed < first+seeds; seed++ {
		var captures [4]bytes.Buffer
		synctest.Test(t, func(t *testing.T) { captures = disorder(t, seed, 0) })
		for i := range captures {
			src, err := open(&captures[i])
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			a, err := (&Command{Errors: true}).trace(context.Background(), src, &out, "test")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, "WRONG packet") && (seed%2 != 0 || strings.Contains(line, "nothing asked for it")) {
					t.Errorf("seed %d, capture %d: %s", seed, i, line)
				}
			}
			reordered += a.counts.Reordered
			for _, f := range a.flows {
				repeated += int(f.stats.Repeated)
			}
		}
	}
	t.Logf("%d seeds, %d repeated, %d reordered", seeds, repeated, reordered)
	if n := int(seeds) * 50; repeated < n || reordered < n {
		t.Error("too few to see anything")
	}
}

// TestLossy: with losses in both directions, which a capture shows or does not, nothing is wrong.
func TestLossy(t *testing.T) {
	seeds, lost, repeated := uint64(12), 0, 0
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		seeds = 1000
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		seeds = 100
	}
	for seed := range seeds {
		var captures [4]bytes.Buffer
		synctest.Test(t, func(t *testing.T) { captures = disorder(t, seed, []float64{0.005, 0.02, 0.05}[seed/3%3]) })
		for i := range captures {
			src, err := open(&captures[i])
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			a, err := (&Command{Errors: true}).trace(context.Background(), src, &out, "test")
			if err != nil {
				t.Fatal(err)
			}
			if a.counts.Wrong > 0 {
				t.Errorf("seed %d, capture %d:\n%s", seed, i, out.String())
			}
			for _, f := range a.flows {
				repeated += int(f.stats.Repeated)
				lost += int(f.stats.Lost)
			}
		}
	}
	t.Logf("%d seeds, %d repeated, %d lost in front of the captures", seeds, repeated, lost)
	if n := int(seeds); repeated < 10*n || lost < n {
		t.Error("too few to see anything")
	}
}
