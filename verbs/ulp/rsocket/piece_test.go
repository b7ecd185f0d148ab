package rsocket_test

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link/pipe"
)

// A Write after one that had to wait for buffer space is one message. The peer still has data to
// read, so that several messages would gain nothing. Time is virtual, so that synctest.Wait returns
// when the writer waits.
func TestTransferSizeAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		a, b, err := connect(from, to, serverAt, nil)
		ok(t, err)
		defer a.Close()
		defer b.Close()
		const size, ahead, writes = 64 << 10, 2, 10 // the peer's buffer has space for two
		messages := func() uint64 {
			synctest.Wait()
			counters, err := to.HWCounters()
			ok(t, err)
			return counters["rdma_recvs"]
		}
		before := uint64(0)
		for i := range ahead + 1 + writes {
			written := make(chan error, 1)
			go func() {
				_, err := a.Write(make([]byte, size))
				written <- err
			}()
			messages()
			if i >= ahead {
				_, err := io.ReadFull(b, make([]byte, size)) // frees buffer space
				ok(t, err)
			}
			ok(t, <-written)
			if n := messages(); i == ahead { // the first that had to wait
				before = n
			}
		}
		if n := messages() - before; n != writes {
			t.Errorf("%d messages for %d Writes after one that had to wait", n, writes)
		}
	})
}

// A Write after which the peer has sent nothing is one message: the application sends a stream, and
// does not wait for an answer.
func TestTransferSizeOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		a, b, err := connect(from, to, serverAt, nil)
		ok(t, err)
		defer a.Close()
		defer b.Close()
		there, back := exchange(t, a, b, 64<<10), exchange(t, b, a, 1)
		last := uint64(0)
		messages := func() (n uint64) {
			there()
			synctest.Wait()
			counters, err := to.HWCounters()
			ok(t, err)
			n, last = counters["rdma_recvs"]-last, counters["rdma_recvs"]
			return n
		}
		messages()
		for range 5 {
			if n := messages(); n != 1 {
				t.Errorf("%d messages for a Write of a stream, want 1", n)
			}
		}
		back()
		synctest.Wait()
		if n := messages(); n < 3 {
			t.Errorf("%d messages for the first Write after an answer, want several: copying overlaps with sending", n)
		}
	})
}
