package rocetransport_test

// A requester whose peer uses go-back-N, and has not answered for longer than usual. Time is
// virtual.

import (
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// probing runs a test of a connection with a timeout of 2 s and a measured round trip of 100 µs.
// PSN 0 is used.
func probing(t *testing.T, name string, f func(t *testing.T, r *rig)) {
	run(t, name, config{sqPSN: first, retry: 1, timeout: 19}, func(t *testing.T, r *rig) {
		sleep(time.Microsecond)
		r.post(r.wr(0, verbs.Send, 8))
		sleep(100 * time.Microsecond)
		r.give(r.ack(0))
		r.take()
		poll(t, r.scq)
		f(t, r)
	})
}

func TestProbe(t *testing.T) {
	rest := []string{"WRITE Middle 2 len 1024", "WRITE Last 3 len 1024 ackreq"}
	probing(t, "packet lost twice", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 3072))
		r.take()
		r.give(r.nak(wire.NakPSNSeq, 1))
		r.take()
		sleep(25 * time.Millisecond)
		r.expect("WRITE First 1 len 1024 at 0+3072 ackreq")
		r.give(r.ack(1))
		r.expect(rest...)
		r.give(r.ack(3))
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		sleep(time.Minute)
		r.expect()
	})
	probing(t, "NAK lost", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 3072))
		r.take()
		sleep(25 * time.Millisecond)
		r.expect("WRITE First 1 len 1024 at 0+3072 ackreq")
		r.give(r.ack(1))
		r.expect(rest...)
	})
	probing(t, "acknowledgement lost", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 3072))
		r.take()
		sleep(25 * time.Millisecond)
		r.take()
		r.give(r.ack(3))
		r.expect()
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
	})
	probing(t, "last packet lost", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 3072))
		r.take()
		r.give(r.ack(2))
		sleep(25 * time.Millisecond)
		r.expect("WRITE Last 3 len 1024 ackreq")
		r.give(r.ack(3))
		r.expect()
	})
	probing(t, "READ's request lost", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 2048), r.wr(2, verbs.RDMARead, 8))
		r.take()
		sleep(25 * time.Millisecond)
		r.expect("READ Request 1 at 0+2048 ackreq")
		r.give(r.data(wire.RCReadResponseFirst, 1, fill(1024, 1)), r.data(wire.RCReadResponseLast, 2, fill(1024, 1)))
		r.expect("READ Request 3 at 0+8 ackreq")
	})
	probing(t, "READ's response lost twice", func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 3072))
		r.take()
		r.give(r.data(wire.RCReadResponseFirst, 1, fill(1024, 1)), r.data(wire.RCReadResponseLast, 3, fill(1024, 1)))
		r.expect("READ Request 2 at 1024+2048 ackreq")
		r.give(r.data(wire.RCReadResponseLast, 3, fill(1024, 1)))
		r.expect()
		sleep(25 * time.Millisecond)
		r.expect("READ Request 2 at 1024+2048 ackreq")
	})
	probing(t, "a slow peer", func(t *testing.T, r *rig) {
		for i := range 50 {
			r.post(r.wr(1, verbs.Send, 8))
			sleep(50 * time.Millisecond)
			r.give(r.ack(1 + i))
		}
		if n := len(r.take()); n > 50+5 {
			t.Errorf("%d packets for 50 messages", n)
		}
	})
}

// TestProbeToPromptPeer checks when a probe is sent to a peer that goes back, on a machine: after
// 20 ms, also if no answer was ever late, as a probe for nothing repeats all that is in flight.
func TestProbeToPromptPeer(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name    string
		answers int // of 100 µs
		probe   time.Duration
	}{
		{"few answers", 16, 20 * time.Millisecond},
		{"more answers", 60, 20 * time.Millisecond},
	} {
		run(t, c.name, config{sqPSN: first, retry: 1, timeout: 19}, func(t *testing.T, r *rig) {
			sleep(us)
			for i := range c.answers {
				r.post(r.wr(uint64(i), verbs.Send, 8))
				sleep(100 * us)
				r.give(r.ack(i))
				poll(t, r.scq)
			}
			if n := len(r.take()); n != c.answers {
				t.Fatalf("%d packets for %d messages", n, c.answers)
			}
			r.post(r.wr(100, verbs.RDMAWrite, 3072))
			r.take()
			sleep(c.probe - us)
			r.expect()
			sleep(2 * us)
			r.expect(fmt.Sprintf("WRITE First %d len 1024 at 0+3072 ackreq", c.answers))
		})
	}
}
