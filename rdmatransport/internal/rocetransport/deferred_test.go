package rocetransport_test

// FLUSHes to files on slow devices.

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// disk is the device of the region's file. It blocks until the test lets it continue.
type disk struct {
	*rig
	file    *verbs.MR
	let     chan error   // result of the next call
	started atomic.Int32 // calls
	ended   atomic.Int32
}

// flushing runs a test of a rig with a disk.
func flushing(t *testing.T, name string, c config, f func(t *testing.T, d *disk)) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	c.access = allAccess | verbs.AccessFlushPersistent
	run(t, name, c, func(t *testing.T, r *rig) {
		d := &disk{rig: r, let: make(chan error)}
		t.Cleanup(rocetransport.SetPersist(func(mr *verbs.RegisteredMR, b []byte) error {
			d.started.Add(1)
			defer d.ended.Add(1)
			return <-d.let
		}))
		f1 := must(os.Create(filepath.Join(t.TempDir(), "region")))
		defer f1.Close()
		if err := f1.Truncate(1 << 16); err != nil {
			t.Fatal(err)
		}
		d.file = must(r.pd.RegMREx(&verbs.MRInitAttr{File: f1, FileLength: 1 << 16, Access: c.access}))
		f(t, d)
		if err := d.file.Close(); err != nil {
			t.Error(err)
		}
	})
}

// flush is a FLUSH of the file.
func (d *disk) flush(psn int) wire.Packet {
	return d.req(wire.RCFlush, psn, nil, flush(wire.FlushPersistent, wire.FlushRange), reth(d.file.Addr(), d.file.RKey(), 100))
}

// ends completes the oldest call.
func (d *disk) ends(err error) {
	d.let <- err
	synctest.Wait()
}

// TestSlowFlush checks that other QPs continue during a FLUSH, and this one as far as the order
// allows.
func TestSlowFlush(t *testing.T) {
	c := config{destRD: 8, rqPSN: 0xfffffe}
	add := func(d *disk, psn int) wire.Packet {
		return d.req(wire.RCFetchAdd, psn, nil, func(p *wire.Packet) {
			p.AtomicETH = wire.AtomicETH{Addr: d.mr.Addr(), RKey: d.mr.RKey(), Swap: 1}
		})
	}
	flushing(t, "in order", c, func(t *testing.T, d *disk) {
		clear(d.buf[:16])
		d.recv(1, 100, 64)
		d.give(add(d, 0), d.flush(1))
		d.expect("ATOMIC Acknowledge 0 msn 1 orig 0")
		// Requests that may overtake it are executed; others, and all answers, wait.
		d.give(
			d.req(wire.RCSendOnly, 2, fill(8, 1), ackReq),
			add(d, 3),
			d.req(wire.RCAtomicWrite, 4, []byte{9, 9, 9, 9, 9, 9, 9, 9}, d.at(8, 8)),
			d.req(wire.RCReadRequest, 5, nil, d.at(0, 16)),
			d.flush(6),
			add(d, 7),
			d.req(wire.RCWriteOnly, 8, fill(8, 1), d.at(200, 8), ackReq),
		)
		d.completions(d.rcq, "1 SUCCESS RECV 8")
		// The requester's timeout expires, and everything unanswered is retransmitted.
		d.give(d.flush(1), add(d, 3), d.req(wire.RCAtomicWrite, 4, make([]byte, 8), d.at(8, 8)), d.flush(6), add(d, 7))
		sleep(time.Minute)
		d.expect()
		if d.buf[0] != 1 && d.buf[7] != 1 || d.buf[8] != 0 || d.started.Load() != 1 {
			t.Fatalf("%x, %d calls: a request has overtaken a FLUSH", d.buf[:16], d.started.Load())
		}
		d.ends(nil)
		sent := d.expect("Only 1 msn 2 len 0", "ATOMIC Acknowledge 3 msn 4 orig 1", "Only 4 msn 5 len 0", "Only 5 msn 6 len 16")
		if got := sent[3].Payload; got[0] != 2 && got[7] != 2 || got[8] != 9 {
			t.Errorf("%x is read", got)
		}
		if d.started.Load() != 2 {
			t.Errorf("%d calls", d.started.Load())
		}
		d.ends(nil)
		d.expect("Only 6 msn 7 len 0", "ATOMIC Acknowledge 7 msn 8 orig 2", "ack 8 msn 9")
		// Now the answers are known, and nothing is executed again.
		d.give(d.flush(1), add(d, 3), add(d, 7))
		d.expect("Only 1 msn 9 len 0", "ATOMIC Acknowledge 3 msn 9 orig 1", "ATOMIC Acknowledge 7 msn 9 orig 2")
		if d.started.Load() != 2 || d.buf[0] != 3 && d.buf[7] != 3 {
			t.Errorf("%d calls, memory has %x", d.started.Load(), d.buf[:8])
		}
	})
	flushing(t, "another QP", c, func(t *testing.T, d *disk) {
		d.give(d.flush(0))
		slow := d.qp
		d.createQP()
		defer slow.Close()
		d.connect()
		d.give(d.req(wire.RCWriteOnly, 0, fill(8, 1), d.at(0, 8), ackReq), add(d, 1))
		d.take()
		d.give(d.req(wire.RCReadRequest, 2, nil, d.at(0, 8)))
		d.expect("Only 2 msn 3 len 8")
		d.ends(nil)
		d.expect("Only 0 msn 1 len 0")
	})
	flushing(t, "it fails", c, func(t *testing.T, d *disk) {
		d.recv(1, 0, 8)
		d.give(d.flush(0), d.req(wire.RCWriteOnly, 1, fill(8, 1), d.at(0, 8), ackReq), add(d, 2))
		d.ends(errors.New("no space left on device"))
		d.expect("nak63 0 msn 3")
		d.state(verbs.StateErr)
		d.completions(d.rcq, "1 WR_FLUSH_ERR")
	})
	flushing(t, "an atomic after it fails", c, func(t *testing.T, d *disk) {
		gone := must(d.pd.RegMR(make([]byte, 64), allAccess))
		p := add(d, 1)
		p.AtomicETH.Addr, p.AtomicETH.RKey = gone.Addr(), gone.RKey()
		d.give(d.flush(0), p, d.req(wire.RCReadRequest, 2, nil, d.at(0, 8)))
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
		d.ends(nil)
		d.expect("Only 0 msn 1 len 0", "nak62 1 msn 3")
		d.state(verbs.StateErr)
	})
	// A request in error is rejected in order.
	flushing(t, "a rejection after it", c, func(t *testing.T, d *disk) {
		d.give(d.flush(0), d.req(wire.RCWriteOnly, 1, fill(8, 1), reth(d.mr.Addr(), d.mr.RKey()+1, 8)))
		d.expect()
		d.ends(nil)
		d.expect("Only 0 msn 1 len 0", "nak62 1 msn 1")
	})
	flushing(t, "RNR after it", c, func(t *testing.T, d *disk) {
		send := d.req(wire.RCSendOnly, 1, fill(8, 1), ackReq)
		d.give(d.flush(0), send)
		d.recv(1, 0, 8)
		d.give(d.flush(0), send)
		d.expect()
		d.ends(nil)
		d.expect("Only 0 msn 1 len 0", "ack 1 msn 2")
	})
	// A FLUSH started for a connection that has ended does not count for the next connection.
	for name, end := range map[string]func(d *disk){
		"reset": func(d *disk) { d.modify(verbs.StateReset); d.connect() },
		"error": func(d *disk) { d.modify(verbs.StateErr); d.modify(verbs.StateReset); d.connect() },
		"closed": func(d *disk) {
			if err := d.qp.Close(); err != nil {
				d.t.Fatal(err)
			}
			d.createQP()
			d.connect()
		},
	} {
		flushing(t, name, c, func(t *testing.T, d *disk) {
			d.give(d.flush(0))
			synctest.Wait()
			end(d)
			d.give(d.flush(0))
			synctest.Wait()
			if d.started.Load() != 2 {
				t.Fatalf("%d calls", d.started.Load())
			}
			d.ends(errors.New("too late"))
			d.expect()
			d.ends(nil)
			d.expect("Only 0 msn 1 len 0")
		})
	}
	flushing(t, "in error", c, func(t *testing.T, d *disk) {
		d.give(d.flush(0))
		synctest.Wait()
		d.modify(verbs.StateErr)
		d.ends(errors.New("too late"))
		d.expect()
	})
	// A FLUSH is never dropped as a duplicate, even if as many of these are queued as possible.
	all := c
	all.destRD, all.mtu, all.size = 2, verbs.MTU256, 1<<20
	flushing(t, "after many duplicates", all, func(t *testing.T, d *disk) {
		d.give(d.req(wire.RCReadRequest, 0, nil, d.at(0, 100*256)), d.req(wire.RCReadRequest, 100, nil, d.at(0, 600*256)))
		if n := len(d.take()); n >= 700 {
			t.Fatal("nothing waits")
		}
		for i := range 80 {
			d.give(d.req(wire.RCReadRequest, i, nil, d.at(i*256, 256)))
		}
		d.give(d.flush(700))
		sleep(time.Second)
		d.take()
		d.ends(nil)
		d.expect("Only 700 msn 3 len 0")
	})
	// The number of threads is bounded, for any number of QPs of a peer.
	flushing(t, "many QPs", c, func(t *testing.T, d *disk) {
		const n = 3 * rocetransport.MaxFlushes
		for i := range n {
			if i > 0 {
				defer d.qp.Close()
				d.createQP()
				d.connect()
			}
			d.give(d.flush(0), d.flush(1))
		}
		synctest.Wait()
		for i := range 2 * n {
			if running := d.started.Load() - d.ended.Load(); int(running) != min(rocetransport.MaxFlushes, 2*n-i) {
				t.Fatalf("%d calls at once", running)
			}
			d.ends(nil)
			if sent := d.take(); len(sent) != 1 || sent[0].Opcode != wire.RCReadResponseOnly {
				t.Fatalf("FLUSH %d is answered with %v", i, sent)
			}
		}
	})
	// A FLUSH not started before its connection ended is never started.
	flushing(t, "many QPs, one reset", c, func(t *testing.T, d *disk) {
		for i := range rocetransport.MaxFlushes + 1 {
			if i > 0 {
				defer d.qp.Close()
				d.createQP()
				d.connect()
			}
			d.give(d.flush(0))
		}
		synctest.Wait()
		d.modify(verbs.StateReset)
		for range rocetransport.MaxFlushes {
			d.ends(nil)
		}
		if n := d.started.Load(); n != rocetransport.MaxFlushes || len(d.take()) != rocetransport.MaxFlushes {
			t.Errorf("%d calls", n)
		}
	})
}
