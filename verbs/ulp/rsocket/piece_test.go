package rsocket_test

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
)

// perWrite is the number of messages of a Write of 64 KiB that does not begin with a small one. The
// second has the bytes for which the last packet of the first has no room.
const perWrite = 2

// A Write after one that had to wait for buffer space does not begin with a small message. The peer
// still has data to read, so that several messages would gain nothing. Time is virtual, so that
// synctest.Wait returns when the writer waits.
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
		if n := messages() - before; n != perWrite*writes {
			t.Errorf("%d messages for %d Writes after one that had to wait", n, writes)
		}
	})
}

// A Write after which the peer has sent nothing does not begin with a small message. The
// application sends a stream, and does not wait for an answer.
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
			if n := messages(); n != perWrite {
				t.Errorf("%d messages for a Write of a stream, want %d", n, perWrite)
			}
		}
		back()
		synctest.Wait()
		if n := messages(); n <= perWrite+1 {
			t.Errorf("%d messages for the first Write after an answer, want several: copying overlaps with sending", n)
		}
	})
}

// countingLink counts the frames that it sends with more than the headers of a packet.
type countingLink struct {
	*pipe.Port
	sent *atomic.Int32
}

func (l countingLink) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if frames[i].Len() > 256 {
			l.sent.Add(1)
		}
	}
	return l.Port.Write(frames)
}

// A Write of 64 KiB takes two frames where the link has superframes. With its immediate data, the
// last packet would be longer than those before it, and take a third.
func TestFramesOfWrite(t *testing.T) {
	for _, mtu := range []int{1500, 4200} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan, err := pipe.New(&pipe.Config{MTU: mtu, FramesOnly: true})
				ok(t, err)
				sent := new(atomic.Int32)
				to, from := open(t, lan.Port(), server), open(t, countingLink{lan.Port(), sent}, client)
				a, b, err := connect(from, to, serverAt, nil)
				ok(t, err)
				defer a.Close()
				defer b.Close()
				there := exchange(t, a, b, 64<<10)
				there() // begins with a small message
				for range 5 {
					synctest.Wait()
					before := sent.Load()
					there()
					synctest.Wait()
					if n := sent.Load() - before; n != 2 {
						t.Errorf("%d frames for a Write of 64 KiB, want 2", n)
					}
				}
			})
		})
	}
}
